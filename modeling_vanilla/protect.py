"""The option --protect, and reserved tokens for the spans of a pair, in training and of given translations."""

import re
from collections.abc import Mapping

from .spans_vanilla import SPANS, find_spans, replace_spans, span_pattern

PROTECT = f"none, all, or some of {', '.join(SPANS)} and of your own, KIND=REGEX, separated by blanks"


def span_table(text: str) -> dict[str, str]:
    """The table {kind: regular expression} that an option gives as PROTECT describes; ValueError for another."""
    table: dict[str, str] = {}
    for each in text.split():
        kind, is_own, expression = each.partition("=")
        known = {"none": {}, "all": SPANS} | {name: {name: SPANS[name]} for name in SPANS}
        if not is_own and kind not in known:
            raise ValueError(f"protect: {kind!r} must be {PROTECT}")
        table |= {kind: expression} if is_own else known[kind]
    span_pattern(table)
    return table


def replace_by(text: str, pattern: re.Pattern, spans: Mapping[str, str]) -> str:
    """Replace the spans of a translation by the tokens that stand for them in its source."""
    left = dict(spans)

    def token(match: re.Match) -> str:
        name = next((name for name, span in left.items() if span == match[0]), match[0])
        left.pop(name, None)
        return name

    return pattern.sub(token, text)


def replace_in_pair(source: str, target: str, pattern: re.Pattern | None) -> tuple[str, str]:
    """Replace the spans of a pair if both sides have the same ones; else it stays as it is, as "<file>" may be text."""
    if pattern is None or not (found := find_spans(source, pattern)) or found != find_spans(target, pattern):
        return source, target
    source, spans = replace_spans(source, pattern)
    return source, replace_by(target, pattern, spans)
