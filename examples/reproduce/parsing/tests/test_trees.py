"""Reading, cleaning and linear form of trees, against trees by hand and a checker by rewriting of strings."""

import gzip
import re

import pytest
from nltk import Tree

from ..linear import delinearise, linearise, without_brackets
from ..toy_trees import toy_treebank
from ..trees import bracketed, read_treebank

JOHN = Tree.fromstring("(S (NP (NNP John)) (VP (VBZ sleeps)) (. .))")
PENN = """
( (S
    (NP-SBJ-1 (NNP John) )
    (VP (VBZ sleeps)
      (S (NP-SBJ (-NONE- *-1) )
         (ADVP-TMP (-NONE- *T*-2) )))
    (. .) ))
( (NP=2 (-LRB- -LRB-) (NN ice|cream) (-RRB- -RRB-)))


( (S (S (NP (NNP Mary)) (VP-CLR (VBD 1\\/2))) ))
"""
TOYS = [tree for trees in toy_treebank(files=8) for tree in trees]
CLEANED = [
    ["(S (NP (NNP John)) (VP (VBZ sleeps)) (. .))", "(NP (-LRB- -LRB-) (NN ice|cream) (-RRB- -RRB-))"],
    ["(S (S (NP (NNP Mary)) (VP (VBD 1\\/2))))"],
]


@pytest.fixture
def read(tmp_path):
    """The trees of a text, as that of a file."""

    def read(text, name="x.mrg"):
        content = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return read_treebank(tmp_path / name)

    return read


def test_a_treebank_is_read_clean_and_by_file_whatever_its_layout(read):
    files = read(PENN)
    assert [[bracketed(tree) for tree in trees] for trees in files] == CLEANED
    assert read(PENN, "x.mrg.gz") == read(PENN.replace("\n", "\r\n")) == files
    assert read("\n\n".join("\n".join(trees) for trees in CLEANED)) == files


def test_linear_form_by_hand():
    tokens = ["John", "(S", "(NP", "(NNP)", "sleeps", ")NP", "(VP", "(VBZ)", ".", ")VP", "(.)", ")S"]
    assert linearise(JOHN) == tokens
    assert linearise(Tree.fromstring("(S (NP (NN a)) (NN a))")) == ["a", "(S", "(NP", "(NN)", "a", ")NP", "(NN)", ")S"]
    assert bracketed(without_brackets(["a", "b"])) == "(TOP (XX a) (XX b))"


def test_nothing_is_lost():
    unusual = [Tree("TOP", [*JOHN]), Tree("S", [JOHN, JOHN]), Tree.fromstring("(NP (NP (NN NN)))")]
    for tree in [*TOYS, *unusual]:
        assert delinearise(linearise(tree), tree.leaves()) == tree


def is_linear_form(tokens, length):
    """By rewriting: a bracket around finished things is a finished thing, and one must be left. Words do not count."""
    text, before = " ".join(token for token in tokens if "(" in token or ")" in token), None
    while text != before:
        before, text = text, re.sub(r"\((\S+)((?: \([^() ]+\)| #)+) \)\1(?!\S)", "#", text)
    return text == "#" and sum(token[0] + token[-1] == "()" for token in tokens) == length
