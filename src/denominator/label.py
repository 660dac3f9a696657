"""The command `label`: asks a person about questions without a usable label and writes each answer back at once.

The model is in `labelling`; here are the passages that are offered, what is on screen, and what may be typed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

from denominator import __version__, labelling
from denominator.corpus import by_id, ids_of, texts_of
from denominator.eligibility import BLOCKING
from denominator.errors import ConfigError, InputError, MeasurementError
from denominator.labelling import Asked, Book, Candidate, Decision, Item, JsonGroup
from denominator.pool import TOP, Found, Place, Pool, found_by_cells, found_by_run
from denominator.readers import native
from denominator.readers.build import Evaluate
from denominator.readers.textfiles import as_path, near, one_of
from denominator.types import Dataset, Document, Question

if TYPE_CHECKING:
    from rich.console import Console

    from denominator.cache import Cache
    from denominator.pipeline import Cell

RETRIEVERS = ("chunker", "embedder", "reranker", "pool", "experiment")
"""What says who finds the passages, as in a sweep."""

HELP = """\
state      a answerable   p partial: the documents answer a part   u unanswerable   s skip, ask another time
evidence   3        passage 3, then which part of it
           or 3     the same, as an alternative to the piece before: one of them is enough
           k        keep the gold that is noted already
           -        take the last piece away
           v 3      show more of the document around passage 3
           /words   search with words of your own; what is found is added to the list
           Enter    done
part       Enter the passage   2 a sentence   2-4 sentences as one piece   1,3 two pieces, both needed
           d the whole document   or words of the text, exactly as they stand there ("…" around words that are digits)
