"""Answers of an OpenAI-compatible `/chat/completions` server, and a judge of answers behind the same address."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Event
from typing import Any, ClassVar, Literal

from denominator import phrases
from denominator.answerers import Written, asked_judge, content_hash
from denominator.cache import Cache
from denominator.endpoints.client import CONTENT, Client, Endpoint, EndpointError
from denominator.endpoints.kept import Kept
from denominator.errors import ConfigError
from denominator.fingerprint import sha
from denominator.retrievers.bench import Bench
from denominator.retrievers.table import NO_TEXT, ChunkTable, Ranked
from denominator.types import Answer, Plan, Question

Structured = Literal["auto", "json_schema", "json_object", "text"]

SYSTEM = """\
You answer questions from the given passages alone.
Reply with one JSON object and nothing else: {"answerable": true or false, "answer": "..."}.
Set "answerable" to false when the passages do not hold the answer; "answer" then says what is missing."""

PROMPT = """\
{% for chunk in chunks %}[{{ chunk.number }}]{% if chunk.title %} {{ chunk.title }}{% endif %}
{{ chunk.text }}

{% endfor %}Question: {{ question }}"""

JUDGE_SYSTEM = """\
You read a question and the reply to it. Decide whether the reply declines to answer: it says that it does not know,
that the information is missing, or that the question cannot be answered. A reply with doubts that still answers does
not decline. Reply with one JSON object and nothing else: {"declines": true or false}."""

JUDGE_PROMPT = """\
Question: {{ question }}

Reply: {{ text }}"""

GRADER_SYSTEM = """\
You compare a reply to a question with reference answers. Decide whether the reply says what at least one reference
says, in whatever words. Further details do no harm unless they contradict it; an evasion is not correct. Reply with one
JSON object and nothing else: {"correct": true or false}."""

GRADER_PROMPT = """\
Question: {{ question }}

