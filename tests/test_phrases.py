"""The refusal lists of phrases-v2: writing variants, versions, languages; what they find is measured on the page."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from benchmarks.phrases import BY_HAND, by_hand, real

from denominator import phrases
from denominator.abstention import decide, report
from denominator.errors import ConfigError
from denominator.records import plan_from_json, plan_to_json
from denominator.types import Answer, Outcome, Plan
from tests.conftest import shared_path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "abstention_measured.md"
NEW = ("ja", "he", "ar")


def refused(text: str, lang: str, version: str = phrases.VERSION) -> bool | None:
    return decide(Answer(text=text), lang, version=version).abstained


@pytest.mark.parametrize(
    ("lang", "plain", "variants"),
    [
        (
            "ja",
            "わかりません。",
            [
                "分かりません。",
                "判りません",
                "わ か り ま せ ん",
                "わかりません｡",
                "わかり\u200bません。",
                "すみません、わかりません！",
            ],
        ),
        ("ja", "この質問には答えられません。", ["この質問に答えることができません", "ご質問には回答出来ません。"]),
        ("ja", "テキストには答えがありません。", ["ﾃｷｽﾄには答えがありません。", "テ\u3000キストには答えがありません"]),
        ("ja", "提供された文脈には記載がない。", ["提供された文脈には、価格についての記載がなかった。"]),
        (
            "he",
            "אני לא יודע.",
            ["אֲנִי לֹא יוֹדֵעַ.", "\u200fאני לא יודעת\u200f", "אני לא\u00adיודע".replace("\u00ad", " "), "אני  לא   יודע!"],
        ),
        ("he", "לא ניתן לקבוע זאת לפי הטקסט.", ["אי־אפשר לקבוע זאת לפי הטקסט", "איני יכולה לקבוע זאת על סמך המסמך"]),
        ("ar", "لا أعرف.", ["لَا أَعْرِفُ", "لا اعرف", "لا أعــــرف", "ﻻ ﺃﻋﺮﻑ", "\u200fلا أعرف\u200f؟", "أنا لا أعرف۔"]),
        ("ar", "المعلومات غير كافية.", ["المعلومات غير كافيه", "المَعلوماتُ غيرُ كافيةٍ", "المعلومات المقدمة غير كافية"]),
        ("ar", "لا یحتوي السیاق على ذلك", ["لا يحتوي السياق على ذلك", "السياق لا يحتوي على ذلك"]),
    ],
)
def test_ways_of_writing_do_not_matter(lang, plain, variants):
    assert refused(plain, lang) is True
    assert {v: refused(v, lang) for v in variants} == dict.fromkeys(variants, True)


@pytest.mark.parametrize(
    ("lang", "text"),
    [
        ("ja", "このレストランはいくら勧めても足りません。"),
        ("ja", "雨が降るかどうかは天気予報を見ないとわかりません。"),
        ("ja", "いいえ、会員でない方は予約できません。"),
        ("he", "אני לא יכול להמליץ על המסעדה הזו מספיק."),
        ("he", "המשתמש לא יודע את הסיסמה."),
        ("ar", "لا أستطيع أن أوصي بهذا المطعم بما يكفي."),
        ("ar", "المستخدم لا يعرف كلمة المرور."),
        ("en", "I cannot recommend this restaurant enough."),
    ],
)
def test_answers_that_sound_like_refusals(lang, text):
    assert refused(text, lang) is False


def test_a_refusal_with_more_text_is_undecided():
    """8 tokens of regex-v1 are 8 characters in Japanese and 8 words in Arabic and Hebrew, points and marks aside."""
    assert refused("わかりません。サポートまでどうぞ。", "ja") is None
    assert refused("わかりません。パリです。", "ja") is True
    rest = "وُقِّعَتِ الوَثيقَةُ في فيينا في عام ألف وثمانمائة"
    assert refused(f"لا أعرف. {rest}.", "ar") is True
    assert refused(f"لا أعرف. {rest} وخمسة عشر.", "ar") is None


@pytest.mark.parametrize("lang", NEW)
def test_patterns_are_written_as_what_they_read(lang):
    """A pattern with a letter that folding replaces could never match."""
    for pattern in phrases.PATTERNS["phrases-v2"][lang]:
        normal = unicodedata.normalize("NFKC", pattern).casefold()
        bare = phrases._DROPPED[lang].sub("", normal) if lang != "ja" else normal
        assert bare.translate(phrases._WRITTEN_AS.get(lang, {})) == pattern


def test_versions():
    """Old records name no version: they were read by phrases-v1, and say so when they are summed up again."""
    for lang in NEW:
        assert decide(Answer(text="x"), lang, version="phrases-v1").rung == "no_patterns"
        assert decide(Answer(text="x"), lang).rung == "phrase"
    assert Plan().phrases == phrases.VERSION == "phrases-v2"
    old = {k: v for k, v in plan_to_json(Plan()).items() if k != "phrases"}
    assert plan_from_json(old).phrases == "phrases-v1"
    assert plan_from_json(plan_to_json(Plan())) == Plan()
    made = [Outcome("a", "unanswerable", "unanswerable", "ok", abstained=True, rung="phrase", answer="I don't know.")]
    assert report(made, plan_from_json(old)).as_dict()["phrases"] == "phrases-v1"
    assert report(made, Plan()).as_dict()["phrases"] == "phrases-v2"


def test_languages():
    assert phrases.languages("phrases-v1") == ("de", "en", "es", "fr", "zh")
    assert phrases.languages() == ("ar", "de", "en", "es", "fr", "he", "ja", "zh")
    assert refused("איני יודע", "iw") is True  # the code that RFC 5646 keeps for Hebrew
    assert refused("わかりません", "ja-JP") is True
    assert phrases.without_list("ja") is None
    assert phrases.without_list("ja", "phrases-v1") == (
        "there is no refusal list for 'ja' (there are: de, en, es, fr, zh); phrases-v2 has one"
    )
    phrases.check_languages(["en", "zh-Hant", "pt_BR", "fil"])
    for bad in ("english", "de,en", "e", "en US"):
        with pytest.raises(ConfigError, match="expected a code such as"):
            phrases.check_languages([bad])


def test_the_set_by_hand_is_balanced_and_without_repetition():
    rows = [json.loads(line) for line in BY_HAND.read_text(encoding="utf-8").splitlines()]
    assert len({(r["lang"], r["text"]) for r in rows}) == len(rows) == 340
    for lang in phrases.languages():
        here = [r["label"] for r in rows if r["lang"] == lang]
        assert here.count("refusal") == here.count("answer") == (30 if lang in NEW else 16)


def test_the_page_shows_what_is_measured_by_hand():
    page = PAGE.read_text(encoding="utf-8")
    for line in by_hand():
        assert line in page


@pytest.mark.slow
def test_the_page_shows_what_is_measured_on_real_text():
    page = PAGE.read_text(encoding="utf-8")
    table, _ = real(shared_path("data/jaquad").parent)
    for line in table:
        assert line in page


def test_what_stands_beside_a_japanese_refusal_is_counted_with_its_blanks():
    """Patterns see Japanese without blanks; a sentence of Latin words is no single token for that."""
    refusal = "この文書には記載がありません。"
    said = "The treaty was signed in 1815 by all four great powers in Vienna after long talks."
    assert decide(Answer(text=refusal + said), "ja").abstained is None
    assert decide(Answer(text=refusal + "The treaty was signed in 1815"), "ja").abstained is True
    assert decide(Answer(text="この 文書に は\u200b 記載が あり ません。"), "ja").abstained is True