anywhere   :undo takes back the answer before this question   :back one step   :skip   :quit   :help
"""


class _Undo(Exception):  # noqa: N818
    """Go back to the question before and take its answer back."""


class _Quit(Exception):  # noqa: N818
    """End; what was answered is on disk."""


class _Skip(Exception):  # noqa: N818
    """Leave this question as it is."""


class _Back(Exception):  # noqa: N818
    """One step back within this question: from a part to the evidence, from there to the state."""


# ------------------------------------------------------------------ what is shown


def _safe(text: str) -> str:
    """Text for a screen: control characters (a document may hold escape sequences) become a visible mark."""
    return "".join(c if c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f") else "\ufffd" for c in text)


def _flat(text: str, most: int = 0) -> str:
    text = " ".join(_safe(text).split())
    return text if not most or len(text) <= most else text[: most - 1] + "…"


def item_text(item: Item, texts: Mapping[str, str]) -> str:
    """One alternative on one line: where it is and the words that stand there."""
    doc = labelling.document_of(item)
    name = _safe(doc)
    if doc not in texts and texts:
        return f"{name}, which is not in the corpus"
    if isinstance(item, Mapping) and item.get("start") is not None:
        words = texts[doc][item["start"] : item["end"]] if doc in texts else item.get("text") or ""
        return f"{name} [{item['start']}, {item['end']}) “{_flat(words, 200)}”"
    whole = isinstance(item, Mapping) and item.get("whole")
    return f"{name}, the whole document" if whole else f"{name}, without a span"


def group_text(group: JsonGroup, texts: Mapping[str, str]) -> str:
    return " or ".join(item_text(item, texts) for item in group)


_WHY = {
    "unlabelled": "it has no label",
    "conflict": "labelled unanswerable, but it has gold",
    "answerable_no_gold": "labelled answerable, but it has no gold",
    "partial_no_gold": "labelled partial, but it has no gold",
    "gold_grade_mismatch": "its grades contradict its gold",
}


def why_text(asked: Asked) -> str:
    """Why a question is asked, in words."""
    if asked.lost:
        return f"gold that is not in the corpus: {', '.join(map(_safe, asked.lost))}"
    return {"needs_review": "it is marked needs_review"}.get(asked.why, _WHY.get(asked.why, asked.why))


# ------------------------------------------------------------------ a sitting


@dataclass(slots=True)
class Sitting:
    """One run through the queue. `ask` gives one line for a prompt and raises EOFError at the end of the input."""

    data: Dataset
    book: Book
    asked: Sequence[Asked]
    pool: Pool | None
    out: Console
    ask: Callable[[str], str]
    now: Callable[[], str]
    by: str | None = None
    labelled: int = 0
    documents: Mapping[str, Document] = field(init=False)
    texts: Mapping[str, str] = field(init=False)
    questions: Mapping[str, Question] = field(init=False)

    def __post_init__(self) -> None:
        self.documents = by_id(self.data.documents)
        self.texts = texts_of(self.data.documents)
        self.questions = {q.id: q for q in self.data.questions}

    def run(self) -> None:
        """Asks until the queue or the input ends. Every answer is on disk before the next question."""
        past: list[tuple[int, bool]] = []  # which question, and whether an answer was written
        at = 0
        try:
            while at < len(self.asked):
                try:
                    self._question(at)
                except _Skip:
                    past.append((at, False))
                except _Undo:
                    if not past:
                        self._say("this is the first question of this sitting: nothing to take back")
                        continue
                    at, written = past.pop()
                    if written:
                        self._say(f"taken back: {_safe(self.book.undo())}")
                        self.labelled -= 1
                    continue
                else:
                    past.append((at, True))
                    self.labelled += 1
                at += 1
        except (_Quit, EOFError):
            self._say("")
        left = len(self.asked) - self.labelled
        self._say(f"labelled {self.labelled}, left {left}" + ("; the same command goes on" if left else ""))

    # ---------------------------------------------------------------- typed

    def _say(self, text: str, lead: str = "") -> None:
        """Text wrapped to the screen, `lead` before its first line and as many blanks before the others."""
        from rich.text import Text

        for part in text.split("\n"):
            for row in Text(part).wrap(self.out, max(20, self.out.width - len(lead))):
                self.out.print((lead + row.plain).rstrip(), soft_wrap=True)
                lead = " " * len(lead)

    def _answer(self, prompt: str) -> str:
        """One line; commands that start with a colon work everywhere."""
        while True:
            typed = self.ask(f"{prompt} > ").strip()
            try:
                typed.encode("utf-8")
            except UnicodeEncodeError:
                self._say("that is not UTF-8; type it again")
                continue
            if not typed.startswith(":"):
                return typed
            word = typed[1:].strip()
            names: dict[str, type[Exception] | None] = {
                "undo": _Undo, "back": _Back, "skip": _Skip, "quit": _Quit, "help": None,
            }  # fmt: skip
            known = [name for name in names if word and name.startswith(word)]
            if not known:
                guess = near(word, names)
                hint = f" (did you mean :{guess}?)" if guess else ""
                self._say(f"no such command{hint}: :undo :back :skip :quit :help")
                continue
            signal = names[known[0]]
            if signal is not None:
                raise signal
            self._say(HELP)

    # ---------------------------------------------------------------- one question

    def _question(self, at: int) -> None:
        asked = self.asked[at]
        record = self.book.record(asked.id)
        question = self.questions[asked.id]
        shown: list[Candidate] = []
        if self.pool is not None and question.question:
            shown += self.pool.candidates(question.question, asked.id)
        self._show(at, record, shown)
        while True:
            try:
                decision = self._decide(asked, record, shown)
                changes = labelling.changes_of(
                    record, decision, why=asked.why, time=self.now(), tool=f"denominator {__version__}",
                    by=self.by, candidates=shown,
                )  # fmt: skip
                try:
                    labelling.verified(
                        self.book, asked.id, changes, decision.state,
                        texts=self.texts if self.data.corpus_hash is not None else None, evaluate=self.data.evaluate,
                    )  # fmt: skip
                except (InputError, MeasurementError) as error:
                    self._say(f"not written: {error}")
                    continue
            except _Back:
                continue
            if "grades" in changes:
                self._say("grades that contradict this are taken out; they are kept in label_provenance")
            self.book.write(asked.id, changes)
            self._say(f"written: {_safe(asked.id)} is {decision.state}")
            return

    def _decide(self, asked: Asked, record: Mapping[str, Any], shown: list[Candidate]) -> Decision:
        while True:
            typed = self._answer("state (a, p, u; s skip, ? help)").lower()
            if typed in ("?", "h", "help"):
                self._say(HELP)
            elif typed in ("s", "skip"):
                raise _Skip
            elif typed in ("q", "quit"):
                raise _Quit
            elif typed == "undo":
                raise _Undo
            elif typed and any(state.startswith(typed) for state in labelling.DECIDED):
                break
            elif typed:
                self._say("a answerable, p partial, u unanswerable, s skip, q quit, undo, ? help")
        state = next(s for s in labelling.DECIDED if s.startswith(typed))
        groups: tuple[JsonGroup, ...] | None = None
        if self.data.evaluate == "retrieval":
            groups = () if state == "unanswerable" else self._evidence(asked, record, shown)
        return Decision(state, groups, self._answer("note (Enter: none)"))

    # ---------------------------------------------------------------- evidence

    def _evidence(self, asked: Asked, record: Mapping[str, Any], shown: list[Candidate]) -> tuple[JsonGroup, ...]:
        groups: list[JsonGroup] = []
        noted = labelling.noted_groups(record)
        keep = ", k keeps the gold" if noted else ""
        while True:
            more = "Enter done; N one more, or N an alternative" if groups else "a passage's number"
            typed = self._answer(f"evidence ({more}{keep}, ? help)")
            if typed in ("?", "h", "help"):
                self._say(HELP)
            elif not typed:
                if groups:
                    return tuple(groups)
                self._say("an answerable or partial question needs evidence (:back for another state, :skip)")
            elif typed == "k":
                self._keep(noted, groups)
            elif typed == "-":
                if groups:
                    groups[-1] = groups[-1][:-1]
                    groups[:] = [g for g in groups if g]
                self._list(groups)
            elif typed.startswith("/"):
                self._search(asked, typed[1:].strip(), shown)
            else:
                self._choice(typed, groups, shown)

    def _choice(self, typed: str, groups: list[JsonGroup], shown: Sequence[Candidate]) -> None:
        word, _, rest = typed.partition(" ")
        alternative, view = word == "or", word == "v"
        number = rest.strip() if alternative or view else typed
        if not number.isdecimal() or not 1 <= int(number) <= len(shown):
            have = f"the passages are 1 to {len(shown)}" if shown else "there is no passage; /words searches"
            self._say(f"{have} (N, or N, v N, k, -, /words, Enter; ? help)")
            return
        candidate = shown[int(number) - 1]
        if view:
            self._view(candidate)
            return
        if alternative and not groups:
            self._say("an alternative to what? Choose a first piece, then `or N`")
            return
        try:
            items = self._part(candidate, single=alternative)
        except _Back:
            return
        if alternative:
            if items[0] in groups[-1]:
                self._say("that alternative is noted already")
            else:
                groups[-1] = (*groups[-1], items[0])
        else:
            fresh = [(item,) for item in items if (item,) not in groups]
            if len(fresh) < len(items):
                self._say("that piece is noted already")
            groups += fresh
        self._list(groups)

    def _part(self, candidate: Candidate, *, single: bool) -> list[Item]:
        from denominator.chunkers import sentence_spans

        document = self.documents[candidate.doc]
        text = document.text
        sentences = sentence_spans(text, candidate.start, candidate.end)
        for i, (a, b) in enumerate(sentences, 1):
            self._say(_flat(text[a:b]), f"  {i:>2}  ")
        several = f", 1-{len(sentences)} sentences" if len(sentences) > 1 else ""
        while True:
            typed = self._answer(f"part (Enter all{several}, d document, or its words)")
            if not typed:
                return [labelling.item_of(document, candidate.start, candidate.end)]
            if typed == "d":
                return [{"document_id": document.id, "whole": True}]
            try:
                runs = labelling.runs_of(typed, len(sentences))
                if runs is None:
                    bare = typed[1:-1] if len(typed) > 2 and typed[0] == typed[-1] == '"' else typed
                    spans = [labelling.locate(text, bare, candidate.start, candidate.end)]
                else:
                    spans = [(sentences[a - 1][0], sentences[b - 1][1]) for a, b in runs]
            except ValueError as error:
                self._say(str(error))
                continue
            if single and len(spans) > 1:
                self._say("an alternative is one piece: one sentence, or neighbours such as 1-2")
                continue
            return [labelling.item_of(document, a, b) for a, b in dict.fromkeys(spans)]

    def _list(self, groups: Sequence[JsonGroup]) -> None:
        for i, group in enumerate(groups, 1):
            self._say(group_text(group, self.texts), f"  evidence {i}: ")

    def _keep(self, noted: Sequence[JsonGroup], groups: list[JsonGroup]) -> None:
        there = [g for g in noted if any(labelling.document_of(i) in self.texts for i in g)]
        if len(there) < len(noted):
            self._say(f"left out, because the corpus does not have it: {len(noted) - len(there)} of {len(noted)}")
        if not noted:
            self._say("no gold is noted")
        groups += [g for g in there if g not in groups]
        self._list(groups)

    def _search(self, asked: Asked, words: str, shown: list[Candidate]) -> None:
        have = {(c.doc, c.start, c.end) for c in shown}
        found = self.pool.searched(words, asked.id) if self.pool and words else ()
        new = [c for c in found if (c.doc, c.start, c.end) not in have]
        if not new:
            self._say("nothing new was found" if words else "what is to be searched? /words")
        first = len(shown) + 1
        shown += new
        self._passages(new, first)

    # ---------------------------------------------------------------- shown

    def _show(self, at: int, record: Mapping[str, Any], shown: Sequence[Candidate]) -> None:
        asked = self.asked[at]
        self._say(f"\n--- {_safe(asked.id)} ({at + 1} of {len(self.asked)}): {why_text(asked)}")
        for turn in record.get("history") or []:
            self._say(_flat(turn["text"]), f"    {_flat(turn['speaker'], 20)}: ")
        self._say(f"\n{_safe(record.get('question') or '(no text)')}\n")
        known: list[str] = []
        if record.get("state") not in (None, "unlabelled"):
            known.append(f"state: {record['state']}")
        known += [f"gold: {group_text(g, self.texts)}" for g in labelling.noted_groups(record)]
        answer = record.get("answer")
        known += [f"answer: {_flat(a)}" for a in ([answer] if isinstance(answer, str) else answer or [])]
        known += [f"{_safe(k)}: {_flat(str(v), 200)}" for k, v in (record.get("slice") or {}).items()]
        earlier = record.get(labelling.PROVENANCE)
        for entry in earlier if isinstance(earlier, list) else []:
            if isinstance(entry, Mapping) and entry.get("note"):
                known.append(f"note: {_flat(str(entry['note']))}")
        for line in known:
            self._say(line, "  ")
        if known:
            self._say("")
        self._passages(shown, 1)
        if not shown and self.pool is not None:
            self._say("  no passage was found; /words searches with words of your own")

    def _passages(self, shown: Iterable[Candidate], first: int) -> None:
        for i, c in enumerate(shown, first):
            title = self.documents[c.doc].title
            self._say(f"{_safe(c.doc)}{f' · {_flat(title)}' if title and title != c.doc else ''}", f" {i:>2}  ")
            self._say(_flat(self.texts[c.doc][c.start : c.end]), "     ")

    def _view(self, c: Candidate) -> None:
        text, around = self.texts[c.doc], 3000
        a, b = max(0, c.start - around), min(len(text), c.end + around)
        before = ("… " if a else "") + text[a : c.start]
        after = text[c.end : b] + (" …" if b < len(text) else "")
        self._say(f"{_safe(before)}>>>{_safe(text[c.start : c.end])}<<<{_safe(after)}")


# ------------------------------------------------------------------ the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `denominator label`."""
    parser.add_argument("dataset", nargs="?", metavar="DATASET", help="a dataset of the configuration, or a folder")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings of that dataset (dataset.key=…), or who finds the passages, as in a sweep (embedder=bm25,onnx)",
    )
    parser.add_argument("--run", action="append", default=[], metavar="FILE", help="a recorded run finds passages, too")
    parser.add_argument("--questions", metavar="FILE", help="JSON lines; answers are written into this file")
    parser.add_argument("--corpus", metavar="FILE", help="documents as JSON lines")
    parser.add_argument("--folder", metavar="DIR", help="native folder; documents, with --questions")
    parser.add_argument("--config-dir", metavar="DIR", help="your own configuration, with dataset/NAME.yaml")
    parser.add_argument("--evaluate", choices=get_args(Evaluate), help="abstention: states only, no corpus is needed")
    parser.add_argument("--list", action="store_true", help="only print what would be asked")
    parser.add_argument("--state", action="append", default=[], choices=BLOCKING, help="only these (repeatable)")
    parser.add_argument("--id", action="append", default=[], metavar="ID", help="this question, labelled or not")
    parser.add_argument("--by", metavar="NAME", help="who labels; goes into label_provenance")
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"passages a retriever (default: {TOP})")
    parser.add_argument("--cache", metavar="DIR", help="keep the indexes here (default: in memory)")