{% for reference in references %}Reference: {{ reference }}
{% endfor %}
Reply: {{ text }}"""

NAMES = ("question", "chunks", "context", "history", "lang")
JUDGE_NAMES = ("question", "text", "lang")
GRADER_NAMES = ("question", "text", "references", "lang")
REFUSED_FORMAT = (*CONTENT, 404, 415, 501)


def _schema(flag: str, *texts: str) -> dict[str, Any]:
    kinds = {flag: {"type": "boolean"}, **{name: {"type": "string"} for name in texts}}
    return {"type": "object", "properties": kinds, "required": list(kinds), "additionalProperties": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModel(Endpoint):
    """A chat model behind `POST {url}/chat/completions` that replies with a JSON object.

    `structured`: `json_schema` or `json_object` demand the object by `response_format`, `text` by the prompt alone;
    `auto` begins with `json_schema` and goes on without where the server refuses it. Whatever it is, the last JSON
    object in the reply that has the boolean counts. `temperature`, `seed`, `max_tokens`: null leaves the field out, for
    models that do not take it. `extra`: further fields of the request. Prices in any currency. `version`: to be raised
    when the server changes the model under the same name.
    """

    model: str
    structured: Structured = "auto"
    temperature: float | None = 0.0
    seed: int | None = 0
    max_tokens: int | None = 512
    extra: Mapping[str, Any] = field(default_factory=dict)
    price_per_million_input: float | None = None
    price_per_million_output: float | None = None
    version: str | None = None
    suffix: ClassVar[str] = "/chat/completions"

    def __post_init__(self) -> None:
        Endpoint.__post_init__(self)
        if not self.model.strip():
            raise ConfigError(f"{self.what}: model is empty")
        if self.structured not in ("auto", "json_schema", "json_object", "text"):
            raise ConfigError(
                f"{self.what}: structured must be auto, json_schema, json_object or text, found {self.structured!r}"
            )
        if self.temperature is not None:
            self._at_least("temperature", 0)
        if self.max_tokens is not None:
            self._whole("max_tokens", 1)
        for name in ("price_per_million_input", "price_per_million_output"):
            if getattr(self, name) is not None:
                self._at_least(name, 0)
        taken = sorted({"messages", "model", "response_format", "stream", "n"} & set(self.extra))
        if taken:
            raise ConfigError(f"{self.what}: extra cannot set {', '.join(taken)}")

    def body(self, system: str, prompt: str) -> dict[str, Any]:
        """The request, without `response_format`."""
        messages = [{"role": "system", "content": system}] if system.strip() else []
        given: dict[str, Any] = {"model": self.model, "messages": [*messages, {"role": "user", "content": prompt}]}
        numbers = {"temperature": self.temperature, "seed": self.seed, "max_tokens": self.max_tokens}
        return {**given, **{name: value for name, value in numbers.items() if value is not None}, **self.extra}

    def replies(
        self, cache: Cache, bodies: Sequence[Mapping[str, Any]], schema: Mapping[str, Any], flag: str
    ) -> list[dict[str, Any] | str]:
        """For each request `{flag, text, in, out}` or what went wrong. The same request is sent once and kept."""
        namespace = {
            "stage": "chat",
            "code": 1,
            "url": self.identity(),
            "structured": self.structured,
            "schema": schema,
            "version": self.version,
        }
        kept = Kept(cache, namespace, f"{self.model} chat")
        keys = {i: sha(body) for i, body in enumerate(bodies)}
        asker = _Asker(self, schema, flag)
        found, wrong = kept.complete(keys, asker.client, lambda i, stop: asker.ask(bodies[i], stop))
        return [found[key] if key in found else f"{self.what}: {wrong[key]}" for key in keys.values()]

    def bill(self, replies: Sequence[dict[str, Any] | str], name: str) -> dict[str, float]:
        """Tokens and money of the replies to all questions; a failed one costs nothing here."""
        told = [reply for reply in replies if not isinstance(reply, str)]
        tokens_in, tokens_out = sum(reply["in"] for reply in told), sum(reply["out"] for reply in told)
        facts = {f"{name}_tokens_in": float(tokens_in), f"{name}_tokens_out": float(tokens_out)}
        if self.price_per_million_input is not None or self.price_per_million_output is not None:
            money = tokens_in * (self.price_per_million_input or 0) + tokens_out * (self.price_per_million_output or 0)
            facts[f"{name}_cost"] = money / 1e6
        return facts


class _Asker:
    """Sends requests of one stage; remembers for all of them whether the server takes `response_format`."""

    def __init__(self, part: ChatModel, schema: Mapping[str, Any], flag: str) -> None:
        self.part, self.schema, self.flag = part, schema, flag
        self.client: Client = part.client()
        self.plain = part.structured == "text"

    def ask(self, body: Mapping[str, Any], stop: Event) -> dict[str, Any]:
        if self.plain:
            return self._read(self.client.call(body, stop=stop), body)
        form = self.part.structured
        wanted: dict[str, Any] = {"type": "json_object"}
        if form in ("auto", "json_schema"):
            named = {"name": "reply", "strict": True, "schema": self.schema}
            wanted = {"type": "json_schema", "json_schema": named}
        try:
            reply = self.client.call({**body, "response_format": wanted}, stop=stop)
        except EndpointError as error:
            if form != "auto" or error.status not in REFUSED_FORMAT:
                raise
            reply = self.client.call(body, stop=stop)  # refused again: it was something else, and this error says what
            self.plain = True
        return self._read(reply, body)

    def _read(self, reply: Any, body: Mapping[str, Any]) -> dict[str, Any]:
        choices = reply.get("choices") if isinstance(reply, Mapping) else None
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else None
        message = None if choice is None else choice.get("message")
        if choice is None or not isinstance(message, Mapping):
            raise EndpointError("the answer has no choices[0].message")
        why = choice.get("finish_reason")
        if why == "length":
            raise EndpointError(f"the reply was cut at max_tokens={self.part.max_tokens}; raise it")
        if why == "content_filter":
            raise EndpointError("the server's content filter withheld the reply")
        content = message.get("content")
        if isinstance(content, list):  # parts, as some servers give them
            content = "".join(str(p.get("text", "")) for p in content if isinstance(p, Mapping))
        if content is None:
            content = message.get("refusal") or ""
        if not isinstance(content, str):
            raise EndpointError(f"the reply's content is {type(content).__name__}, expected a text")
        content = content.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be stored
        found = last_object(content, self.flag)
        text = content
        if found is not None:
            text = next((v for k, v in found.items() if k != self.flag and isinstance(v, str)), "")
        usage = reply.get("usage")
        sent = " ".join(str(m["content"]) for m in body["messages"])
        return {
            "flag": None if found is None else found[self.flag],
            "text": text,
            "in": _tokens(usage, "prompt_tokens", sent),
            "out": _tokens(usage, "completion_tokens", content),
        }


def _tokens(usage: Any, name: str, text: str) -> int:
    """What the server counted; by regex-v1 where it says nothing."""
    from denominator.tokens import count

    value = usage.get(name) if isinstance(usage, Mapping) else None
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return int(value) if good and isinstance(value, (int, float)) else count(text)


def last_object(text: str, flag: str) -> dict[str, Any] | None:
    r"""The last JSON object in a text that has `flag` as a boolean: models think aloud and fence their JSON.

    >>> last_object('Maybe {"answerable": true}? No: ```json\n{"answerable": false, "answer": ""}\n```', "answerable")
    {'answerable': False, 'answer': ''}
    >>> last_object('{"answerable": "false"}', "answerable") is None
    True
    """
    decoder = json.JSONDecoder()
    at, last = text.find("{"), None
    while at >= 0:
        try:
            found, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if isinstance(found, dict) and isinstance(found.get(flag), bool):
                last = found
        at = text.find("{", end)
    return last


@lru_cache(maxsize=64)
def _template(text: str, what: str, names: tuple[str, ...]) -> Callable[..., str]:
    """A template in a sandbox. Raises ConfigError for a syntax error and for a name that is not given."""
    from jinja2 import StrictUndefined, TemplateSyntaxError, meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    try:
        unknown = sorted(meta.find_undeclared_variables(environment.parse(text)) - set(names))
        made = environment.from_string(text)
    except TemplateSyntaxError as error:
        raise ConfigError(f"{what}: line {error.lineno}: {error.message}") from None
    if unknown:
        raise ConfigError(f"{what}: {', '.join(unknown)} is not known there (there are: {', '.join(names)})")
    return made.render


class _Asks(ChatModel):
    """A chat model that is asked a question with a yes or a no: one request for each item, kept by its content."""

    __slots__ = ()
    names: ClassVar[tuple[str, ...]] = ()
    flag: ClassVar[str] = ""
    fact: ClassVar[str] = ""

    def __post_init__(self) -> None:
        ChatModel.__post_init__(self)
        for name in ("system", "prompt"):
            _template(getattr(self, name), f"{self.what}: {name}", self.names)

    def verdicts(self, cache: Cache, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | str]:
        """For each item (values of the template's names) a reply with `flag`, or what went wrong."""
        bodies = []
        for item in items:
            parts = [_template(getattr(self, n), f"{self.what}: {n}", self.names)(**item) for n in ("system", "prompt")]
            bodies.append(self.body(parts[0], parts[1]))
        return self.replies(cache, bodies, _schema(self.flag), self.flag)

    def told(self, replies: Sequence[dict[str, Any] | str]) -> tuple[dict[str, float], tuple[str, ...]]:
        """How many were asked, how many gave no verdict, what it cost; and the failures in words."""
        failed = sum(isinstance(reply, str) for reply in replies)
        unclear = sum(not isinstance(reply, str) and reply["flag"] is None for reply in replies)
        facts = {
            f"{self.fact}_asked": float(len(replies)),
            f"{self.fact}_failed": float(failed),
            f"{self.fact}_unclear": float(unclear),
            **self.bill(replies, self.fact),
        }
        lost = [(failed, "failed"), (unclear, "were not answered by a verdict")]
        said = [f"{n} {what}" for n, what in lost if n]
        note = f"{self.what}: of {len(replies)} texts sent to {self.model} {' and '.join(said)}"
        return facts, (note,) if said else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge(_Asks):
    """Asks a chat model whether a text declines to answer: the last rung of the decider ladder.

    Only texts that no other rung decides are sent. It is an instrument: have at least 50 of its verdicts checked by
    hand (`hand` of the answerers, `denominator score --hand`) before you rely on it. Called on its own it fits
    `denominator.abstention.Judge`.
    """

    system: str = JUDGE_SYSTEM
    prompt: str = JUDGE_PROMPT
    max_tokens: int | None = 64
    code: ClassVar[int] = 1
    what: ClassVar[str] = "judge"
    names: ClassVar[tuple[str, ...]] = JUDGE_NAMES
    flag: ClassVar[str] = "declines"
    fact: ClassVar[str] = "judge"

    def beforehand(
        self, cache: Cache, items: Sequence[tuple[str, str, str]]
    ) -> tuple[_Verdicts, dict[str, float], tuple[str, ...]]:
        """All texts (question, text, language) at once: a judge that knows them, figures and notes for the record."""
        replies = self.verdicts(cache, [dict(zip(self.names, item, strict=True)) for item in items])
        return _Verdicts(dict(zip(items, replies, strict=True))), *self.told(replies)

    def __call__(self, text: str, *, question: str | None, lang: str) -> bool | None:
        """Raises EndpointError when the server gives no answer."""
        item = question or "", text, lang
        return self.beforehand(Cache(None), [item])[0](text, question=question, lang=lang)


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """A judge that was asked beforehand, all texts at once."""

    known: Mapping[tuple[str, str, str], dict[str, Any] | str]

    def __call__(self, text: str, *, question: str | None, lang: str) -> bool | None:
        reply = self.known[question or "", text, lang]
        if isinstance(reply, str):
            raise EndpointError(reply)
        flag: bool | None = reply["flag"]
        return flag


@dataclass(frozen=True, slots=True, kw_only=True)
class Grader(_Asks):
    """Asks a chat model whether an answer says what a reference answer says: `correctness`, 1 or 0.

    Answers to answerable questions that have a reference are sent, refusals are not. Like a judge it is an instrument
    that is held against labels by hand (`correct` in the file of `hand`).
    """

    system: str = GRADER_SYSTEM
    prompt: str = GRADER_PROMPT
    max_tokens: int | None = 64
    code: ClassVar[int] = 1
    what: ClassVar[str] = "grader"
    names: ClassVar[tuple[str, ...]] = GRADER_NAMES
    flag: ClassVar[str] = "correct"
    fact: ClassVar[str] = "grader"

    def grades(
        self, cache: Cache, items: Mapping[str, Mapping[str, Any]]
    ) -> tuple[dict[str, bool | None], dict[str, float], tuple[str, ...]]:
        """Verdicts by question id (None: it gave none), figures and notes for the record."""
        replies = self.verdicts(cache, list(items.values()))
        found = {q: None if isinstance(r, str) else r["flag"] for q, r in zip(items, replies, strict=True)}
        return found, *self.told(replies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat(ChatModel):
    """Answers every question from its best chunks, and says in a field of its own whether they hold the answer.

    Context: the first `k` chunks, the first `budget` tokens (regex-v1; the last chunk is cut as `budget_cut` says), or
    both; with neither, the plan's budget. `system` and `prompt` are Jinja templates in a sandbox over `question`,
    `chunks` (each with `number`, `id`, `title`, `text`), `context` (the texts, joined), `history` (of a dialogue: role,
    text) and `lang`. The part's own `lang`: the language of the answers, where it is not that of the questions.
    `judge`: a `Judge` for replies that no other rung decides; `grader`: a `Grader` of their correctness; `hand`: a file
    of labels by hand that both are held against.

    A question that retrieval failed on is not asked; its answer is an error, and so is one that the server does not
    give. Errors are undecided, not refusals. Replies are kept per request.
    """

    system: str = SYSTEM
    prompt: str = PROMPT
    k: int | None = None
    budget: int | None = None
    lang: str | None = None
    judge: Judge | None = None
    grader: Grader | None = None
    hand: str | None = None
    code: ClassVar[int] = 1
    what: ClassVar[str] = "answerer chat"
    not_in_key: ClassVar[tuple[str, ...]] = (*Endpoint.not_in_key, "hand")

    def __post_init__(self) -> None:
        ChatModel.__post_init__(self)
        for name in ("k", "budget"):
            if getattr(self, name) is not None:
                self._whole(name, 1)
        for name in ("system", "prompt"):
            _template(getattr(self, name), f"{self.what}: {name}", NAMES)
        if self.lang is not None:
            phrases.check_languages([self.lang])
        for name, kind in (("judge", Judge), ("grader", Grader)):
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                raise ConfigError(
                    f"{self.what}: {name} must be a {__name__}.{kind.__name__}, found {type(given).__name__}"
                )

    def identity(self) -> str:
        """The address, and the content of the labels by hand."""
        return ChatModel.identity(self) + (f" {content_hash(self.hand, self.what)}" if self.hand else "")

    def generate(self, bench: Bench, ranked: Ranked, questions: Sequence[Question], plan: Plan) -> Written:
        answers: dict[str, Answer] = {}
        asked: list[Question] = []
        bodies: list[dict[str, Any]] = []
        for i, (question, text) in enumerate(zip(questions, bench.queries.texts, strict=True)):
            if i in ranked.errors or not text.strip():
                answers[question.id] = Answer(error=f"not asked: {ranked.errors.get(i, NO_TEXT)}")
                continue
            units = ranked.unit[ranked.offsets[i] : ranked.offsets[i + 1]].tolist()
            asked.append(question)
            bodies.append(self._body(text, question, self.context(bench.table, units, plan)))
        replies = self.replies(bench.cache, bodies, _schema("answerable", "answer"), "answerable")
        for question, reply in zip(asked, replies, strict=True):
            if isinstance(reply, str):
                answers[question.id] = Answer(error=reply)
            else:
                answers[question.id] = Answer(text=reply["text"], structured=reply["flag"], lang=self.lang)
        failed = sum(isinstance(reply, str) for reply in replies)
        facts = {**self.bill(replies, "answerer"), "answerer_failed": float(failed)}
        notes = (f"{failed} of {len(asked)} questions got no answer from {self.model}",) if failed else ()
        judge, more, said = asked_judge(self.judge, bench.cache, asked, answers, plan.phrases)
        return Written(dict(sorted(answers.items())), judge, facts | more, (*notes, *said))

    def context(self, table: ChunkTable, units: Sequence[int], plan: Plan) -> list[dict[str, Any]]:
        """The chunks that are sent, in order, the last one perhaps cut."""
        from denominator.tokens import token_ends

        budget = plan.budget if self.k is None and self.budget is None else self.budget
        chunks: list[dict[str, Any]] = []
        left = math.inf if budget is None else budget
        for unit in units[: self.k]:
            text, tokens = table.sent(unit), int(table.tokens[unit])
            if tokens > left:
                if plan.budget_cut == "whole" or left < 1:
                    break
                text = text[: token_ends(text)[int(left) - 1]]
            document = table.documents[table.units.doc[unit]]
            chunks.append(
                {"number": len(chunks) + 1, "id": table.units.ids[unit], "title": document.title or "", "text": text}
            )
            left -= tokens
            if left <= 0:
                break
        return chunks

    def _body(self, text: str, question: Question, chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        values = {
            "question": text,
            "chunks": chunks,
            "context": "\n\n".join(chunk["text"] for chunk in chunks),
            "history": question.history,
            "lang": question.lang,
        }
        try:
            parts = [_template(getattr(self, n), f"{self.what}: {n}", NAMES)(**values) for n in ("system", "prompt")]
        except Exception as error:  # whatever a template does wrong shows with its first question
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{self.what}: the prompt cannot be filled for question {question.id!r}: {why}") from None
        return self.body(parts[0], parts[1])
