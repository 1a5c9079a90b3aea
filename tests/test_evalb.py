"""Scores and baseline, against figures by hand and a second implementation, which works on the text of the trees."""

import random
import re

import pytest
from baseline import right_branching, right_branching_labels
from evalb import Scores, constituents, score
from toy_trees import toy_treebank
from trees import Node, Word, bracketed, words


def parse(text):
    """A tree by its text, as nested lists are built: innermost brackets first."""
    made = []
    while text.startswith("("):
        text = re.sub(
            r"\(([^\s()]+) ([^()]+)\)",
            lambda found: f"#{made.append(build(found.group(1), found.group(2).split(), made)) or len(made) - 1}",
            text,
        )
    return made[int(text[1:])]


def build(label, items, made):
    if len(items) == 1 and not items[0].startswith("#"):
        return Word(label, items[0])
    return Node(label, tuple(made[int(item[1:])] for item in items))


# A second implementation


DELETED = ["TOP", "-NONE-", ",", ":", "``", "''", "."]


def brackets(text):
    """Words and brackets of a tree's text, by going over its characters once, as EVALB does."""
    sentence, found, opened = [], [], []
    for token in re.findall(r"\([^\s()]+ [^\s()]+\)|\([^\s()]+|\)", text):
        if token == ")":
            start, label = opened.pop()
            found.append([label, start, len(sentence)])
        elif token.endswith(")"):
            tag, word = token[1:-1].split(" ")
            if tag not in DELETED:
                sentence.append(word)
        else:
            opened.append((len(sentence), token[1:]))
    kept = []
    for label, start, end in found:
        for mark in "-=":
            label = label.partition(mark)[0]
        if start != end and label not in DELETED:
            kept.append(("ADVP" if label == "PRT" else label, start, end))
    return sentence, kept


def second_score(gold, tested):
    matched = total_gold = total_tested = valid = complete = errors = 0
    for one, other in zip(map(bracketed, gold), map(bracketed, tested), strict=True):
        (one_words, one_brackets), (other_words, other_brackets) = brackets(one), brackets(other)
        if one_words != other_words:
            errors += 1
            continue
        valid += 1
        total_gold += len(one_brackets)
        total_tested += len(other_brackets)
        same = 0
        for bracket in one_brackets:
            if bracket in other_brackets:
                other_brackets.remove(bracket)
                same += 1
        matched += same
        complete += same == len(one_brackets) and not other_brackets
    return Scores(matched, total_gold, total_tested, valid, complete, errors)


def mangled(part, rng):
    """The tree with some constituents renamed, doubled or dissolved, some tags exchanged and some words lost."""
    if isinstance(part, Word):
        chance = rng.random()
        if chance < 0.01:
            return []
        return [Word(rng.choice([".", ",", "NN", ":"]), part.text) if chance < 0.03 else part]
    children = tuple(one for child in part.children for one in mangled(child, rng))
    chance = rng.random()
    if chance < 0.1 or not children:
        return list(children)
    label = rng.choice(["NP", "PRT", "ADVP", "TOP", "VP-2", "S=1"]) if chance < 0.3 else part.label
    node = Node(label, children)
    return [Node(label, (node,)) if chance > 0.9 else node]


def test_scores_are_those_of_a_second_implementation():
    rng = random.Random(1)
    gold = [one for trees in toy_treebank(files=40) for one in trees]
    tested = [Node("TOP", tuple(mangled(one, rng)) or (Word("NN", "none"),)) for one in gold]
    scores = score(gold, tested)
    assert scores == second_score(gold, tested)
    assert scores.errors > 50 and scores.complete > 20 and scores.matched < scores.gold - 500  # all cases are there
    for one, other in zip(gold, tested, strict=True):
        assert score([one], [other]) == second_score([one], [other])
        assert score([other], [one]) == second_score([other], [one])


def test_a_tree_agrees_with_itself():
    gold = [one for trees in toy_treebank(files=4) for one in trees]
    scores = score(gold, gold)
    assert (scores.precision, scores.recall, scores.f1, scores.complete_match, scores.errors) == (100, 100, 100, 100, 0)


# By hand


GOLD = "(S (NP (NNP John)) (VP (VBD gave) (PRT (RP up)) (NP (DT the) (NN job))) (. .))"


