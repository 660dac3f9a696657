# ruff: noqa: E501 (a broken file and its whole message stand on one line)
"""A folder of documents: ids are paths, text stays as it stands, HTML becomes its visible text."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from denominator.errors import InputError
from denominator.readers.folder import Folder, html_text, read_documents
from denominator.types import Evidence


def folder(path: Path) -> Path:
    (path / "docs" / "b").mkdir(parents=True)
    (path / "docs" / "b" / "one.md").write_bytes("# Über\r\n\r\ntext\r\n".encode())
    (path / "docs" / "a.txt").write_bytes(b"\xef\xbb\xbfplain")
    (path / "docs" / "page.html").write_text(
        "<html><head><title>A  page</title><style>p {}</style></head><body><p>One &lt;b&gt;\n two</p>"
        "<script>var x = '<p>no</p>';</script><ul><li>three<li>four</ul></body></html>"
    )
    (path / "docs" / "picture.png").write_bytes(b"\x89PNG")
    (path / "docs" / ".hidden.txt").write_text("no")
    (path / "questions.jsonl").write_text(
        '{"id": "q", "question": "x", "state": "answerable", '
        '"gold": [{"document_id": "b/one.md", "start": 2, "end": 6, "text": "Über"}]}\n',
        encoding="utf-8",
    )
    return path


def test_folder(tmp_path: Path) -> None:
    folder(tmp_path)
    made = Folder(str(tmp_path / "docs"), str(tmp_path / "questions.jsonl")).load()
    assert [(d.id, d.text, d.title) for d in made.documents] == [
        ("a.txt", "plain", None),
        ("b/one.md", "# Über\r\n\r\ntext\r\n", None),
        ("page.html", "One <b>\n two\n\nthree\nfour".replace("\n ", "\n"), "A page"),
    ]
    assert made.questions[0].gold == ((Evidence("b/one.md", 2, 6),),)
    assert made.notes == (
        f"offsets refer to extracted text (documents.jsonl of the sweep or run): 1 .html by html.parser of Python {sys.version.split()[0]}",
        "files of other kinds, not read: .png (1)",
        "hidden, not read: 1 (.hidden.txt)",
    )


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>a<br>b", "a\nb"),
        ("<p>a<br/>b<br />c", "a\nb\nc"),
        ("dif&shy;ficult", "difficult"),
        (
            "<table><tr><td><p>a</p></td><td>b<table><tr><td>c<td>d</table></td></tr><tr><td>e</table>f",
            "a\tb\n\nc\td\n\ne\n\nf",
        ),
        ("a<script>b", "a"),
        ("<svg><text>no</text></svg>yes", "yes"),
        ("<head><style>x</style><body>text", "text"),
        ("one&nbsp;two", "one two"),
        ("<!-- no --><td>x</td><td>y</td>", "x\ty"),
        ("&unknown; &amp;", "&unknown; &"),
        ("", ""),
    ],
)
def test_visible_text(page: str, text: str) -> None:
    assert html_text(page)[0] == text


@pytest.mark.parametrize(
    "page",
    [
        "<head><title>Page</title></head><body><svg><title>Logo</title></svg>Text",
        "<body><svg><title>Logo</title></svg><title>Page</title>Text",
        "<title>Page</title><title>Again</title>Text",
    ],
)
def test_the_title_of_a_drawing_is_not_the_pages(page: str) -> None:
    assert html_text(page) == ("Text", "Page")


def test_any_markup_gives_text_and_no_traceback() -> None:
    pieces = ["<p>", "</p>", "<script>", "</script>", "<", ">", "&", "&#x110000;", "&#0;", "<!--", "-->", "<![CDATA[", "]]>", "x", "<title>", "</head>", "<?php", '="']  # fmt: skip
    rng = random.Random(0)
    for _ in range(500):
        text, _title = html_text("".join(rng.choice(pieces) for _ in range(rng.randrange(30))))
        assert text == text.strip()


def test_broken_folders(tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            tuple(read_documents(path))
        return str(caught.value).replace(str(path), "DIR")

    endings = "files that end in .docx, .htm, .html, .markdown, .md, .pdf, .rst, .text, .txt, .xhtml"
    assert refusal(tmp_path / "none") == f"DIR: no such folder; expected a folder of {endings}"
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty") == f"DIR: holds no documents; expected {endings}"
    for name, content, message in (
        ("a.txt", b"", "DIR/a.txt: is empty; expected at least one line"),
        ("a.txt", b"x\xff", "DIR/a.txt: byte 2 is not UTF-8; found 0xff; expected UTF-8 text; to mend it: save the file as UTF-8"),
        ("a.md", "x".encode("utf-16"), "DIR/a.md: is UTF-16; expected UTF-8 text; to mend it: save the file as UTF-8"),
        ("a.html", b"<script>x</script>", "DIR/a.html: has no visible text; expected a page with text"),
    ):  # fmt: skip
        path = tmp_path / f"case-{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        (path / name).write_bytes(content)
        assert refusal(path) == message
