# ruff: noqa: E501 (a broken file and its whole message stand on one line)
"""PDF and DOCX: the text a person reads, offsets that hold, and an error that names the file for everything else."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denominator.cli import main
from denominator.errors import InputError, MissingExtraError
from denominator.fingerprint import corpus_hash
from denominator.readers import extract, native
from denominator.readers.extract import Extractor
from denominator.readers.folder import Folder, read_documents
from denominator.types import Document, Evidence
from tests.blank_store import blank_store
from tests.conftest import examples
from tests.document_files import DATA, docx, paragraph, pdf, table

pytest.importorskip("pypdfium2", reason="needs denominator[documents]")
pytest.importorskip("mammoth", reason="needs denominator[documents]")


@pytest.fixture(scope="module")
def extractor() -> Iterator[Extractor]:
    with Extractor() as made:
        yield made


def text_of(extractor: Extractor, path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return extractor.read(path).text


def test_a_real_pdf_with_ligatures_columns_hyphens_and_a_table(extractor: Extractor) -> None:
    made = extractor.read(DATA / "two_columns.pdf")
    pages = made.text.split("\n\f")
    assert len(pages) == 2
    for words in (
        "Office efficiency: a first affair\n",
        "The officer filed an affidavit about the efficient\nflow of fluffy waffles. The difficulty of configuration is significant",
        "original receipt can be presented at the\ncounter of the flagship shop. Appliances that\nwere used are excluded from that rule without\nany exception whatsoever.\nThird paragraph: opening hours",
        "the well-known exception is\nDecember.\nPrices\nModel Price Weight\nToaster A €39.90 1.2 kg\nKettle B €24.50 0.9 kg",
    ):
        assert words in pages[0]
    assert pages[1] == "Page two\nGrüße aus Köln. Ελληνικά. Кириллица. The last page ends here."
    assert made.by.startswith("pypdfium2 ")
    assert "PDFium " in made.by
    assert made.notes == ()


def test_pages_can_be_told_apart_and_blank_ones_are_counted(extractor: Extractor, tmp_path: Path) -> None:
    path = tmp_path / "a.PDF"  # the ending in any case
    path.write_bytes(pdf(["one", "two"], [], ["four"]))
    made = extractor.read(path)
    assert made.text == "one\ntwo\n\f\n\ffour"
    assert made.notes == ("pages without text: 1 of 3",)


def test_words_broken_at_a_line_are_joined_where_both_parts_are_lower_case(
    extractor: Extractor, tmp_path: Path
) -> None:
    content = pdf(["a config-", "uration, an e-mail-", "Address, from 2019-", "2020 -", "end"])
    assert text_of(extractor, tmp_path / "a.pdf", content) == (
        "a configuration, an e-mail-Address, from 2019-\n2020 -\nend"
    )


def test_docx_keeps_tables_lists_changes_and_footnotes(extractor: Extractor, tmp_path: Path) -> None:
    body = (
        paragraph("Returns")
        + '<w:p><w:r><w:t xml:space="preserve">Within </w:t></w:r><w:ins w:id="1"><w:r><w:t>thirty</w:t></w:r></w:ins>'
        '<w:del w:id="2"><w:r><w:delText>sixty</w:delText></w:r></w:del><w:r><w:t xml:space="preserve"> days.</w:t>'
        '<w:br/><w:t>Next line.</w:t></w:r></w:p><w:p><w:r><w:br w:type="page"/></w:r></w:p>'
        + table(["Model", "Price"], ["Toaster &lt;A&gt;", "€39.90"])
        + f"<w:sdt><w:sdtContent>{paragraph('in a field')}</w:sdtContent></w:sdt>"
        + paragraph("dif\u00adficult 漢字")
    )
    assert text_of(extractor, tmp_path / "a.docx", docx(body)) == (
        "Returns\n\nWithin thirty days.\nNext line.\n\nModel\tPrice\nToaster <A>\t€39.90\n\nin a field\n\ndifficult 漢字"
    )


def test_what_a_docx_holds_and_is_not_read_is_named(extractor: Extractor, tmp_path: Path) -> None:
    path = tmp_path / "a.docx"
    field = '<w:p><w:fldSimple w:instr="PAGE"><w:r><w:t>7</w:t></w:r></w:fldSimple></w:p>'
    formula = '<w:p><m:oMath xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"/></w:p>'
    path.write_bytes(docx(paragraph("Energy") + 2 * field + formula, header="<w:hdr/>"))
    made = extractor.read(path)
    assert (made.text, made.notes) == ("Energy", ("elements that were not read: fldSimple, oMath",))


def test_a_folder_of_every_kind(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.pdf").write_bytes(pdf(["Open at nine."], []))
    (folder / "b.docx").write_bytes(docx(paragraph("Closed on Sunday.")))
    (folder / "c.html").write_text("<p>Returns: thirty days.")
    (folder / "d.md").write_text("# Repairs\n")
    (folder / "~$b.docx").write_bytes(b"\x05lock")
    (tmp_path / "q.jsonl").write_text(
        '{"id": "q", "question": "When?", "state": "answerable", "gold": [{"document_id": "a.pdf", "start": 8, "end": 12, "text": "nine"}]}\n'
    )
    data = Folder(str(folder), str(tmp_path / "q.jsonl")).load()
    texts = {"a.pdf": "Open at nine.\n\f", "b.docx": "Closed on Sunday.", "c.html": "Returns: thirty days.", "d.md": "# Repairs\n"}  # fmt: skip
    assert {d.id: d.text for d in data.documents} == texts
    assert data.corpus_hash == corpus_hash(Document(i, t) for i, t in texts.items())
    assert data.questions[0].gold == ((Evidence("a.pdf", 8, 12),),)
    by, *others = data.notes
    assert by.startswith("offsets refer to extracted text (documents.jsonl of the sweep or run): 1 .docx by mammoth 1.")
    assert ", 1 .html by html.parser of Python 3." in by
    assert ", 1 .pdf by pypdfium2 5." in by
    assert others == ["hidden, not read: 1 (~$b.docx)", "a.pdf: pages without text: 1 of 2"]


# ------------------------------------------------------------------ files that give no text


def lying(content: bytes) -> bytes:
    """A DOCX whose directory says that its document is 2 GB."""
    at = content.rindex(b"word/document.xml") - 46
    return content[: at + 24] + struct.pack("<I", 2**31 - 1) + content[at + 28 :]


def modest(size: int) -> bytes:
    """A DOCX whose document is larger than its directory says."""
    made = docx("<!--" + " " * size + "-->" + paragraph("x"))
    at = made.rindex(b"word/document.xml") - 46
    return made[: at + 24] + struct.pack("<I", 1000) + made[at + 28 :]


def other_zip() -> bytes:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("mimetype", "application/epub+zip")
    return packed.getvalue()


def locked_zip() -> bytes:
    made = docx(paragraph("x"))
    at = made.rindex(b"word/document.xml") - 46
    return made[: at + 8] + b"\x01" + made[at + 9 :]


VIEW = "; to mend it: open it in a viewer and save it again, or take it out of the folder"
WORD = "; to mend it: open it in a word processor and save it as .docx again, or take it out of the folder"
BROKEN = [
    ("a.pdf", b"", "is empty (0 bytes); expected a PDF file"),
    ("a.pdf", b"<html>", "is no PDF; found '<html>'; expected a file that begins with %PDF-" + VIEW),
    ("a.pdf", b"%PDF-1.4\nnothing", "is a damaged PDF; found Failed to load document (PDFium: Data format error).; expected a PDF that opens" + VIEW),
    ("a.pdf", (DATA / "locked.pdf").read_bytes(), "is locked with a password; expected a PDF that opens without one; to mend it: save a copy without it (qpdf --decrypt --password=… IN OUT)"),
    ("a.pdf", pdf([], []), "has no text layer; found 2 pages without a character (scanned?); expected text; to mend it: recognise its text first (ocrmypdf IN OUT), or take it out of the folder"),
    ("a.pdf", pdf(), "is a damaged PDF; found Failed to load document (PDFium: Data format error).; expected a PDF that opens" + VIEW),
    ("a.docx", b"", "is empty (0 bytes); expected a DOCX file"),
    ("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600, "is locked with a password, or an old .doc file; expected a .docx without a password; to mend it: open it in a word processor and save a copy as .docx without a password"),
    ("a.docx", b"text", "is a broken zip, so no DOCX; found File is not a zip file; expected a whole file" + WORD),
    ("a.docx", docx(paragraph("x"))[:-30], "is a broken zip, so no DOCX; found File is not a zip file; expected a whole file" + WORD),
    ("a.docx", modest(5000), "is a broken zip, so no DOCX; found Bad CRC-32 for file 'word/document.xml'; expected a whole file" + WORD),
    ("a.docx", lying(docx(paragraph("x"))), "unpacks to too much (a zip bomb?); found 2,048 MB in 0.0 MB; expected at most 512 MB; to mend it: take its pictures out and save it again, or take it out of the folder"),
    ("a.docx", locked_zip(), "is locked with a password; expected a .docx without a password" + WORD),
    ("a.docx", other_zip(), "is a zip, but no DOCX; found mimetype; expected a Word document"),
    ("a.docx", docx("<w:p>"), "holds broken XML; found mismatched tag: line 1, column 98; expected a Word document" + WORD),
    ("a.docx", docx("<w:p/>"), "has no text; found no characters (only pictures?); expected text; to mend it: take it out of the folder"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BROKEN, ids=range(len(BROKEN)))
def test_no_text_is_an_error_and_never_an_empty_document(
    extractor: Extractor, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        extractor.read(path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_page_that_is_damaged_is_named(extractor: Extractor, tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(["one"], ["two"]).replace(b"7 0 obj", b"9 0 obj"))
    with pytest.raises(InputError, match=r"a\.pdf: page 2 of 2 cannot be read; found Failed to load page"):
        extractor.read(path)


def test_a_file_that_takes_too_long_or_crashes_its_reader_is_named_and_the_next_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(["text"]))
    with Extractor(0.001) as hasty:
        with pytest.raises(InputError) as caught:
            hasty.read(path)
        assert str(caught.value) == (
            f"{path}: was not read in 0.001 s; expected an ordinary document; "
            "to mend it: split it, take it out of the folder, or give it more time (dataset.seconds_per_file)"
        )
        hasty.seconds = 60
        crashed = [sys.executable, "-c", "import os; os.abort()"]
        hasty._process = subprocess.Popen(crashed, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with pytest.raises(
            InputError, match=r"a\.pdf: crashed its reader, or needs more than 2 GB of memory; found exit code -6"
        ):
            hasty.read(path)
        assert hasty.read(path).text == "text"


def test_without_the_extra_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "find_spec", lambda _: None)
    (tmp_path / "a.pdf").write_bytes(pdf(["x"]))
    with pytest.raises(MissingExtraError) as caught:
        tuple(read_documents(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path / 'a.pdf'}: reading PDF files needs an extra: pip install 'denominator[documents]'"
    )


# ------------------------------------------------------------------ folders


def test_links_names_and_locks(tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            tuple(read_documents(path))
        return str(caught.value).replace(str(path), "DIR").replace(str(tmp_path), "TMP")

    (tmp_path / "secret.txt").write_text("x")
    (tmp_path / "other").mkdir()
    cases = [
        ("out", "a.txt", tmp_path / "secret.txt", "DIR/a.txt: is a link out of the folder; found TMP/secret.txt; expected files inside of it; to mend it: copy the file there"),
        ("nothing", "a.txt", tmp_path / "absent", "DIR/a.txt: is a link to nothing; expected a file; to mend it: mend the link or remove it"),
        ("itself", "a.txt", Path("a.txt"), "DIR/a.txt: is a link to nothing; expected a file; to mend it: mend the link or remove it"),
        ("folder", "below", tmp_path / "other", "DIR/below: is a link to a folder; found TMP/other; expected files and folders, whose paths are the ids; to mend it: copy the folder there, or read it by itself"),
    ]  # fmt: skip
    for folder, name, target, message in cases:
        path = tmp_path / folder
        path.mkdir()
        (path / name).symlink_to(target)
        assert refusal(path) == message
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "a.txt").write_text("x")
    (inside / "b.txt").symlink_to("a.txt")
    assert [d.id for d in read_documents(inside)] == ["a.txt", "b.txt"]
    if sys.platform == "linux":
        bad = tmp_path / "bad"
        bad.mkdir()
        Path(os.fsdecode(os.fsencode(bad) + b"/\xff.txt")).write_text("x")
        assert refusal(bad) == (
            "DIR/\\xff.txt: has a name that is not UTF-8; expected a name that can be an id; to mend it: rename it"
        )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list any folder")
def test_a_folder_that_may_not_be_listed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    shut = tmp_path / "shut"
    shut.mkdir(mode=0)
    with pytest.raises(InputError, match="shut: cannot be listed; found Permission denied"):
        tuple(read_documents(tmp_path))


# ------------------------------------------------------------------ damaged files

ORIGINALS = {
    ".pdf": (DATA / "two_columns.pdf").read_bytes(),
    ".docx": docx(paragraph("Returns within thirty days.") + table(["Model", "Price"], ["Toaster", "39"])),
}


@pytest.mark.parametrize("ending", ORIGINALS)
@given(seed=st.integers(0, 2**32), cut=st.floats(0, 1), changes=st.integers(0, 20))
@settings(max_examples=examples(40), deadline=None)
def test_damage_gives_text_or_an_error_that_names_the_file(
    ending: str, seed: int, cut: float, changes: int, extractor: Extractor, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)
    content = bytearray(ORIGINALS[ending])
    for _ in range(changes):
        content[rng.randrange(len(content))] = rng.randrange(256)
    if cut < 0.5:
        del content[int(2 * cut * len(content)) :]
    path = tmp_path_factory.getbasetemp() / f"damaged{ending}"
    path.write_bytes(content)
    try:
        text = extractor.read(path).text
    except InputError as error:
        text = str(error).partition(f"{path}: ")[2]
    assert text.strip()


# ------------------------------------------------------------------ with the commands


@pytest.mark.slow
def test_the_extracted_text_is_kept_with_the_run_as_a_corpus_of_the_same_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blank_store(tmp_path / "denominator-out")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.pdf").write_bytes(pdf(["Open at", "nine."], ["Closed on Sundays."]))
    (tmp_path / "docs" / "b.docx").write_bytes(docx(paragraph("Returns within thirty days.")))
    (tmp_path / "docs" / "c.html").write_text("<title>Repairs</title><p>Repairs cost 15.")
    asked = [("a.pdf", "Open at nine."), ("b.docx", "thirty days"), ("c.html", "15")]
    (tmp_path / "questions.jsonl").write_text(
        "".join(
            json.dumps({"id": d, "question": f"What of {d}?", "state": "answerable", "gold": [{"document_id": d, "text": t}]})
            + "\n"
            for d, t in asked
        )
    )  # fmt: skip
    command = ["dataset=folder", "dataset.documents=docs", "chunker=whole", "reranker=none", "ks=[1]", "-q"]
    assert main(["run", *command, "embedder=bm25"]) == 0
    assert main(["sweep", *command, "embedder=bm25,static"]) == 0
    one, many = sorted(Path("denominator-out/artifacts").glob("*/artifacts/documents.jsonl"))
    assert one.read_bytes() == many.read_bytes()
    kept = tuple(native.read_documents(one))
    cells = [json.loads(path.read_text()) for path in Path("denominator-out/artifacts").glob("*/artifacts/cell.json")]
    assert {cell["dataset"]["corpus_hash"] for cell in cells} == {corpus_hash(kept)}
    assert kept[0].text[0:13] == "Open at\nnine."
    for cell in cells:
        assert [by.split(" by ")[0] for by in cell["dataset"]["extracted"]] == ["1 .docx", "1 .html", "1 .pdf"]


def test_doctor_names_every_file_that_gives_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/a.txt").write_text("Open at nine.")
    Path("docs/b.pdf").write_bytes(pdf([]))
    Path("docs/c.docx").write_bytes(b"PK")
    Path("docs/d.html").write_text("<p>")
    Path("docs/e.txt").symlink_to("/etc/hostname")
    Path("q.jsonl").write_text('{"id": "q", "question": "x", "state": "answerable", "gold": ["a.txt"]}\n')
    assert main(["doctor", "--folder", "docs", "--questions", "q.jsonl"]) == 1
    printed = capsys.readouterr().out
    for words in (
        "b.pdf: has no text layer",
        "c.docx: is a broken zip",
        "d.html: has no visible text",
        "e.txt: is a link out",
    ):
        assert f"docs/{words}" in printed
