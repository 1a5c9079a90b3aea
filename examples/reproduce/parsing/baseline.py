"""The right-branching baseline: each word begins a constituent that reaches to the end, as English mostly does."""

from collections import Counter
from collections.abc import Sequence

from nltk import Tree

from .evalb import constituents
from .trees import NO_TAG

# By their form, as the tags of a new sentence are unknown. They open no bracket: EVALB does not count them as words.
PUNCTUATION = frozenset((",", ".", ":", ";", "?", "!", "--", "-", "...", "`", "``", "'", "''"))


def right_branching_labels(training: Sequence[Tree]) -> tuple[str, str]:
    """The labels of the baseline's root and of its other brackets that match the most training constituents.

    They are the most frequent label of constituents that span a whole sentence, and that of constituents that span
    more than one word at its end. "S" where there are none, as in a corpus of sentences of one word.
    """
    roots, inner = Counter(), Counter()
    for tree in training:
        sentence, spans = constituents(tree)
        for (label, start, end), count in spans.items():
            if end == len(sentence) and end - start > 1:
                (inner if start else roots)[label] += count
    return tuple(max(counts, key=lambda label: (counts[label], label), default="S") for counts in (roots, inner))


def right_branching(sentence: Sequence[str], root: str, inner: str) -> Tree:
    """(S w1 (VP w2 (VP w3 w4))) for the labels S and VP; all tags are XX."""
    counted = [index for index, word in enumerate(sentence) if word not in PUNCTUATION]
    opening = set(counted[1:-1])  # the first word is the root's, and the last alone would be no constituent
    children: list[Tree] = []
    for index in reversed(range(len(sentence))):
        children.insert(0, Tree(NO_TAG, [sentence[index]]))
        if index in opening:
            children = [Tree(inner, children)]
    return Tree(root, children)
