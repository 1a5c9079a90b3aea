"""Spans that are copied, such as "%d", "<b>" or an address: reserved tokens stand for them while a text is translated.

"Error %d: see <b>manual</b>." is translated as "Error ｟12｠: see ｟13｠manual｟14｠.", and the spans are put back into
the output, in whatever order it has them. The tokens look like those of OpenNMT's tokenizer. A token may also stand for
another text in the output, the target of a term.
"""

import re
from collections import Counter
from collections.abc import Mapping
from itertools import product

# The kinds of spans, and a regular expression of each; the time of a search grows with the text's length alone.
SPANS = {
    "address": r"(?:(?:https?|ftp)://|\bwww\.)[^\s<>\"')]*[^\s<>\"').,;:!?]|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+",
    "braces": r"[$%#]?\{[\w.:]*\}",  # of ICU, Python, Ruby and shells
    # Of printf, Python and Qt. A blank before the letter is text: "50 % der".
    "directive": r"%%|%(?:\([A-Za-z_]\w*\)|\d{1,3}\$)?[-+#0]{0,4}(?:\d{1,4}|\*)?(?:\.(?:\d{1,4}|\*))?"
    r"(?:hh|ll|[hlLqjzt])?[diouxXeEfgGcsp](?![A-Za-z])|%\d{1,3}(?![\w%$])|%n\b",
    "entity": r"&(?:[A-Za-z]{2,8}|#\d{1,5});",
    "option": r"(?<![\w-])--[a-z][\w-]+",
    "tag": r"</?[A-Za-z][\w:.-]*(?:\s+[\w:.-]+=(?:\"[^\"]*\"|'[^']*'))*\s*/?>",
    "variable": r"%[A-Z][A-Z_]{2,}|\$\([A-Za-z_]+\)|\$[A-Za-z_]\w*",
}
# Tokens that stand for spans. A text with more spans keeps the others as text.
RESERVED = tuple(f"｟{number}｠" for number in range(1, 17))
RESERVED_TOKEN = "｟[0-9]+｠"  # the pattern of one
# What loops of a search look like: of 190 thousand German messages of people none has such a phrase with letters.
_REPEATED = re.compile(r"(?=\w)(.{1,60}?)\1{3}")

_BLANKS = " \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
# With marks between groups of three; an entity such as "&#8217;" is no number.
_NUMBER = re.compile(rf"&#\w+;|(\d+(?:[.,'\u2019{_BLANKS}]\d{{3}})*)(?!\d)")
_SPELT = 20  # the largest number that may be a word on the other side, but for a digit with noughts
_FRACTION = re.compile(r"(\d{1,9})\s?[/\u2044]\s?(\d{1,9})")
_TIME = re.compile(r"\d\s?[ap]\.?\s?m\b|\d:\d\d", re.IGNORECASE)
_IMPERIAL = re.compile(
    r"\d[\s-]?(?:mi(?:les?)?|mph|feet|foot|ft|in|inch(?:es)?|yards?|yd|pounds?|lbs?|ounces?|oz|gallons?|acres?|°\s?F)\b"
)
_METRIC = re.compile(
    r"\d[\s-]?(?:[ck]?m|mm|k?g|[mc]?l|ha|km/h|°\s?C|\w{0,5}(?:met[re]{2}|gramm?|lit[re]{2})s?)\b", re.I
)


def span_pattern(table: Mapping[str, str] | None) -> re.Pattern | None:
    """The pattern of all spans of a table {kind: regular expression}; None for an empty one.

    Where several kinds match, one that SPANS does not have comes first, then the first by its name. A reserved token
    that a text has is a span, too. ValueError for a regular expression that is none, or matches the empty text.
    """
    if not table:
        return None
    for kind, expression in table.items():
        try:
            if re.compile(f"(?:{expression})").search(""):
                raise ValueError(f"spans of {kind}: {expression!r} matches the empty text")
        except re.error as error:
            raise ValueError(f"spans of {kind}: {expression!r} is no regular expression: {error}") from error
    # A configuration in JSON has no order.
    kinds = sorted(table, key=lambda kind: (kind in SPANS, kind))
    return re.compile("|".join(f"(?:{expression})" for expression in (RESERVED_TOKEN, *map(table.__getitem__, kinds))))


