"""Labelled bracketing precision, recall and F1, as EVALB scores them with its COLLINS.prm.

- A constituent is its label and the words that it spans; those of a sentence are a multiset. Labels are cut at "-" and
  "=", ADVP and PRT are one label, and TOP is not scored.
- Words tagged , : `` '' . or -NONE- are taken out of the sentence before anything is numbered, in either tree by its
  own tags; constituents in which nothing is left are not scored.
- A sentence whose trees do not have the same words after that is an error: it is counted as such, and is in no score.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trees import TOP, TRACE, Node, Word

PUNCTUATION = frozenset((",", ":", "``", "''", "."))
_DELETED = PUNCTUATION | {TRACE, TOP}


@dataclass(frozen=True)
class Scores:
    """Counts over a set of sentences: constituents that are in both trees, in the gold tree and in the tested one;
    sentences scored, those of them in which all constituents agree, and those that could not be scored."""

    matched: int
    gold: int
    tested: int
    sentences: int
    complete: int
    errors: int

    @property
    def precision(self) -> float:
        """In percent; 0 if there is nothing to divide by, as for the others."""
        return _percent(self.matched, self.tested)

    @property
    def recall(self) -> float:
        """In percent."""
        return _percent(self.matched, self.gold)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, in percent."""
        return _percent(2 * self.matched, self.gold + self.tested)

    @property
    def complete_match(self) -> float:
        """In percent of the sentences scored."""
        return _percent(self.complete, self.sentences)


def score(gold: Sequence[Node], tested: Sequence[Node]) -> Scores:
    """Hold trees against the gold trees of the same sentences.

    Raises:
        ValueError: if there are not as many of one as of the other.
    """
    if len(gold) != len(tested):
        raise ValueError(f"there are {len(gold)} gold trees but {len(tested)} to score")
    counts = Counter(matched=0, gold=0, tested=0, sentences=0, complete=0, errors=0)
    for right, other in zip(gold, tested, strict=True):
        (right_words, right_spans), (other_words, other_spans) = constituents(right), constituents(other)
        if right_words != other_words:
            counts["errors"] += 1
            continue
        counts["matched"] += (right_spans & other_spans).total()
        counts["gold"] += right_spans.total()
        counts["tested"] += other_spans.total()
        counts["sentences"] += 1
        counts["complete"] += right_spans == other_spans
    return Scores(**counts)


def constituents(tree: Node) -> tuple[list[str], Counter[tuple[str, int, int]]]:
    """The words that are scored, and (label, start, end) of each constituent that is, end being one past its last."""
    sentence: list[str] = []
    spans: Counter[tuple[str, int, int]] = Counter()

    def visit(part: Node | Word) -> None:
        if isinstance(part, Word):
            sentence.extend([part.text] if part.tag not in _DELETED else [])
            return
        start = len(sentence)
        for child in part.children:
            visit(child)
        label = re.split("[-=]", part.label)[0]
        if len(sentence) > start and label not in _DELETED:
            spans["ADVP" if label == "PRT" else label, start, len(sentence)] += 1

    visit(tree)
    return sentence, spans


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
