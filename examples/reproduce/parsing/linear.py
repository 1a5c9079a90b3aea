"""Trees as sequences of tokens that a model writes, and trees from whatever tokens it writes.

The linear form is that of Vinyals et al. (2015), "Grammar as a Foreign Language", which section 6.3 follows: brackets
that carry their label at both ends. They wrote XX in place of every word, and the code that the paper's authors
released writes its tag; here the word is written, too, right after the tag of the word before it. What closes before a
word and what opens with it is then written in sight of that word, as a shift-reduce parser decides with one word of
lookahead, and its tag shifts it.

    (S (NP (NNP John)) (VP (VBZ sleeps)) (. .))    ->    John (S (NP (NNP) sleeps )NP (VP (VBZ) . )VP (.) )S

The search writes trees alone if it is told to (constraint.py); what a model writes without that may be repaired.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from nltk import Tree

from .trees import MAX_DEPTH, NO_TAG, TOP, is_preterminal

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


def delinearise(tokens: Sequence[str], sentence: Sequence[str]) -> Tree:
    """The tree that the tokens stand for, over the words of the sentence.

    Whatever the tokens are, the result is a tree over exactly these words. Where they are not the linear form of one:

    - The words written before the tags are aligned with the sentence. A tag that aligns with no word is ignored. Words
      that align with no tag are tagged XX and go before the next word that has one, or at the end of the tokens: into
      the innermost bracket that is open there, or else beside the root.
    - A closing bracket closes the nearest open one of its label and all that are open inside it; without such a
      bracket it is ignored.
    - Brackets that are open at the end are closed, empty ones are removed, other tokens are ignored.
    - Several adjacent trees get a root named TOP.

    Args:
        tokens: what `linearise` or a model has written.
        sentence: its words, at least one.
    """
    ends = iter(_ends(tokens, sentence))
    done = 0  # words of the sentence that are in the tree already
    opened = [Tree(TOP, [])]

    def close() -> None:
        part = opened.pop()
        if part:
            opened[-1].append(part)

    for token in tokens:
        if tag := _TAG.fullmatch(token):
            if end := next(ends):
                opened[-1].extend(Tree(NO_TAG, [word]) for word in sentence[done : end - 1])
                opened[-1].append(Tree(tag[1], [sentence[end - 1]]))
                done = end
        elif re.fullmatch(r"\([^()]+", token) and len(opened) < MAX_DEPTH:
            opened.append(Tree(token[1:], []))
        elif token.startswith(")") and token[1:] in [part.label() for part in opened[1:]]:
            while opened[-1].label() != token[1:]:
                close()
            close()
    opened[-1].extend(Tree(NO_TAG, [word]) for word in sentence[done:])
    while len(opened) > 1:
        close()
    (root,) = opened
    return root[0] if len(root) == 1 and not is_preterminal(root[0]) else root


def _ends(tokens: Sequence[str], sentence: Sequence[str]) -> list[int | None]:
    """For each tag among the tokens how many words of the sentence end with the word it is of; None if of no word."""
    written, text = [], ""
    for token in tokens:
        if not is_bracket(token):
            text = token
        elif _TAG.fullmatch(token):
            written.append(text)
            text = ""
    ends: list[int | None] = [None] * len(written)
    matcher = difflib.SequenceMatcher(None, written, sentence, autojunk=False)
    for _, first, last, start, stop in matcher.get_opcodes():
        # Where the words differ, they are paired in their order, as many as there are on both sides.
        both = min(last - first, stop - start)
        ends[first : first + both] = range(start + 1, start + both + 1)
    return ends


def is_well_formed(tokens: Sequence[str], sentence: Sequence[str]) -> bool:
    """Whether the brackets and tags among the tokens are those of a tree over this sentence, with nothing to repair.

    A word may be written otherwise than it is in the sentence, but not left out, added or written in another's place.
    """
    repaired = linearise(delinearise(tokens, sentence))
    return [*filter(is_bracket, repaired)] == [*filter(is_bracket, tokens)]


def is_bracket(token: str) -> bool:
    """Whether the token is a bracket or a tag, not a word: words have no brackets in a treebank."""
    return token.startswith(("(", ")"))