@pytest.mark.parametrize(
    "tested, matched, of",
    [
        (GOLD, 5, 5),
        ("(TOP " + GOLD + ")", 5, 5),
        (GOLD.replace("(PRT", "(ADVP"), 5, 5),
        (GOLD.replace("(PRT", "(PP"), 4, 5),
        (GOLD.replace("(NP (NNP", "(NP-SBJ-1 (NNP").replace("(VP", "(VP=2"), 5, 5),
        # A unary copy is one too many, and its span counts once only.
        ("(S (NP (NP (NNP John))) (VP (VBD gave) (PRT (RP up)) (NP (DT the) (NN job))) (. .))", 5, 6),
        # Punctuation may hang anywhere, and a bracket around it alone is none.
        ("(S (NP (NNP John)) (VP (VBD gave) (PRT (RP up)) (NP (DT the) (NN job) (. .))))", 5, 5),
        ("(S (NP (NNP John)) (VP (VBD gave) (PRT (RP up)) (NP (DT the) (NN job))) (X (. .)))", 5, 5),
        # Tags are not scored.
        (GOLD.replace("NNP", "XX").replace("VBD", "XX"), 5, 5),
        ("(S (NP (NNP John) (VBD gave)) (VP (RP up) (DT the) (NN job) (. .)))", 1, 3),
        ("(TOP (NNP John) (VBD gave) (RP up) (DT the) (NN job) (. .))", 0, 0),
    ],
)
def test_brackets_by_hand(tested, matched, of):
    scores = score([parse(GOLD)], [parse(tested)])
    assert (scores.matched, scores.gold, scores.tested, scores.errors) == (matched, 5, of, 0)
    assert scores.complete == (matched == 5 == of)


def test_percentages_by_hand():
    scores = Scores(matched=3, gold=4, tested=6, sentences=8, complete=1, errors=2)
    assert (scores.precision, scores.recall, scores.complete_match) == (50, 75, 12.5)
    assert scores.f1 == pytest.approx(2 * 50 * 75 / (50 + 75))
    assert Scores(0, 0, 0, 0, 0, 0).f1 == Scores(0, 5, 0, 1, 0, 0).f1 == 0


@pytest.mark.parametrize(
    "tested",
    [
        "(S (NP (NNP John)) (VP (VBD gave)))",
        GOLD.replace("job", "Job"),
        GOLD.replace("(RP up)", "(. up)"),  # taken out as punctuation here, a word there
    ],
)
def test_other_words_are_an_error_and_in_no_score(tested):
    scores = score([parse(GOLD), parse(GOLD)], [parse(GOLD), parse(tested)])
    assert scores == Scores(matched=5, gold=5, tested=5, sentences=1, complete=1, errors=1)


def test_as_many_trees_on_either_side():
    with pytest.raises(ValueError, match="there are 1 gold trees but 0 to score"):
        score([parse(GOLD)], [])


# The baseline


def test_right_branching_by_hand():
    sentence = ["``", "Mary", ",", "who", "sings", ",", "left", "''"]
    text = "(S (XX ``) (XX Mary) (XX ,) (VP (XX who) (VP (XX sings) (XX ,) (XX left) (XX ''))))"
    assert bracketed(right_branching(sentence, "S", "VP")) == text
    assert bracketed(right_branching(["Yes"], "S", "VP")) == "(S (XX Yes))"
    assert bracketed(right_branching([".", "."], "S", "VP")) == "(S (XX .) (XX .))"
    with pytest.raises(ValueError, match="without words"):
        right_branching([], "S", "VP")


def test_right_branching_has_every_end_of_the_sentence_once():
    for one in (one for trees in toy_treebank(files=4) for one in trees):
        tags = {",": ",", ".": ".", "?": ".", "``": "``", "''": "''"}
        leaves = [Word(tags.get(word, "XX"), word) for word in words(one)]
        branching = right_branching([leaf.text for leaf in leaves], "S", "VP")
        text = bracketed(branching)
        for leaf in leaves:
            text = text.replace(f"(XX {leaf.text})", f"({leaf.tag} {leaf.text})")
        sentence, spans = constituents(parse(text))
        n = len(sentence)
        expected = {("S", 0, n): 1} | {("VP", start, n): 1 for start in range(1, n - 1)}
        assert spans == expected


def test_no_other_labels_score_higher_on_the_training_trees():
    training = [one for trees in toy_treebank(files=4) for one in trees]
    spans = [(constituents(one)[1], len(constituents(one)[0])) for one in training]

    def found(root, inner):
        return sum(
            min(count, 1)
            for counts, n in spans
            for (label, start, end), count in counts.items()
            if n > 1 and end == n and end - start > 1 and label == (inner if start else root)
        )

    labels = ["S", "SQ", "NP", "VP", "PP", "SBAR", "ADVP"]
    assert found(*right_branching_labels(training)) == max(found(root, inner) for root in labels for inner in labels)
    assert right_branching_labels([]) == ("S", "S")
    # A last word alone is no right branch, however many brackets there are around it.
    assert right_branching_labels([parse("(S (NP (NN a)) (VP (VB b) (NP (NP (NN c)))))")]) == ("S", "VP")
