r"""Text out of HTML, PDF and DOCX files. Offsets refer to this text, so every rule of it is written down here.

HTML: the visible text, a line break at every block, a row of a table on one line with tabs between its cells, runs of
blanks as one. PDF (PDFium, through pypdfium2): lines as they are set, pages end with a line feed and a form feed (the
last one with neither), so `text.split("\n\f")` gives the pages; a word that is broken at a line's end is joined where
both parts are lower case; headers, footers and page numbers are text like any other. DOCX (mammoth, then as HTML):
paragraphs, lists, tables, text boxes, footnotes at the end, tracked changes as if accepted; no headers, footers,
comments, and no equations and fields (a note names them); it has no pages until it is printed, so a page break is a
paragraph's end.

PDF and DOCX are read by a process of its own (this module is its main program), one for a whole folder: a file that
crashes a parser, hangs it or eats the memory is an error that names the file, and not the end of the sweep.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from denominator.errors import InputError, MissingExtraError

EXTRA = "documents"
MODULES = {".pdf": "pypdfium2", ".docx": "mammoth"}
MOST_UNPACKED = 512 * 2**20
"""Bytes that a DOCX may hold when it is unpacked; text of a thousand books is less."""
MOST_MEMORY = 2 * 2**30
"""Bytes of address space of the process that reads (where the system can limit it)."""

# ------------------------------------------------------------------ HTML

_HIDDEN = frozenset({"script", "style", "template", "noscript", "head", "svg"})
_BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset", "figcaption", "figure"}
    | {"footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre"}
    | {"section", "ul", "caption"}
)
_ROWS = frozenset({"tbody", "tfoot", "thead", "tr"})
_TABLE, _ROW, _CELL = (
    "\x1d",
    "\x1e",
    "\x1f",
)  # marks between parts; the page's own control characters have become blanks before


class _Visible(HTMLParser):
    """Visible text of a page, marks at every block, row and cell; `<title>` apart."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title: list[str] = []
        self.hidden: list[str] = []
        self.in_title = self.titled = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag == "title":
            self.in_title = "svg" not in self.hidden  # there it is the name of a drawing
        elif tag in _HIDDEN:
            self.hidden.append(tag)
        elif tag == "body":
            self.hidden.clear()  # a head or svg that nobody closed
        elif tag in ("td", "th"):
            self.parts.append(_CELL)
        else:
            self._mark(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self.titled |= self.in_title
            self.in_title = False
        elif tag in _HIDDEN:
            if tag in self.hidden:
                del self.hidden[self.hidden.index(tag) :]
        elif tag not in ("br", "hr"):  # <br/> is one break
            self._mark(tag)

    def _mark(self, tag: str) -> None:
        if tag == "table":
            self.parts.append(_TABLE)
        elif tag in _ROWS:
            self.parts.append(_ROW)
        elif tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self.in_title:
            if not self.titled:  # the first title is the page's; no other one is seen
                self.title.append(data)
        elif not self.hidden:
            self.parts.append(re.sub(r"[^\S\n]+", " ", data))


def html_text(page: str) -> tuple[str, str | None]:
    r"""The visible text of a page and its title. Runs of blanks become one, runs of blank lines too.

    >>> html_text("<title>T</title><p>One  &amp; two</p><script>x</script><p>three")
    ('One & two\n\nthree', 'T')
    >>> html_text("<table><tr><th>Model</th><th>Price</th></tr><tr><td><p>Kettle</p><td>24.50</table>")[0]
    'Model\tPrice\nKettle\t24.50'
    """
    parser = _Visible()
    parser.feed(page)
    parser.close()
    text = re.sub(r" {2,}", " ", "".join(parser.parts).replace("\xad", ""))  # a soft hyphen is not seen
    text = re.sub(  # a row begins on a line of its own, a table after a blank one
        rf"(?:\s*[{_TABLE}{_ROW}])+(?:\s*{_CELL})?\s*", lambda found: "\n\n" if _TABLE in found[0] else "\n", text
    )
    text = re.sub(rf"\s*{_CELL}\s*", "\t", text)
    text = re.sub(r" ?\n ?", "\n", text)
    title = " ".join("".join(parser.title).split())
    return re.sub(r"\n{3,}", "\n\n", text).strip(), title or None


# ------------------------------------------------------------------ PDF and DOCX, inside the reading process


def page_text(raw: str) -> str:
    r"""A page as PDFium gives it, put in order: line ends, broken words, characters that are none.

    U+FFFE is PDFium's mark of a hyphen at a line's end. Between lower-case letters it goes, as soft hyphens do
    everywhere (so "well-known", broken at its hyphen, becomes "wellknown"); elsewhere it is the hyphen. Control
    characters, which fonts without a table of their characters leave, become U+FFFD, so that `doctor` sees them.

    >>> page_text("The manip\ufffeulation of an e-mail\ufffeAddress.\r\nIt con\u00adtinues dif\u2010\r\nferently.\r\n")
    'The manipulation of an e-mail-Address.\nIt continues differently.'
    """
    text = raw.replace("\r\n", "\n").replace("\xad\n", "").replace("\xad", "")
    text = re.sub("(?<=[^\\W\\d_])(?:\ufffe|\u2010\n)(?=[^\\W\\d_])", _joined, text).replace("\ufffe", "-")
    text = text.replace("\r", "")  # PDFium's mark of a line that goes on
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "\ufffd", text).strip()


