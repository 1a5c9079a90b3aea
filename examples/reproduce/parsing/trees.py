"""Trees of the Penn Treebank as nltk's Tree: read from bracketed text, and cleaned as they are parsed and scored.

A preterminal is a tree that holds one word, (NNP John); every other constituent holds constituents.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from os import PathLike

from nltk import Tree

from modeling_vanilla.files import read_lines

NO_TAG = "XX"  # the tag of a word that nothing has tagged
TRACE = "-NONE-"
TOP = "TOP"  # the label of a root over several constituents or a word; EVALB does not score it
# Far above any sentence's, and below Python's limit of recursion: a right-branching tree is as deep as it is long.
MAX_DEPTH = 200
MAX_WORDS = 300


def read_treebank(path: str | PathLike) -> list[list[Tree]]:
    """Read a treebank file, plain or .gz.

    It may be a concatenation of the treebank's files. Each of those begins with a blank line and has none between its
    trees, so a blank line between two trees is taken for the end of a file.

    Returns:
        For each file its trees, as `clean` returns them.

    Raises:
        ValueError: if the file cannot be read or is no file of bracketed trees; the message names file and line.
    """
    files = [[tree for _, tree in trees] for _, trees in groupby(_cleaned_trees(path), key=lambda pair: pair[0])]
    if not files:
        raise ValueError(f"{path}: there are no trees in it")
    return files


def read_sentences(path: str | PathLike) -> list[list[str]]:
    """The words of the sentences of a text file, plain or .gz: one a line, words as in the treebank, apart by spaces.

    Raises:
        ValueError: if the file cannot be read, or a line has no words, too many or one with a bracket.
    """
    sentences = list(map(str.split, read_lines(path)))
    for number, words in enumerate(sentences, start=1):
        if not 0 < len(words) <= MAX_WORDS:
            raise ValueError(f"{path}, line {number}: a sentence has 1 to {MAX_WORDS} words, not {len(words)}")
        if any(re.search("[()]", word) for word in words):
            raise ValueError(f"{path}, line {number}: brackets are written -LRB- and -RRB- in a treebank")
    return sentences


def _cleaned_trees(path: str | PathLike) -> Iterator[tuple[int, Tree]]:
    """Each cleaned tree, after the number of blank lines that stand before it."""
    for blanks, line, text in _outermost_brackets(path):
        where = f"{path}, line {line}"
        tree = Tree.fromstring(text)
        for part in tree.subtrees():
            label = part.label() or part is tree
            if not part or not label or not (is_preterminal(part) or all(isinstance(child, Tree) for child in part)):
                shown = bracketed(part)[:60]
                raise ValueError(f"{where}: a bracket needs a label and one word or brackets, not {shown}")
        tree = clean(tree)
        if tree is None:
            raise ValueError(f"{where}: the tree has no words")
        if len(tree.leaves()) > MAX_WORDS:
            raise ValueError(f"{where}: the tree has {len(tree.leaves())} words, more than {MAX_WORDS}")
        yield blanks, tree


def _outermost_brackets(path: str | PathLike) -> Iterator[tuple[int, int, str]]:
    """The text of each outermost bracket, after the number of blank lines before it and the line that it starts on."""
    tokens: list[str] = []
    blanks = start = depth = 0
    for number, line in enumerate(read_lines(path), start=1):
        blanks += not tokens and not line.strip()
        for token in re.findall(r"[()]|[^\s()]+", line):
            start = start if tokens else number
            tokens.append(token)
            depth += (token == "(") - (token == ")")
            if depth < 0 or (depth == 0 and token != ")"):
                example = "(S (NP (NNP John)) (VP (VBZ sleeps)))"
                raise ValueError(f"{path}, line {number}: {token[:40]!r} is in no bracket; trees look like {example}")
            if depth > MAX_DEPTH:
                raise ValueError(f"{path}, line {start}: the tree has more than {MAX_DEPTH} levels")
            if depth == 0:
                yield blanks, start, " ".join(tokens)
                tokens = []
    if tokens:
        raise ValueError(f"{path}, line {start}: the tree that starts here is not closed")


def clean(tree: Tree) -> Tree | None:
    """Clean a tree in the usual way.

    - Traces (-NONE-) are removed, and constituents in which nothing remains.
    - Labels lose their functional tags and indices: NP-SBJ-1 and NP=2 become NP.
    - The bracket around the whole, without a label or named TOP, is removed if it holds one constituent that is not a
      preterminal; otherwise it is named TOP.

    Returns:
        A new tree, or None if there are no words.
    """
    cleaned = _without_traces(tree)
    if cleaned is None or is_preterminal(cleaned):
        return cleaned and Tree(TOP, [cleaned])
    while cleaned.label() in ("", TOP) and len(cleaned) == 1 and not is_preterminal(cleaned[0]):
        cleaned = cleaned[0]
    return Tree(cleaned.label() or TOP, cleaned)


def _without_traces(tree: Tree) -> Tree | None:
    if is_preterminal(tree):
        return None if tree.label() == TRACE else tree
    children = [child for child in map(_without_traces, tree) if child is not None]
    return Tree(re.split("[-=]", tree.label())[0] or tree.label(), children) if children else None


def is_preterminal(tree: Tree) -> bool:
    """Whether the tree is a word with its part-of-speech tag."""
    return len(tree) == 1 and isinstance(tree[0], str)


def with_words_of(tree: Tree, other: Tree) -> Tree:
    """A copy of the tree with the words and the tags of another one over as many words."""
    copy = tree.copy(deep=True)
    for preterminal, (word, tag) in zip(copy.subtrees(is_preterminal), other.pos(), strict=True):
        preterminal.set_label(tag)
        preterminal[:] = [word]
    return copy


def bracketed(tree: Tree) -> str:
    """The tree on one line: (S (NP (NNP John)) (VP (VBZ sleeps)))."""
    return tree.pformat(margin=float("inf"))
