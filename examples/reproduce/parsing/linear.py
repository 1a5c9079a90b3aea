"""Trees as sequences of tokens that a model writes, and trees from what it writes.

The linear form is that of Vinyals et al. (2015), "Grammar as a Foreign Language", which section 6.3 follows: brackets
that carry their label at both ends. They wrote XX in place of every word, and the code that the paper's authors
released writes its tag. Here the word is written, too, right after the tag of the word before it: the decoder knows the
word when it closes and opens brackets before it, as a shift-reduce parser has one word of lookahead, and its tag shifts
it.

    (S (NP (NNP John)) (VP (VBZ sleeps)) (. .))    ->    John (S (NP (NNP) sleeps )NP (VP (VBZ) . )VP (.) )S

constraint.py holds the search to trees.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from nltk import Tree

from .trees import TOP, is_preterminal

_TAG = re.compile(r"\(([^()]+)\)")


def linearise(tree: Tree) -> list[str]:
    """The tokens that stand for the tree: "(NP", ")NP" and, for each word, the word and its tag as in "(NN)"."""
    words = iter(tree.leaves())
    tokens = [next(words)]
    for bracket in _brackets(tree):
        tokens.append(bracket)
        if _TAG.fullmatch(bracket):
            tokens.extend(islice(words, 1))
    return tokens


def _brackets(tree: Tree) -> Iterator[str]:
    if is_preterminal(tree):
        yield f"({tree.label()})"
        return
    yield f"({tree.label()}"
    for child in tree:
        yield from _brackets(child)
    yield f"){tree.label()}"


def delinearise(tokens: Sequence[str], sentence: Sequence[str]) -> Tree | None:
    """The tree over the words of the sentence that the brackets and tags stand for; None if they stand for none.

    A word may be written otherwise than it is in the sentence.
    """
    words, opened = iter(sentence), [Tree("", [])]
    for token in filter(is_bracket, tokens):
        if tag := _TAG.fullmatch(token):
            opened[-1].append(Tree(tag[1], list(islice(words, 1))))
        elif token.startswith("("):
            opened.append(Tree(token[1:], []))
        else:
            part = opened.pop()
            if not opened or part.label() != token[1:]:
                return None
            opened[-1].append(part)
    (root, *unclosed) = opened
    is_tree = len(root) == 1 and not unclosed and all(root.subtrees()) and next(words, None) is None
    return root[0] if is_tree and not is_preterminal(root[0]) else None


def without_brackets(sentence: Sequence[str]) -> Tree:
    """The tree without any constituent, for a sentence about which no tree is written."""
    return Tree(TOP, [Tree("XX", [word]) for word in sentence])


def is_bracket(token: str) -> bool:
    """Whether the token is a bracket or a tag, not a word: words have no brackets in a treebank."""
    return token.startswith(("(", ")"))