def _part(args: argparse.Namespace) -> Any:
    from denominator import doctor

    if args.dataset is None and args.folder is None and args.questions is None:
        raise ConfigError("label needs a dataset: its name, --folder DIR, or --questions FILE and --corpus FILE")
    try:
        part = doctor._part(args)
    except ConfigError as error:
        raise ConfigError(str(error).replace("denominator doctor", "denominator label")) from None
    if getattr(part, "assume_answerable", False):  # what the file itself says is what has to be labelled
        part = replace(part, assume_answerable=False)
    if args.evaluate is not None:
        if not hasattr(part, "evaluate"):
            raise ConfigError(f"--evaluate: {type(part).__name__} has no such setting")
        part = replace(part, evaluate=args.evaluate)
    return part


def _split(args: argparse.Namespace) -> list[str]:
    """Takes out of the arguments what says who finds the passages."""
    given = [*([args.dataset] if args.dataset and "=" in args.dataset else []), *args.overrides]
    finders = [o for o in given if o.partition("=")[0].lstrip("+").split(".")[0] in RETRIEVERS]
    if args.dataset in finders:
        args.dataset = None
    args.overrides = [o for o in args.overrides if o not in finders]
    return finders


def cells_of(overrides: Sequence[str], config_dir: str | None) -> list[Cell]:
    """The cells of a grid as `denominator sweep` composes them; none without overrides. Raises ConfigError."""
    if not overrides:
        return []
    from denominator.app import parse
    from denominator.composing import application, compose_jobs

    args = parse([*overrides, *(["--config-dir", config_dir] if config_dir else [])])
    with application(args, args.overrides) as made:
        jobs, _, _, complete = compose_jobs(made, "sweep")
    if not complete:
        raise ConfigError("label needs a plain grid of retrievers, not a search")
    return [job.cell for job in jobs]