def _joined(found: re.Match[str]) -> str:
    before, after = found.string[found.start() - 1], found.string[found.end()]
    return "" if before.islower() and after.islower() else "-"


def _refusal(message: str, **more: str) -> dict[str, Any]:
    return {"message": message, **more}


_AGAIN = "open it in a viewer and save it again, or take it out of the folder"


def _pdf(path: Path) -> dict[str, Any]:
    import pypdfium2

    by = f"pypdfium2 {pypdfium2.version.PYPDFIUM_INFO} (PDFium {pypdfium2.version.PDFIUM_INFO})"
    head = path.open("rb").read(1024)
    if b"%PDF-" not in head:
        return _refusal("is no PDF", found=repr(head[:16])[1:], expected="a file that begins with %PDF-", fix=_AGAIN)
    with contextlib.suppress(pypdfium2.PdfiumError):
        pypdfium2.PdfDocument(b"")  # PDFium keeps its last error: a document of no pages would show an earlier one's
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == pypdfium2.raw.FPDF_ERR_PASSWORD:
            return _refusal(
                "is locked with a password",
                expected="a PDF that opens without one",
                fix="save a copy without it (qpdf --decrypt --password=… IN OUT)",
            )
        return _refusal("is a damaged PDF", found=str(error), expected="a PDF that opens", fix=_AGAIN)
    pages = []
    for i in range(len(document)):
        try:
            page = document[i]
            inside = page.get_textpage()
            pages.append(page_text(inside.get_text_range()))
            inside.close()
            page.close()
        except pypdfium2.PdfiumError as error:
            return _refusal(
                f"page {i + 1} of {len(document)} cannot be read", found=str(error), expected="whole pages", fix=_AGAIN
            )
    blank = sum(not page for page in pages)
    if blank == len(pages):
        return _refusal(
            "has no text layer",
            found=f"{len(pages)} pages without a character (scanned?)",
            expected="text",
            fix="recognise its text first (ocrmypdf IN OUT), or take it out of the folder",
        )
    notes = [f"pages without text: {blank} of {len(pages)}"] if blank else []
    return {"text": "\n\f".join(pages), "by": by, "notes": notes}


_RESAVE = "open it in a word processor and save it as .docx again, or take it out of the folder"


def _docx(path: Path) -> dict[str, Any]:
    import zipfile
    from importlib.metadata import version
    from xml.parsers.expat import ExpatError

    import mammoth

    head = path.open("rb").read(8)
    if head == b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1":
        return _refusal(
            "is locked with a password, or an old .doc file",
            expected="a .docx without a password",
            fix="open it in a word processor and save a copy as .docx without a password",
        )
    try:
        with zipfile.ZipFile(path) as packed:
            entries = packed.infolist()
            if any(entry.flag_bits & 1 for entry in entries):
                return _refusal("is locked with a password", expected="a .docx without a password", fix=_RESAVE)
            unpacked = sum(entry.file_size for entry in entries)
            if unpacked > MOST_UNPACKED:
                return _refusal(
                    "unpacks to too much (a zip bomb?)",
                    found=f"{unpacked / 2**20:,.0f} MB in {path.stat().st_size / 2**20:,.1f} MB",
                    expected=f"at most {MOST_UNPACKED // 2**20} MB",
                    fix="take its pictures out and save it again, or take it out of the folder",
                )
            if "[Content_Types].xml" not in packed.namelist():
                return _refusal(
                    "is a zip, but no DOCX", found=", ".join(packed.namelist()[:3]), expected="a Word document"
                )
        with path.open("rb") as file:
            made = mammoth.convert_to_html(
                file,
                convert_image=lambda _: [],  # a picture is no text
                style_map="br[type='page'] => hr",
                external_file_access=False,
            )
    except (zipfile.BadZipFile, EOFError) as error:
        return _refusal("is a broken zip, so no DOCX", found=str(error), expected="a whole file", fix=_RESAVE)
    except ExpatError as error:
        return _refusal("holds broken XML", found=str(error), expected="a Word document", fix=_RESAVE)
    except (KeyError, IndexError, AttributeError, ValueError, TypeError) as error:  # parts that are absent or misplaced
        found = f"{type(error).__name__}: {error}"
        return _refusal("is a damaged DOCX", found=found, expected="a Word document", fix=_RESAVE)
    text, _ = html_text(made.value)
    if not text:
        return _refusal(
            "has no text", found="no characters (only pictures?)", expected="text", fix="take it out of the folder"
        )
    names = (m.message.partition("unrecognised element was ignored: ")[2] for m in made.messages)  # each kind once
    lost = sorted({name.rpartition("}")[2].rpartition(":")[2] for name in names if name})
    notes = [f"elements that were not read: {', '.join(lost)}"] if lost else []
    return {"text": text, "by": f"mammoth {version('mammoth')}", "notes": notes}


