"""Labelled bracketing precision, recall and F1, as EVALB computes them with its COLLINS.prm.

- A constituent is a label and the words it spans; those of a sentence are a multiset. Labels are cut at "-" and "=",
  ADVP and PRT count as one label, and TOP is not scored.
- Words tagged , : `` '' . or -NONE- are removed before positions are numbered, from either tree by its own tags;
  constituents in which nothing remains are not scored.
- A sentence whose trees then differ in their words is counted as an error, and is in no score.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from nltk import Tree

from .trees import TOP, TRACE, is_preterminal

_DELETED = {",", ":", "``", "''", ".", TRACE, TOP}


def score(gold: Sequence[Tree], tested: Sequence[Tree]) -> dict[str, float]:
    """Compare trees with the gold trees of the same sentences.

    Returns:
        The percentages of `percentages`, and the counts "matched", "gold" and "tested", of constituents in both trees,
        in the gold tree and in the tested one; "sentences" that are scored, those "complete", of which all constituents
        agree, and "errors" that could not be scored.
    """
    counts = Counter(matched=0, gold=0, tested=0, sentences=0, complete=0, errors=0)
    for gold_tree, tested_tree in zip(gold, tested, strict=True):
        (gold_words, gold_spans), (tested_words, tested_spans) = constituents(gold_tree), constituents(tested_tree)
        if gold_words != tested_words:
            counts["errors"] += 1
            continue
        matched, complete = (gold_spans & tested_spans).total(), gold_spans == tested_spans
        counts.update(matched=matched, gold=gold_spans.total(), tested=tested_spans.total(), sentences=1)
        counts.update(complete=complete)
    return {**percentages(counts), **counts}


def percentages(counts: Mapping[str, int]) -> dict[str, float]:
    """F1, precision, recall, and the share of sentences in which all agrees; 0 where nothing is counted."""
    shares = {
        "f1": (2 * counts["matched"], counts["gold"] + counts["tested"]),
        "precision": (counts["matched"], counts["tested"]),
        "recall": (counts["matched"], counts["gold"]),
        "complete_match": (counts["complete"], counts["sentences"]),
    }
    return {name: 100 * part / whole if whole else 0.0 for name, (part, whole) in shares.items()}


def constituents(tree: Tree) -> tuple[list[str], Counter[tuple[str, int, int]]]:
    """The words that count, and (label, start, end) of each constituent that is scored; end is exclusive."""
    sentence: list[str] = []
    spans: Counter[tuple[str, int, int]] = Counter()

    def visit(part: Tree) -> None:
        if is_preterminal(part):
            sentence.extend([] if part.label() in _DELETED else part)
            return
        start = len(sentence)
        for child in part:
            visit(child)
        label = re.split("[-=]", part.label())[0]
        if len(sentence) > start and label not in _DELETED:
            spans["ADVP" if label == "PRT" else label, start, len(sentence)] += 1

    visit(tree)
    return sentence, spans