def found_for(cells: Sequence[Cell], runs: Sequence[str], data: Dataset, cache: Cache) -> Found:
    """What the cells and the recorded runs found, by name. Two runs of one file name are an error."""
    found: dict[str, Mapping[str, Sequence[Place]]] = dict(found_by_cells(cells, data, cache))
    for path in runs:
        for name, of in found_by_run(path, data).items():
            if name in found:
                raise ConfigError(f"--run {path}: there is another one of this name; names stand in label_provenance")
            found[name] = of
    return found


def questions_file(part: Any) -> str | None:
    """The native question file that a reader reads, or None when it reads another format."""
    from denominator.readers.folder import Folder

    if isinstance(part, native.Native):
        return part.questions or str(one_of(as_path(part.folder), "questions.jsonl"))
    return part.questions if isinstance(part, Folder) else None


def _ask(prompt: str) -> str:
    """`input`, and what was typed is printed where no terminal echoes it: a piped sitting reads like a typed one."""
    typed = input(prompt)
    if not sys.stdin.isatty():
        sys.stdout.write(typed + "\n")
    return typed


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="seconds")


def list_text(data: Dataset, asked: Sequence[Asked]) -> str:
    """What would be asked, one line each, and how many of how many."""
    texts = {q.id: q.question for q in data.questions}
    first = max((len(_safe(a.id)) for a in asked), default=0)
    second = max((len(a.why) for a in asked), default=0)
    lines = [
        f"{_safe(a.id).ljust(first)}  {a.why.ljust(second)}  {_flat(texts[a.id] or '', 100)}".rstrip() for a in asked
    ]
    return "\n".join([*lines, f"{len(asked)} of {len(data.questions)} questions to label"]) + "\n"