_READERS = {".pdf": _pdf, ".docx": _docx}


def _read(ending: str, path: Path) -> dict[str, Any]:
    try:
        return _READERS[ending](path)
    except OSError as error:
        return _refusal("cannot be read", found=error.strerror or str(error))
    except MemoryError:
        return _refusal(
            "needs too much memory",
            expected=f"a file that is read in {MOST_MEMORY // 2**30} GB",
            fix="split it, or take it out of the folder",
        )
    except RecursionError:
        return _refusal("is nested too deeply", expected="an ordinary document", fix="take it out of the folder")
    except Exception as error:  # the libraries' own surprises: the file is named, whatever it was
        found = f"{type(error).__name__}: {error}"
        return _refusal("cannot be read", found=found, expected=f"a {ending} file", fix=_AGAIN)


def main() -> None:
    """Reads `[ending, path]` a line from standard input, writes what came of it a line to standard output."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a library prints does not stand between the answers
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    for line in sys.stdin:
        ending, path = json.loads(line)
        answers.write(json.dumps(_read(ending, Path(path))) + "\n")
        answers.flush()


# ------------------------------------------------------------------ PDF and DOCX, seen from outside


@dataclass(frozen=True, slots=True)
class Extracted:
    """Text of a file, what extracted it with its version, and what should be known about it."""

    text: str
    by: str
    notes: tuple[str, ...] = ()


class Extractor:
    """Reads PDF and DOCX files in a process of its own, which starts with the first file and ends with `close`."""

    def __init__(self, seconds: float = 120.0) -> None:
        self.seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Extractor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def read(self, path: Path) -> Extracted:
        """The text of a `.pdf` or `.docx`. Errors: `MissingExtraError`; `InputError` for anything that gives no text.

        No text is an error, never an empty document.
        """
        ending = path.suffix.lower()
        if find_spec(MODULES[ending]) is None:
            raise MissingExtraError(f"{path}: reading {ending[1:].upper()} files", EXTRA)
        try:
            if path.stat().st_size == 0:
                raise InputError("is empty (0 bytes)", path=path, expected=f"a {ending[1:].upper()} file")
        except OSError as error:
            raise InputError("cannot be read", path=path, found=error.strerror or str(error)) from None
        answer = self._ask(ending, path)
        if "text" in answer:
            return Extracted(answer["text"], answer["by"], tuple(answer["notes"]))
        raise InputError(
            answer["message"],
            path=path,
            found=answer.get("found"),
            expected=answer.get("expected"),
            fix=answer.get("fix"),
        )

    def _ask(self, ending: str, path: Path) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(  # noqa: S603 (this module, by this Python)
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self.seconds, stop)
        timer.start()
        try:
            with contextlib.suppress(OSError):
                process.stdin.write(json.dumps([ending, str(path.absolute())]).encode() + b"\n")
                process.stdin.flush()
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if line.endswith(b"\n"):
            made: dict[str, Any] = json.loads(line)
            return made
        self.close()
        if late.is_set():
            return _refusal(
                f"was not read in {self.seconds:g} s",
                expected="an ordinary document",
                fix="split it, take it out of the folder, or give it more time (dataset.seconds_per_file)",
            )
        return _refusal(
            f"crashed its reader, or needs more than {MOST_MEMORY // 2**30} GB of memory",
            found=f"exit code {process.returncode}",
            expected=f"a {ending[1:].upper()} file",
            fix=_AGAIN,
        )


if __name__ == "__main__":
    main()