DEFAULT: re.Pattern = span_pattern(SPANS)  # type: ignore[assignment]


def has_reserved(tokenizer) -> bool:
    """Whether a tokenizer has the reserved tokens."""
    number = tokenizer.convert_tokens_to_ids(RESERVED[-1])  # of another token if it is unknown
    return number is not None and tokenizer.convert_ids_to_tokens(number) == RESERVED[-1]


def find_spans(text: str, pattern: re.Pattern) -> Counter[str]:
    """How many times a text has each span."""
    return Counter(match[0] for match in pattern.finditer(text))


def replace_spans(text: str, pattern: re.Pattern) -> tuple[str, dict[str, str]]:
    """Replace the spans of a text, in order of appearance, by reserved tokens; return it, and the span of each token.

    The first token follows from the length of the text, so that in training all of them are seen equally often.
    """
    spans: dict[str, str] = {}

    def token(match: re.Match) -> str:
        if len(spans) == len(RESERVED):
            return match[0]
        name = RESERVED[(len(text) + len(spans)) % len(RESERVED)]
        spans[name] = match[0]
        return name

    return pattern.sub(token, text), spans


def put_back(text: str, spans: Mapping[str, str] | None) -> str:
    """Put texts in the place of the reserved tokens; one that stands for nothing goes. None: there are none."""
    return text if spans is None else re.sub(RESERVED_TOKEN, lambda match: spans.get(match[0], ""), text)


def differing(source: str, translation: str, pattern: re.Pattern = DEFAULT) -> list[str]:
    """The spans and numbers that source or translation has and the other lacks, a span as many times.

    Last comes a phrase with "..." that the translation, not the source, has four times without anything between.
    """
    loop = [] if repeated(source) else [f"{phrase.strip()} ..." for phrase in repeated(translation)[:1]]
    sources, targets = find_spans(source, pattern), find_spans(translation, pattern)
    spans = (sources - targets) + (targets - sources)
    return [*spans.elements(), *differing_numbers(pattern.sub(" ", source), pattern.sub(" ", translation)), *loop]


def repeated(text: str) -> list[str]:
    """The phrases with letters that a text has four times without anything between."""
    return [match[1] for match in _REPEATED.finditer(text) if any(map(str.isalpha, match[1]))]


def differing_numbers(source: str, target: str, spelt: int = _SPELT) -> list[str]:
    """The numbers of one side that are missing on the other, and neither spelt, converted nor otherwise divided there.

    spelt: the largest number that may be words on the other side; one of a digit and noughts always may.
    """
    sources, targets = _numbers(_percents(source, target)), _numbers(_percents(target, source))
    sources, targets = sources - targets, targets - sources
    if not (sources or targets) or any(
        _IMPERIAL.search(one) and _METRIC.search(other) for one, other in ((source, target), (target, source))
    ):
        return []
    has_time = bool(_TIME.search(source) or _TIME.search(target))
    for one, other in [*product(sources, targets)]:
        shorter, longer = sorted([one, other], key=len)
        if _is_same(shorter, longer, has_time):
            sources.discard(one)
            targets.discard(other)
    missing = sorted(sources | targets)
    if sources and targets:  # dates, decimals and 2만, which is 20,000, are the same digits
        return missing if set("".join(sources)) - {"0"} != set("".join(targets)) - {"0"} else []
    return [each for each in missing if len(each.strip("0")) > 1 and (len(each) > 2 or int(each) > spelt)]


def _numbers(text: str) -> set[str]:
    """The numbers of a text: their digits without marks and leading noughts."""
    found = _NUMBER.findall(text)
    return {"".join(str(int(each)) for each in number if each.isdecimal()).lstrip("0") for number in found if number}


def _percents(text: str, other: str) -> str:
    """The text with its fractions in percent if the other side has percent."""
    if "%" not in other:
        return text
    return _FRACTION.sub(lambda found: str(round(100 * int(found[1]) / (int(found[2]) or 1))), text)


def _is_same(shorter: str, longer: str, has_time: bool) -> bool:
    """Whether two numbers are a year with and without its century, or an hour of twelve and of twenty-four."""
    is_year = (len(shorter), len(longer)) == (2, 4) and longer.endswith(shorter)
    return is_year or (has_time and len(longer) < 3 and int(longer) - int(shorter or 0) in (12, -12))
