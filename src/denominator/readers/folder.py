"""A folder of documents (plain text, Markdown, HTML) with questions in the native form.

A document's id is its path below the folder, with `/`. Offsets refer to the text as read: plain text and Markdown are
taken as they stand (without a byte-order mark, line ends kept), of HTML the visible text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from denominator.errors import ConfigError, InputError
from denominator.readers.build import dataset
from denominator.readers.native import read_questions, unread_note
from denominator.readers.textfiles import as_path, byte_lines, decode
from denominator.types import Dataset, Document

PLAIN = frozenset({".txt", ".text", ".md", ".markdown", ".rst"})
HTML = frozenset({".html", ".htm", ".xhtml"})
_HIDDEN = frozenset({"script", "style", "template", "noscript", "head", "svg"})
_BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset", "figcaption", "figure"}
    | {"footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre"}
    | {"section", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul"}
)


class _Visible(HTMLParser):
    """Visible text of a page, a line break at every block; `<title>` apart."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title: list[str] = []
        self.hidden: list[str] = []
        self.in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag == "title":
            self.in_title = True
        elif tag in _HIDDEN:
            self.hidden.append(tag)
        elif tag == "body":
            self.hidden.clear()  # a head or svg that nobody closed
        elif tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self.in_title = False
        elif tag in _HIDDEN:
            if tag in self.hidden:
                del self.hidden[self.hidden.index(tag) :]
        elif tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self.in_title:
            self.title.append(data)
        elif not self.hidden:
            self.parts.append(data)


def html_text(page: str) -> tuple[str, str | None]:
    r"""The visible text of a page and its title. Runs of blanks become one, runs of blank lines too.

    >>> html_text("<title>T</title><p>One  &amp; two</p><script>x</script><p>three")
    ('One & two\n\nthree', 'T')
    """
    parser = _Visible()
    parser.feed(page)
    parser.close()
    text = re.sub(r"[^\S\n]+", " ", "".join(parser.parts))
    text = re.sub(r" ?\n ?", "\n", text)
    title = " ".join("".join(parser.title).split())
    return re.sub(r"\n{3,}", "\n\n", text).strip(), title or None


def read_documents(folder: str | Path, *, unread: Counter[str] | None = None) -> Iterator[Document]:
    """Documents in the order of their ids. Files of other kinds are counted in `unread`, hidden ones are passed over.

    Errors: `InputError` for a missing folder, one without documents, an empty or undecodable file.
    """
    folder = as_path(folder)
    if not folder.is_dir():
        raise InputError("no such folder", path=folder, expected="a folder of .txt, .md or .html files")
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    found = False
    for name in sorted(files):
        path = files[name]
        if any(part.startswith(".") for part in Path(name).parts):
            continue
        ending = path.suffix.lower()
        if ending not in PLAIN | HTML:
            if unread is not None:
                unread[ending or path.name] += 1
            continue
        found = True
        text = decode(b"".join(line for _, line in byte_lines(path, ends=True)), path, None)
        title = None
        if ending in HTML:
            text, title = html_text(text)
            if not text:
                raise InputError("has no visible text", path=path, expected="a page with text")
        yield Document(name, text, title)
    if not found:
        raise InputError(
            "holds no documents", path=folder, expected="files that end in " + ", ".join(sorted(PLAIN | HTML))
        )


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of text, Markdown and HTML, and questions about it; relative paths start at the folder of the call."""

    documents: str
    questions: str
    name: str = ""
    assume_answerable: bool = False
    cluster: str | None = None
    lang: str = "en"

    def load(self) -> Dataset:
        if not self.documents or not self.questions:
            raise ConfigError("a folder needs documents=FOLDER and questions=FILE")
        kinds: Counter[str] = Counter()
        fields: Counter[str] = Counter()
        documents = tuple(read_documents(self.documents, unread=kinds))
        questions = tuple(
            read_questions(
                self.questions,
                texts={d.id: d.text for d in documents},
                text_required=True,
                cluster=self.cluster,
                lang=self.lang,
                unread=fields,
            )
        )
        notes = list(unread_note(fields))
        if kinds:
            notes.append("files of other kinds, not read: " + ", ".join(f"{k} ({n})" for k, n in sorted(kinds.items())))
        return dataset(
            documents,
            questions,
            name=self.name or as_path(self.documents).absolute().name,
            assume_answerable=self.assume_answerable,
            source=self.documents,
            notes=notes,
        )
