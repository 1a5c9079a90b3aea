"""Reading, cleaning and linear form of trees, against trees by hand and a checker by rewriting of strings."""

import gzip
import random
import re

import pytest
from nltk import Tree

from ..linear import delinearise, is_well_formed, linearise
from ..toy_trees import toy_treebank
from ..trees import bracketed, clean, read_sentences, read_treebank

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
BAD = "a bracket needs a label and one word or brackets, not"
CLEANED = [
    ["(S (NP (NNP John)) (VP (VBZ sleeps)) (. .))", "(NP (-LRB- -LRB-) (NN ice|cream) (-RRB- -RRB-))"],
    ["(S (S (NP (NNP Mary)) (VP (VBD 1\\/2))))"],
]


def toy(**sizes):
    return [tree for trees in toy_treebank(**sizes) for tree in trees]


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
    assert files[0][0] == JOHN
    assert read(PENN, "x.mrg.gz") == read(PENN.replace("\n", "\r\n")) == files
    assert read("\n\n".join("\n".join(trees) for trees in CLEANED)) == files


def test_sentences_are_words_apart_by_spaces(tmp_path):
    path = tmp_path / "text"
    path.write_text("John  sleeps .\n-LRB- 1\\/2 -RRB-")
    assert read_sentences(path) == [["John", "sleeps", "."], ["-LRB-", "1\\/2", "-RRB-"]]
    for text, says in (("a\n\nb", "2: a sentence has 1 to 300 words, not 0"), ("(a)", "1: brackets are written -LRB-")):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"{path}, line {says}"):
            read_sentences(path)


@pytest.mark.parametrize(
    "raw, cleaned",
    [
        ("(TOP (S-HLN (NN a)))", "(S (NN a))"),
        ("(TOP (NP (NN a)) (NP (NN b)))", "(TOP (NP (NN a)) (NP (NN b)))"),
        ("((NN a))", "(TOP (NN a))"),
        ("(NP-SBJ=2 (-NONE- *) (NP-1-2 (-NONE- 0)) (PRP$ her))", "(NP (PRP$ her))"),
    ],
)
def test_cleaning(raw, cleaned, read):
    assert bracketed(read(raw)[0][0]) == cleaned


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "x.mrg: there are no trees in it"),
        ("(S (NN a))\n( (S (NN b)\n   (NN c) )\n", "x.mrg, line 2: the tree that starts here is not closed"),
        ("( (S (NN a))\n( (S (NN b)))\n)", f"x.mrg, line 1: {BAD} ( (S (NN b)))"),
        ("(S (NN a)))\n", "x.mrg, line 1: ')' is in no bracket"),
        ("(S (NN a))\n()\n", f"x.mrg, line 2: {BAD} ( )"),
        ("(S (NN a)\n b)", f"x.mrg, line 1: {BAD} (S (NN a) b)"),
        ("(S\n(NP a b c))", f"x.mrg, line 1: {BAD} (NP a b c)"),
        ("(S (NN a))\n{'tree': 1}", "x.mrg, line 2: \"{'tree':\" is in no bracket"),
        ("(S (NN a))\n( (S (-NONE- *)))", "x.mrg, line 2: the tree has no words"),
        ("(S" + " (NN a)" * 301 + ")", "x.mrg, line 1: the tree has 301 words, more than 300"),
        ("(S " * 3000 + ")" * 3000, "x.mrg, line 1: the tree has more than 200 levels"),
    ],
)
def test_what_is_no_tree_is_named_with_its_line(text, says, read):
    with pytest.raises(ValueError, match=rf"^[^\n]*{re.escape(says)}[^\n]*$"):
        read(text)


# The linear form


def test_linear_form_by_hand():
    tokens = ["John", "(S", "(NP", "(NNP)", "sleeps", ")NP", "(VP", "(VBZ)", ".", ")VP", "(.)", ")S"]
    assert linearise(JOHN) == tokens
    assert delinearise(tokens, ["John", "sleeps", "."]) == JOHN
    assert linearise(Tree.fromstring("(S (NP (NN a)) (NN a))")) == ["a", "(S", "(NP", "(NN)", "a", ")NP", "(NN)", ")S"]