def run(args: argparse.Namespace) -> int:
    """`denominator label`: 0 also when it was ended early; everything that was answered is in the file."""
    from denominator.cache import Cache
    from denominator.progress import console

    if args.top < 1:
        raise ConfigError(f"--top is {args.top}; at least one passage of each retriever is shown")
    finders = _split(args)
    cells = cells_of(finders, args.config_dir)
    part = _part(args)
    path = questions_file(part)
    if path is None and not args.list:
        what = "the bundled demo data" if isinstance(part, native.Demo) else f"what {type(part).__name__} reads"
        raise ConfigError(
            f"label writes into question files of the native format, and {what} is none; "
            "make one (docs/data.md), or a copy, and say --folder DIR or --questions FILE (--list works on any)"
        )
    book = None
    if path is not None and not args.list:
        book = Book(path)
        book.check_writable()
    data: Dataset = part.load()
    if book is not None:
        book.check_unchanged()
    unknown = sorted(set(args.id) - {q.id for q in data.questions})
    if unknown:
        guess = near(unknown[0], [q.id for q in data.questions])
        raise ConfigError(f"there is no question {unknown[0]!r}" + (f" (did you mean {guess!r}?)" if guess else ""))
    corpus_ids = ids_of(data.documents) if data.corpus_hash is not None else None
    asked = labelling.queue(data.questions, corpus_ids, evaluate=data.evaluate, states=args.state, ids=args.id)
    if book is None:
        sys.stdout.write(list_text(data, asked))
        return 0
    if not asked:
        sys.stdout.write(f"nothing to label: {len(data.questions)} questions\n")
        return 0
    if corpus_ids is None and data.evaluate == "retrieval":
        raise ConfigError("label needs the documents, too, to show passages: --corpus FILE (or --evaluate abstention)")
    if corpus_ids is None and (cells or args.run):
        raise ConfigError(f"{(finders + args.run)[0]}: nothing can be found without the documents")
    cache = Cache(args.cache)
    found = found_for(cells, args.run, data, cache)
    pool = Pool.build(data, cache, top=args.top, found=found) if corpus_ids is not None else None
    with suppress(ImportError, ValueError, OSError):
        if sys.stdin.isatty():
            import readline  # noqa: F401  # line editing
    if hasattr(sys.stdin, "reconfigure"):
        with suppress(ValueError, OSError):
            sys.stdin.reconfigure(errors="surrogateescape")
    out = console()
    passages = f"; {len(pool):,} passages of {len(data.documents):,} documents" if pool is not None else ""
    out.print(f"{len(asked)} of {len(data.questions)} questions to label{passages}; each answer is written at once")
    if found:
        out.print(f"passages are found by {len(found)} retrievers: {'; '.join(sorted(found))}", soft_wrap=True)
    Sitting(data, book, asked, pool, out, _ask, _now, args.by).run()
    return 0
