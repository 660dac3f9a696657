"""How refusals are worded: versions, sentinel and patterns per language. Data, with the functions that apply them.

The patterns are a heuristic that is measured like a judge (docs/abstention_measured.md has its precision).
Any change here is a new version, which is logged with every abstention report that used a pattern; a version that was
published never changes. `phrases-v1` is the list of the measurement specification (ar, he and ja have none there);
`phrases-v2` adds those three and changes nothing else.

Patterns see one sentence at a time, normalised by NFKC (so full-width and half-width forms and Arabic and Hebrew
presentation forms are ordinary letters), with ’ written as ' and casefolded (ß is ss by then). What `folded` does on
top of that concerns the languages of v2 alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from denominator.errors import ConfigError

VERSION: Final = "phrases-v2"
SENTINEL: Final = "NO_ANSWER"
MAX_REMAINDER_TOKENS: Final = 8
"""Tokens (regex-v1) that may stand outside the matching sentences before a refusal becomes undecided."""

_V1: Final[dict[str, tuple[str, ...]]] = {
    "en": (
        r"\b(i|we) (do not|don't|cannot|can't|could not|couldn't|am unable to|are unable to)"
        r" (know|answer|find|determine)\b",
        r"\b(not enough|insufficient|not sufficient) (information|evidence|context)\b",
        r"\bno (relevant )?information (is |was )?(available|provided|given|found|about|on|regarding)\b",
        r"\b(documents?|context|sources?|passages?) (do not|does not|did not|don't|doesn't|didn't)"
        r" (contain|mention|provide|include|state)\b",
        r"\b(cannot|can't|could not) be (answered|determined) (from|based on|with|using)\b",
        r"^\s*unable to (answer|find|determine)\b",
    ),
    "zh": (
        r"(无法|不能)(回答|确定|判断)[^,，]{0,8}$",
        r"(资料|文档|文件|上下文|知识库|材料|文本)(中|里|内)?(并)?(没有|未|找不到)"
        r"(提供|提及|提到|说明|包含|给出|足够|相关)",
        r"(信息|资料|证据|依据)(不足|不够)",
        r"^(抱歉[,，]?)?(我|我们)(并)?不知道",
    ),
    "de": (
        r"\b(ich|wir) (weiß|weiss|wissen) (es |das )?nicht\b",
        r"\b(kann|können) (ich |wir )?(diese |die |ihre )?(frage )?nicht (beantworten|beantwortet werden)\b",
        r"\b(nicht genügend|nicht genug|keine ausreichenden) informationen\b",
        r"\b(dokumente?|kontext|quellen?) (enthält|enthalten|erwähnt|erwähnen|nennt|nennen) (dazu )?(keine|nicht)\b",
    ),
    "fr": (
        r"\bje ne (sais|peux) pas\b",
        r"\b(pas assez|pas suffisamment) d'informations?\b",
        r"\binformations? insuffisantes?\b",
        r"\b(documents?|contexte|sources?) ne (contient|contiennent|mentionne|mentionnent|précise|précisent) pas\b",
    ),
    "es": (
        r"\bno (lo sé|puedo responder|puedo determinar)\b",
        r"\bno hay (suficiente información|información suficiente)\b",
        r"\b(documentos?|contexto|fuentes?) no (contienen?|mencionan?|incluyen?|indican?)\b",
    ),
}


_JA_SOURCE = (
    r"(?:文脈|文書|資料|情報|テキスト|文章|本文|コンテキスト|ドキュメント|パッセージ"
    r"|検索結果|ナレッジベース|記事|記述|ソース)"
)
_JA_GIVEN = r"(?:提供|提示|与え|添付|参照|上記|以下|検索|手元|こちら)"
_JA_CANNOT = (
    r"(?:(?:する)?(?:こと)?(?:が|は|も)?(?:でき|出来)(?:ません|ない|かねます|なかった)"
    r"|(?:いた|致)?しかねます)"
)
_JA_UNKNOWN = r"(?:(?:分か|わか|判)り(?:ません|かねます)|(?:分か|わか)らない)"
_JA_TOLD = r"(?:記載|記述|言及|説明|情報|答え|回答|手がかり|触れ|見つか|見当た|書か|含ま)"
_JA_POLITE_NOT = r"(?:あり|ござい|れてい|れており|りい|い|おり|なり)?ません(?:でした)?"
_JA_JUDGE = r"(?:判断|特定|断定|確定|確認|推測|判別|把握|お?答え|回答)"

_HE_SOURCE = (
    r"(?:מסמכים|מסמך|הקשר|טקסטים|טקסט|מקורות|מקור|קטעים|קטע|פסקאות|פסקה"
    r"|חומרים|חומר|כתבה|מאמר|מאגר|קובץ|תוכן)"
)
_HE_FACTS = r"(?:מידע|אזכור|תשובה|פרטים|התייחסות|פירוט|נתונים)"
_HE_CANNOT = (
    r"(?:לא (?:יכול(?:ה|ים|ות)?|מסוגל(?:ת|ים)?|מצליח(?:ה|ים)?|אוכל|נוכל|ניתן|אפשרי|היה ניתן)"
    r"|(?:איני|אינני|איננו) (?:יכול(?:ה|ים|ות)?|מסוגל(?:ת|ים)?)"
    r"|אין (?:באפשרותי|באפשרותנו|ביכולתי|ביכולתנו)|אי אפשר)"
)
_HE_TELLS = (
    r"(?:מכיל(?:ה|ים|ות)?|מזכיר(?:ה|ים|ות)?|כולל(?:ת|ים|ות)?|מציינ(?:ת|ים|ות)|מציין"
    r"|מספק(?:ת|ים|ות)?|מתייחס(?:ת|ים|ות)?|מפרט(?:ת|ים|ות)?|נותנ(?:ת|ים|ות)|נותן|עונ(?:ה|ים|ות)"
    r"|מוזכר(?:ת|ים|ות)?|נאמר|מופיע(?:ה|ים|ות)?|צוינה|צוין|נמצא(?:ה|ו)?)"
)

_AR_SOURCE = (
    r"(?:وثيقه|وثايق|مستندات|مستند|سياق|نصوص|نص|مصادر|مصدر|مقاطع|مقطع|فقرات|فقره"
    r"|مقاله|مقال|ماده|ملفات|ملف|معلومات)"
)
_AR_CANNOT = (
    r"(?:لا (?:استطيع|يمكنني|يمكننا|نستطيع|اقدر|اتمكن)|لم (?:اتمكن|استطع|نتمكن)"
    r"|لن (?:اتمكن|استطيع)|غير قادر(?:ه)?|عاجز(?:ه)?|[تي]تعذر(?: علي)?|تعذر(?: علي)?)"
)
_AR_ANSWER = r"(?:الاجابه|اجيب|الرد|ارد|تقديم (?:اجابه|جواب)|اقدم اجابه|العثور علي|ايجاد|اجد)"
_AR_TELLS = r"[تي](?:حتوي|تضمن|حتو|ذكر|شير|شر|وفر|قدم|شمل|حدد|تطرق|وضح|رد|نص|جيب|جب)(?:ان|وا|ون)?"
_AR_NONE = (
    r"(?:لا (?:توجد|يوجد|تتوفر|تتوافر|املك|امتلك)|ليس(?:ت)? (?:هناك|لدي(?:نا)?)|لم (?:اجد|نجد)"
    r"|لم يتم العثور علي|لم (?:اعثر|نعثر) علي)"
)
_AR_FACTS = r"(?:معلومات|معلومه|اجابه|جواب|ادله|بيانات|ذكر|اشاره|ما يكفي)"

_V2: Final[dict[str, tuple[str, ...]]] = {
    "ja": (
        rf"(?:質問|問い|問い合わせ)(?:に|には|への|について|に対して)[^。]{{0,14}}?(?:お?答え|回答|返答){_JA_CANNOT}",
        rf"(?:お答え|回答|返答){_JA_CANNOT}(?:でした)?(?:が|ので)?$",
        r"(?:質問|問い)(?:に|には)[^。]{0,14}?答え(?:られ|ることが(?:でき|出来)|ることは(?:でき|出来))(?:ません|ない)",
        r"^(?:すみません|申し訳(?:あり|ござい)ません|申し訳ない|残念ながら|恐れ入りますが|恐縮ですが)?"
        r"(?:が|けれど)?[、,]?(?:(?:私|僕|わたし)に?は?)?[、,]?(?:(?:その|この|ご)?(?:質問|問い)の)?"
        r"(?:答え|回答|正解|詳細|それ)?(?:について(?:は)?|に関して(?:は)?|が|は|に)?[、,]?"
        rf"(?:よく|正確に(?:は)?|はっきりと?(?:は)?)?(?:{_JA_UNKNOWN}|存じ(?:ません|上げません)|知りません)"
        r"(?:でした)?(?:が|ので|ね)?$",
        rf"{_JA_SOURCE}(?:だけ|のみ)?(?:から|で)(?:は|も)?[^。]{{0,40}}?"
        rf"(?:{_JA_UNKNOWN}|{_JA_JUDGE}{_JA_CANNOT}|不明です)",
        rf"{_JA_GIVEN}[^。]{{0,12}}?{_JA_SOURCE}[^。]{{0,50}}?{_JA_TOLD}[^。]{{0,14}}?"
        rf"(?:{_JA_POLITE_NOT}|ない|なかった)",
        rf"{_JA_SOURCE}(?:の中|内|中)?(?:には|からは|では|に)[^。]{{0,40}}?{_JA_TOLD}[^。]{{0,14}}?{_JA_POLITE_NOT}",
        r"(?:関連する|該当する|関する|についての|お探しの|必要な|十分な)(?:情報|回答|答え|記述|記載)(?:が|は|を)?"
        r"[^。]{0,12}?(?:見つか(?:りません|らなかった)|見つけ(?:られません|ることができません)|見当たりません"
        r"|ありません|ございません|確認でき(?:ません|ない)|得られません|含まれていません)",
        r"(?:答え|回答)(?:が|は)[^。]{0,6}?(?:見つか(?:りません|らなかった)|見当たりません)",
        r"(?:情報|根拠|証拠|資料|文脈|データ)(?:が|は)?(?:十分(?:で|に)?は?(?:ありません|ございません)"
        r"|不足して(?:い|お)(?:ます|り)|不十分(?:です|なため|であるため|のため)|足りません|不足のため)",
    ),
    "he": (
        r"(?<!\w)(?:אני|אנו|אנחנו) לא יודע(?:ת|ים|ות)?(?!\w)",
        r"(?<!\w)(?:איני|אינני|איננו) יודע(?:ת|ים|ות)?(?!\w)",
        r"^(?:(?:אני )?(?:מצטער(?:ת|ים)?|סליחה|לצערי|צר לי)[,:]?\s*(?:אבל |אך )?)?לא יודע(?:ת|ים)?$",
        r"(?<!\w)אין לי (?:מושג|תשובה|ידע|די מידע|מספיק מידע|מידע)(?!\w)",
        rf"(?<!\w){_HE_CANNOT} (?:כאן |כרגע |לצערי )?(?:לענות|להשיב|לספק תשובה|לתת תשובה|למצוא תשובה"
        r"|למצוא (?:את )?ה?מידע)(?!\w)",
        rf"(?<!\w){_HE_CANNOT} (?:לקבוע|לדעת|להסיק|ללמוד)(?: \w+){{0,5}}"
        rf" (?:מן|מתוך|לפי|על פי|על סמך|על בסיס|[מב]?ה?{_HE_SOURCE})(?!\w)",
        rf"(?<!\w)[וש]?[הבמ]?{_HE_SOURCE}(?: \w+){{0,3}} (?:לא|אינו|אינה|אינם|אינן) {_HE_TELLS}(?!\w)",
        rf"(?<!\w)[וש]?בה?{_HE_SOURCE}(?: \w+){{0,3}} (?:אין|לא נמצא(?:ה|ו)?|לא מופיע(?:ה)?)"
        rf" (?:\w+ )?{_HE_FACTS}(?!\w)",
        r"(?<!\w)(?:אין|לא מצאתי|לא מצאנו|לא נמצא(?:ה|ו)?|חסר(?:ה)?) (?:לי |לנו |בידי |ברשותי |כאן |כל |שום )?"
        rf"{_HE_FACTS}(?: \w+){{0,4}} [במ]ה?{_HE_SOURCE}(?!\w)",
        rf"(?<!\w)אין [במ]ה?{_HE_SOURCE} (?:\w+ )?{_HE_FACTS}(?!\w)",
        r"(?<!\w)(?:אין|חסר) (?:לי |לנו |כאן )?מידע כדי ל(?:ענות|השיב|קבוע)(?!\w)",
        r"^(?:מצטער(?:ת|ים)?|סליחה|לצערי)?,? ?לא ידוע לי$",
        r"(?<!\w)(?:אין|חסר) (?:לי |לנו |בידי |ברשותי |כאן )?(?:מספיק|די) (?:מידע|נתונים|ראיות|הקשר)(?!\w)",
        r"(?<!\w)(?:לא מצאתי|לא מצאנו|לא הצלחתי למצוא|לא נמצא) (?:כל |שום |את )?ה?(?:מידע|תשובה)(?!\w)",
        r"(?<!\w)ה?(?:מידע|נתונים|ראיות)(?: \w+){0,2} (?:אינו|אינם|אינן|לא) (?:מספיק(?:ים|ות)?|מספק(?:ים|ות)?)(?!\w)",
    ),
    "ar": (
        r"(?<!\w)[وف]?(?:لا (?:اعرف|اعلم|ادري|نعرف|نعلم)|لست ادري)(?!\w)",
        rf"(?<!\w)[وف]?{_AR_CANNOT} (?:من |علي |عن |حاليا )?(?:ان )?{_AR_ANSWER}(?!\w)",
        rf"(?<!\w)[وف]?(?:لا يمكن|{_AR_CANNOT}) (?:من |علي )?(?:ان )?(?:تحديد|احدد|معرفه|استنتاج|الجزم|الاجابه)"
        r"(?: \w+){0,6} (?:من|بناء علي|استنادا الي|اعتمادا علي|وفقا|في) (?:\w+ )?(?:هذا |هذه )?"
        rf"[بل]?ال{_AR_SOURCE}(?!\w)",
        r"(?<!\w)[وف]?لا (?:يمكن|تمكن) (?:الاجابه|الرد) (?:عن|علي)(?!\w)",
        r"(?<!\w)[وف]?ليس(?:ت)? لدي(?:نا)? (?:اي |ايه )?(?:معلومات|معلومه|فكره|اجابه|جواب|علم|معرفه|ما يكفي)(?!\w)",
        rf"(?<!\w)[وف]?{_AR_NONE}(?: لدي| لدينا| هنا)? (?:اي |ايه )?{_AR_FACTS}(?: \w+){{0,3}}"
        r" (?:كافيه|كاف|متاحه|متوفره|عن|حول|بشان|بخصوص|تتعلق|ذات صله|من المعلومات"
        rf"|(?:في|ضمن) (?:هذه |هذا )?ال{_AR_SOURCE})(?!\w)",
        rf"(?<!\w)[وف]?{_AR_NONE} (?:في|ضمن) (?:هذا |هذه )?ال{_AR_SOURCE} (?:\w+ )?{_AR_FACTS}(?!\w)",
        r"(?<!\w)[وف]?(?:لم اجد|لم اعثر علي) (?:اي )?(?:معلومات|اجابه|جواب|ذكر|الاجابه|اشاره)(?!\w)",
        rf"(?<!\w)[وفبل]?(?:في |من )?ال{_AR_SOURCE}(?: \w+){{0,3}} (?:لا|لم) {_AR_TELLS}(?!\w)",
        rf"(?<!\w)[وف]?(?:لا|لم) {_AR_TELLS}(?: \w+){{0,4}} (?:في |من )?(?:هذا |هذه )?ال{_AR_SOURCE}(?!\w)",
        r"(?<!\w)[وف]?(?:ال)?(?:معلومات|ادله|سياق|بيانات)(?: \w+){0,3}"
        r" (?:غير كافيه?|غير كاف|لا [تي]كفي|ليست كافيه)(?!\w)",
    ),
}

PATTERNS: Final[dict[str, dict[str, tuple[str, ...]]]] = {"phrases-v1": _V1, "phrases-v2": _V1 | _V2}

# RFC 5646 keeps the old codes; the others are what people write for these languages.
_SAME: Final = {"iw": "he"}
_MEANT: Final = {
    "arabic": "ar", "german": "de", "deutsch": "de", "english": "en", "spanish": "es", "french": "fr", "hebrew": "he",
    "japanese": "ja", "jp": "ja", "chinese": "zh", "cn": "zh",
}  # fmt: skip
_TAG: Final = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{1,8})*")


def primary(lang: str) -> str:
    """The primary part of a language tag.

    >>> primary("en-GB"), primary("ZH_hant"), primary("iw")
    ('en', 'zh', 'he')
    """
    found = re.split(r"[-_]", lang.strip().casefold(), maxsplit=1)[0]
    return _SAME.get(found, found)


def languages(version: str = VERSION) -> tuple[str, ...]:
    """The languages that have a list, by code."""
    return tuple(sorted(PATTERNS[version]))


def not_a_tag(lang: str) -> str | None:
    """A code that may be meant by what is no language tag; None for a tag, with a list or without.

    >>> not_a_tag("german"), not_a_tag("日本語"), not_a_tag("pt_BR")
    ('de', 'en', None)
    """
    return None if _TAG.fullmatch(lang.strip()) else _MEANT.get(lang.strip().casefold(), "en")


def check_languages(langs: Iterable[str], version: str = VERSION) -> None:
    """Refuses what is no language tag, such as `german`: ConfigError for the first one in code-point order."""
    for lang in sorted(langs):
        code = not_a_tag(lang)
        if code is not None:
            there = ", ".join(languages(version))
            raise ConfigError(f"lang: found {lang!r}, expected a code such as {code!r} (there are lists for {there})")


def without_list(lang: str, version: str = VERSION) -> str | None:
    """Why nothing is read in this language, with the languages that have a list; None where it has one.

    >>> without_list("jp")
    "there is no refusal list for 'jp' (there are: ar, de, en, es, fr, he, ja, zh); did you mean 'ja'?"
    """
    if primary(lang) in PATTERNS[version]:
        return None
    meant = _MEANT.get(lang.strip().casefold())
    hint = f"; did you mean {meant!r}?" if meant in PATTERNS[version] else ""
    later = next((v for v in PATTERNS if primary(lang) in PATTERNS[v]), None)
    hint = f"; {later} has one" if later else hint
    return f"there is no refusal list for {lang!r} (there are: {', '.join(languages(version))}){hint}"


@cache
def patterns(lang: str, version: str = VERSION) -> tuple[re.Pattern[str], ...]:
    """The compiled patterns of a language tag by its primary part (`"en-GB"` → `"en"`); empty when there are none."""
    return tuple(re.compile(p) for p in PATTERNS[version].get(primary(lang), ()))


_INVISIBLE: Final = "\u00ad\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"
_DROPPED: Final[dict[str, re.Pattern[str]]] = {
    "ja": re.compile(rf"[{_INVISIBLE}]"),
    "he": re.compile(rf"[{_INVISIBLE}\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]"),
    "ar": re.compile(rf"[{_INVISIBLE}\u0640\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed]"),
}
_WRITTEN_AS: Final[dict[str, dict[int, str]]] = {
    "he": {0x05BE: " ", 0x05F3: "'", 0x05F4: '"'},
    "ar": dict(zip(map(ord, "أإآٱىیةکؤئ"), "ااااييهكوي", strict=True)),
}
_ENDS: Final = re.compile(r"[.!?。\n\r\v\f\x85\u2028\u2029]+")
_MORE_ENDS: Final[dict[str, re.Pattern[str]]] = {"ar": re.compile(r"[.!?。؟۔\n\r\v\f\x85\u2028\u2029]+")}


def folded(text: str, lang: str) -> str:
    """A sentence as the lists of ar, he and ja are written; that of any other language stays as it is.

    Japanese: blanks go. Hebrew: vowel points and cantillation go, maqaf is a blank, geresh and gershayim are ' and ".
    Arabic: diacritics and tatweel go; أ إ آ ٱ are ا, ى and ی are ي, ة is ه, ک is ك, ؤ is و, ئ is ي (the light
    normalisation of Larkey, Ballesteros and Connell, 2002, and of Lucene). All three: invisible marks go (direction,
    joiners, soft hyphen).

    >>> folded("شُكْرًا لـــك يا أحمد", "ar"), folded("שָׁלוֹם־רַב", "he"), folded("分かり ません", "ja")
    ('شكرا لك يا احمد', 'שלום רב', '分かりません')
    """
    spaced = _spaced(text, lang)
    return "".join(spaced.split()) if primary(lang) == "ja" else spaced


def _spaced(text: str, lang: str) -> str:
    """The folded sentence with its blanks: Japanese loses them only where patterns are looked for."""
    code = primary(lang)
    if code not in _DROPPED:
        return text
    return " ".join(_DROPPED[code].sub("", text).translate(_WRITTEN_AS.get(code, {})).split())


def parts(text: str, lang: str) -> list[tuple[str, str]]:
    """The sentences of a normalised text (MEASUREMENT.md, section 7): folded as patterns see it, and as it is counted.

    In Arabic ؟ and ۔ end one, too. Tokens are counted with the blanks, which are what tells Latin words apart.

    >>> parts("不明です。See RFC 9110", "ja")
    [('不明です', '不明です'), ('SeeRFC9110', 'See RFC 9110')]
    """
    found = ((folded(part, lang), _spaced(part, lang)) for part in _MORE_ENDS.get(primary(lang), _ENDS).split(text))
    return [(seen, counted) for seen, counted in found if seen.strip()]


def sentences(text: str, lang: str) -> list[str]:
    """The folded sentences of a normalised text."""
    return [seen for seen, _ in parts(text, lang)]
