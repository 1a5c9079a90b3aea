"""Trees of the Penn Treebank as nltk's Tree: read from bracketed text, and cleaned as they are parsed and scored.

A preterminal is a tree that holds one word, (NNP John); every other constituent holds constituents.
"""

import re
from os import PathLike

from nltk import SExprTokenizer, Tree

from modeling_vanilla.files import read_lines

TRACE = "-NONE-"
TOP = "TOP"  # the label of a root over several constituents or a word; EVALB does not score it


def read_treebank(path: str | PathLike) -> list[list[Tree]]:
    """Read a treebank file, plain or .gz.

    It may be a concatenation of the treebank's files. Each of those begins with a blank line and has none between its
    trees, so a blank line between two trees is taken for the end of a file.

    Returns:
        For each file its trees, as `clean` returns them.

    Raises:
        ValueError: if the file cannot be read or is no file of bracketed trees; the message names it.
    """
    parts = re.split(r"\n\s*\n", "\n".join(read_lines(path)))
    files = [part.strip() for part in parts if part.strip()]
    if not files:
        raise ValueError(f"{path}: there are no trees in it")
    try:
        return [[_cleaned(text) for text in SExprTokenizer().tokenize(part)] for part in files]
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error


def _cleaned(text: str) -> Tree:
    tree = Tree.fromstring(text)
    for part in tree.subtrees():
        if len(part) != 1 and any(isinstance(child, str) for child in part):
            raise ValueError(f"a bracket needs a label and one word or brackets, not {bracketed(part)[:60]}")
    tree = clean(tree)
    if tree is None:
        raise ValueError(f"the tree has no words: {text[:60]}")
    return tree


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
