"""How refusals are worded: version, sentinel and patterns per language. Data, with one function to compile them.

The patterns are a heuristic that is measured like a judge (docs/abstention.md has its agreement with labels).
Any change here is a new `VERSION`, which is logged with every abstention report that used a pattern. Patterns see
one sentence at a time, normalised by NFKC, with ’ written as ' and casefolded (ß is ss by then).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

VERSION: Final = "phrases-v1"
SENTINEL: Final = "NO_ANSWER"
MAX_REMAINDER_TOKENS: Final = 8
"""Tokens (regex-v1) that may stand outside the matching sentences before a refusal becomes undecided."""

PATTERNS: Final[dict[str, tuple[str, ...]]] = {
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


@cache
def patterns(lang: str) -> tuple[re.Pattern[str], ...]:
    """The compiled patterns of a language tag by its primary part (`"en-GB"` → `"en"`); empty when there are none."""
    primary = re.split(r"[-_]", lang.strip().casefold(), maxsplit=1)[0]
    return tuple(re.compile(p) for p in PATTERNS.get(primary, ()))
