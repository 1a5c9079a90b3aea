"""Bracketed trees of the Penn Treebank: reading, cleaning, and the sequences of tokens that a model writes for them.

The linear form is that of Vinyals et al. (2015), "Grammar as a Foreign Language", which section 6.3 follows: brackets
that carry their label at both ends. They wrote XX in place of every word, and the code that the paper's authors
released writes its tag; here the word comes before its tag, as a small model keeps its place in the sentence by copying
it, and one that has lost it can be helped.

    (S (NP (NNP John)) (VP (VBZ sleeps)) (. .))    ->    (S (NP John (NNP) )NP (VP sleeps (VBZ) )VP . (.) )S
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike

from modeling_vanilla.io import read_lines

NO_TAG = "XX"  # the tag of a word that nothing has tagged
TRACE = "-NONE-"
TOP = "TOP"  # the label of a root that only holds together what has no root of its own; EVALB does not score it
# Far above any sentence's, and below what Python's recursion bears: the right-branching tree is as deep as it is long.
MAX_DEPTH = 200
MAX_WORDS = 300

_TOKEN = re.compile(r"[()]|[^\s()]+")
_TAG = re.compile(r"\(([^()]+)\)")


@dataclass(frozen=True)
class Word:
    """A word with its part-of-speech tag, a leaf."""

    tag: str
    text: str


@dataclass(frozen=True)
class Node:
    """A constituent."""

    label: str
    children: "tuple[Node | Word, ...]"


# Reading


def read_treebank(path: str | PathLike) -> list[list[Node]]:
    """The cleaned trees of a treebank file, plain or .gz.

    Several of the treebank's files may stand one behind the other. Each begins with a blank line, and within one the
    trees follow each other without: a blank line between two trees is taken for the end of a file.

    Returns:
        For each file its trees, as `clean` leaves them.

    Raises:
        ValueError: if the file cannot be read or is no file of bracketed trees; the message names file and line.
    """
    files, previous = [], None
    for number, line, tree in _raw_trees(path):
        cleaned = clean(tree)
        if cleaned is None:
            raise ValueError(f"{path}, line {line}: the tree has no words")
        if len(words(cleaned)) > MAX_WORDS:
            raise ValueError(f"{path}, line {line}: the tree has {len(words(cleaned))} words, more than {MAX_WORDS}")
        if number != previous:
            files.append([])
            previous = number
        files[-1].append(cleaned)
    if not files:
        raise ValueError(f"{path}: there are no trees in it")
    return files


def _raw_trees(path: str | PathLike) -> Iterator[tuple[int, int, Node | Word]]:
    """Of each tree the number of blank lines before it, the line that it starts on, and itself."""
    # Every open bracket: the line it is on, and what has been found in it so far.
    opened: list[tuple[int, list[str | Node | Word]]] = []
    blanks = 0
    for number, line in enumerate(read_lines(path), start=1):
        blanks += not opened and not line.strip()
        for token in _TOKEN.findall(line):
            where = f"{path}, line {number}"
            if token == "(":
                if len(opened) == MAX_DEPTH:
                    raise ValueError(f"{where}: {MAX_DEPTH} brackets are open, in the tree from line {opened[0][0]} on")
                opened.append((number, []))
            elif not opened:
                what = (
                    "a bracket is closed that was never opened" if token == ")" else f"{token[:40]!r} is in no bracket"
                )
                raise ValueError(f"{where}: {what}; trees look like (S (NP (NNP John)) (VP (VBZ sleeps)))")
            elif token != ")":
                opened[-1][1].append(token)
            else:
                start, items = opened.pop()
                if opened:
                    opened[-1][1].append(_tree(items, f"{path}, line {start}, in the tree from line {opened[0][0]} on"))
                else:
                    yield blanks, start, _top(items, f"{path}, line {start}")
    if opened:
        raise ValueError(f"{path}, line {opened[0][0]}: the tree that starts here is not closed")


def _tree(items: list[str | Node | Word], where: str) -> Node | Word:
    match items:
        case [str(tag), str(text)]:
            return Word(tag, text)
        case [str(label), *children] if children and not any(isinstance(child, str) for child in children):
            return Node(label, tuple(children))
        case [] | [str()]:
            raise ValueError(f"{where}: a bracket has nothing in it: ({' '.join(items)})")
        case [str(label), *_]:
            raise ValueError(f"{where}: the bracket ({label} holds words that are in no bracket of their own")
    raise ValueError(f"{where}: a bracket has no label")


def _top(items: list[str | Node | Word], where: str) -> Node | Word:
    """As _tree; but the outermost bracket needs no label."""
    if items and not any(isinstance(item, str) for item in items):
        items = ["", *items]
    return _tree(items, where)


# Cleaning


def clean(tree: Node | Word) -> Node | None:
    """The tree that is parsed and scored, the usual way.

    - Traces (-NONE-) go, and constituents in which nothing is left.
    - Labels lose their functional tags and indices: NP-SBJ-1 and NP=2 become NP.
    - The bracket around the whole, without a label or named TOP, goes if one constituent is all it holds; otherwise it
      is named TOP.

    Returns:
        None if there are no words.
    """
    cleaned = _clean(tree)
    if isinstance(cleaned, Word):
        return Node(TOP, (cleaned,))
    while (
        cleaned and cleaned.label in ("", TOP) and len(cleaned.children) == 1 and isinstance(cleaned.children[0], Node)
    ):
        cleaned = cleaned.children[0]
    return Node(TOP, cleaned.children) if cleaned and not cleaned.label else cleaned


def _clean(tree: Node | Word) -> Node | Word | None:
    if isinstance(tree, Word):
        return None if tree.tag == TRACE else tree
    children = tuple(child for child in map(_clean, tree.children) if child is not None)
    return Node(re.split("[-=]", tree.label)[0] or tree.label, children) if children else None


# What is in a tree


def leaves(tree: Node | Word) -> list[Word]:
    """The words with their tags, in their order."""
    return [tree] if isinstance(tree, Word) else [leaf for child in tree.children for leaf in leaves(child)]


def below(tree: Node) -> list[Node]:
    """The constituents within a tree, each before those that are within it."""
    inner = [child for child in tree.children if isinstance(child, Node)]
    return [part for child in inner for part in (child, *below(child))]


def words(tree: Node | Word) -> list[str]:
    """The sentence."""
    return [leaf.text for leaf in leaves(tree)]


def with_tags(tree: Node, tags: Sequence[str]) -> Node:
    """The same tree with other tags, one for each word in their order."""
    remaining = iter(tags)

    def tagged(part: Node | Word) -> Node | Word:
        if isinstance(part, Word):
            return Word(next(remaining), part.text)
        return Node(part.label, tuple(map(tagged, part.children)))

    return tagged(tree)


def bracketed(tree: Node | Word) -> str:
    """The tree on a line, as it is read: (S (NP (NNP John)) (VP (VBZ sleeps)))."""
    if isinstance(tree, Word):
        return f"({tree.tag} {tree.text})"
    return f"({tree.label} {' '.join(map(bracketed, tree.children))})"


# The linear form


def linearise(tree: Node | Word) -> list[str]:
    """The tokens that stand for the tree: "(NP", ")NP" and, for each word, itself and its tag as in "(NN)"."""
    if isinstance(tree, Word):
        return [tree.text, f"({tree.tag})"]
    inner = [token for child in tree.children for token in linearise(child)]
    return [f"({tree.label}", *inner, f"){tree.label}"]


def delinearise(tokens: Sequence[str], sentence: Sequence[str]) -> Node:
    """The tree that the tokens stand for, over the words of the sentence.

    Whatever the tokens are, it is a tree over exactly these words. Where they are not the linear form of one:

    - the words written before the tags are held against the sentence: a tag of no word is passed over; words without a
      tag go, tagged XX, before the next that has one, or where the tokens end: into the innermost bracket that is open
      there, or else beside the root;
    - a closing bracket closes the nearest open one of its label, and with it all that are open inside; if there is
      none, it is passed over;
    - brackets left open close at the end, empty ones are taken out, other tokens are passed over;
    - several pieces are held together by a root named TOP.

    Args:
        tokens: what `linearise` or a model has written.
        sentence: its words, at least one.

    Raises:
        ValueError: if there are no words.
    """
    if not sentence:
        raise ValueError("a sentence without words has no tree")
    ends = iter(_ends(tokens, sentence))
    done = 0  # words of the sentence that are in the tree already
    opened: list[tuple[str, list[Node | Word]]] = [(TOP, [])]

    def close() -> None:
        label, children = opened.pop()
        if children:
            opened[-1][1].append(Node(label, tuple(children)))

    for token in tokens:
        if tag := _TAG.fullmatch(token):
            if end := next(ends):
                opened[-1][1].extend(Word(NO_TAG, text) for text in sentence[done : end - 1])
                opened[-1][1].append(Word(tag[1], sentence[end - 1]))
                done = end
        elif re.fullmatch(r"\([^()]+", token) and len(opened) < MAX_DEPTH:
            opened.append((token[1:], []))
        elif token.startswith(")") and token[1:] in [label for label, _ in opened[1:]]:
            while opened[-1][0] != token[1:]:
                close()
            close()
    opened[-1][1].extend(Word(NO_TAG, text) for text in sentence[done:])
    while len(opened) > 1:
        close()
    pieces = opened[0][1]
    return pieces[0] if len(pieces) == 1 and isinstance(pieces[0], Node) else Node(TOP, tuple(pieces))


def _ends(tokens: Sequence[str], sentence: Sequence[str]) -> list[int | None]:
    """For each tag among the tokens how many words of the sentence end with the one it is of; None if it is of none."""
    written, text = [], ""
    for token in tokens:
        if _TAG.fullmatch(token):
            written.append(text)
        text = "" if _is_bracket(token) else token
    ends: list[int | None] = [None] * len(written)
    matcher = difflib.SequenceMatcher(None, written, sentence, autojunk=False)
    for _, first, last, start, stop in matcher.get_opcodes():
        # Where the words differ, as many as there are on both sides are taken for each other.
        both = min(last - first, stop - start)
        ends[first : first + both] = range(start + 1, start + both + 1)
    return ends


def is_well_formed(tokens: Sequence[str], sentence: Sequence[str]) -> bool:
    """Whether the brackets and tags among the tokens are those of a tree over this sentence, with nothing to repair.

    A word may be written otherwise than it is in the sentence, but not left out, added or written in another's place.
    """
    repaired = linearise(delinearise(tokens, sentence))
    return [*filter(_is_bracket, repaired)] == [*filter(_is_bracket, tokens)]


def _is_bracket(token: str) -> bool:
    """Whether it is a bracket or a tag, and no word: those have no brackets in a treebank."""
    return token.startswith(("(", ")"))