def test_nothing_is_lost():
    unusual = [Tree("TOP", [*JOHN]), Tree("S", [JOHN, JOHN]), Tree.fromstring("(NP (NP (NN NN)))")]
    for tree in [*toy(files=20), *unusual]:
        assert delinearise(linearise(tree), tree.leaves()) == tree
        assert is_well_formed(linearise(tree), tree.leaves())


@pytest.mark.parametrize(
    "tokens, repaired",
    [
        ("", "(TOP (XX a) (XX b) (XX c))"),
        ("(S (A) (B) (C)", "(S (A a) (B b) (C c))"),
        ("(S (NP (A) )S", "(TOP (S (NP (A a))) (XX b) (XX c))"),
        ("(S (A) )VP (B) (C) )S", "(S (A a) (B b) (C c))"),
        ("(S (A) (B) (C) (D) (E) )S", "(S (A a) (B b) (C c))"),
        ("(S (NP )NP (A) (B) (C) )S", "(S (A a) (B b) (C c))"),
        ("(S (A) <unk> (B) ( () A ) (C) )S", "(S (A a) (B b) (C c))"),
        (")S (S (A) (B) (C) )S )S", "(S (A a) (B b) (C c))"),
        ("(A) (B) (C) )TOP", "(TOP (A a) (B b) (C c))"),
        ("(S (NP b (B) )NP (VP c (C) )VP )S", "(S (NP (XX a) (B b)) (VP (C c)))"),
        ("(S a (A) a (A) (NP b (B) )NP c (C) )S", "(S (A a) (NP (B b)) (C c))"),
        ("(S ca (A) t (B) b (C) c (D) )S", "(S (A a) (C b) (D c))"),
        ("(S (NP the a (A) )NP b (B) c (C) d )S d (D)", "(S (NP (A a)) (B b) (C c))"),
    ],
)
def test_repair_by_hand(tokens, repaired):
    assert bracketed(delinearise(tokens.split(), ["a", "b", "c"])) == repaired
    assert not is_well_formed(tokens.split(), ["a", "b", "c"])


def is_linear_form(tokens, length):
    """By rewriting: a bracket around finished things is a finished thing, and one must be left. Words do not count."""
    text, before = " ".join(token for token in tokens if "(" in token or ")" in token), None
    while text != before:
        before, text = text, re.sub(r"\((\S+)((?: \([^() ]+\)| #)+) \)\1(?!\S)", "#", text)
    return text == "#" and sum(token[0] + token[-1] == "()" for token in tokens) == length


def test_any_tokens_give_a_tree_over_the_words():
    rng = random.Random(0)
    soup = ["(NN)", "(S", ")S", "(NP", ")NP", "the", "(", ")"]
    trees = toy(files=4)
    well_formed = 0
    for tree in rng.choices(trees, k=3000):
        sentence, tokens = tree.leaves(), linearise(tree)
        for _ in range(rng.choice([0, 1, 1, 2, 40])):
            at = rng.randrange(len(tokens) + 1)
            tokens[at : at + rng.randrange(2)] = rng.sample(soup, rng.randrange(3))
        repaired = delinearise(tokens, sentence)
        assert repaired.leaves() == sentence
        assert is_linear_form(linearise(repaired), len(sentence))
        assert is_linear_form(tokens, len(sentence)) or not is_well_formed(tokens, sentence)
        well_formed += is_well_formed(tokens, sentence)
    assert 500 < well_formed < 2500


def test_degenerate_tokens():
    assert delinearise(["", "(S", "", "a", "(A)", ""], ["a"]) == Tree.fromstring("(S (A a))")
    assert delinearise(["(S"] * 5000 + ["(NN)"] * 3, ["a", "b"]).leaves() == ["a", "b"]


def test_toy_trees_are_clean_and_all_different():
    trees = toy(files=8, sentences=25)
    assert len({bracketed(tree) for tree in trees}) == len(trees) == 200
    assert all(clean(tree) == tree for tree in trees)
    assert toy_treebank(files=8) == toy_treebank(files=8) != toy_treebank(files=8, seed=1)
