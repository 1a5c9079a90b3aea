"""The right-branching baseline: every word takes all that follows it as its sister, as English mostly does."""

from collections import Counter
from collections.abc import Sequence

from evalb import constituents
from trees import NO_TAG, Node, Word

# By their form, as no tags are known of a new sentence. They open no bracket: EVALB does not count them as words.
PUNCTUATION = frozenset((",", ".", ":", ";", "?", "!", "--", "-", "...", "`", "``", "'", "''"))


def right_branching_labels(training: Sequence[Node]) -> tuple[str, str]:
    """The labels of the baseline's root and of its other brackets, which fit the training trees best.

    They are the commonest among the training constituents that span a whole sentence, and among those that span more
    than a word at its end.
    """
    roots, inner = Counter(), Counter()
    for tree in training:
        sentence, spans = constituents(tree)
        for (label, start, end), count in spans.items():
            if end == len(sentence) and end - start > 1:
                (inner if start else roots)[label] += count
    # A sentence of one word has no such constituent, and a corpus of them neither.
    return tuple(max(counts, key=lambda label: (counts[label], label), default="S") for counts in (roots, inner))


def right_branching(sentence: Sequence[str], root: str, inner: str) -> Node:
    """(S w1 (VP w2 (VP w3 w4))) for the labels S and VP; all tags are XX.

    Raises:
        ValueError: if there are no words.
    """
    if not sentence:
        raise ValueError("a sentence without words has no tree")
    scored = [index for index, word in enumerate(sentence) if word not in PUNCTUATION]
    opening = set(scored[1:-1])  # the first word is the root's, and the last alone would be no constituent
    children: tuple[Node | Word, ...] = ()
    for index in reversed(range(len(sentence))):
        children = (Word(NO_TAG, sentence[index]), *children)
        if index in opening:
            children = (Node(inner, children),)
    return Node(root, children)
