"""Scores against sacreBLEU called directly, and against figures worked out by hand."""

import shutil
import subprocess

import pytest
import sacrebleu
from helpers import as_lines

from modeling_vanilla.training.metrics import split_compounds, translation_scores

PREDICTIONS = ["Der Hund bellt laut , sagt er .", "Eine Katze schläft auf dem roten Sofa.", "Das ist gut."]
REFERENCES = ["Der Hund bellt sehr laut, sagt er.", "Eine Katze schläft auf dem Sofa.", "Das ist sehr gut!"]
SECOND = ["Der Hund bellt laut, sagt er.", "Die Katze schläft auf dem roten Sofa.", "Das ist gut!"]


def test_scores_are_sacrebleu():
    bleu = sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score
    scores = translation_scores(PREDICTIONS, REFERENCES)
    assert scores["bleu"] == bleu
    assert scores["chrf"] == sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES]).score
    for part in ("nrefs:1", "case:mixed", "tok:13a", "smooth:exp", f"version:{sacrebleu.__version__}"):
        assert part in scores["bleu_signature"]
    assert "nc:6|nw:0" in scores["chrf_signature"]

    tokenised = translation_scores(PREDICTIONS, REFERENCES, tokenize="none")
    none = sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES], tokenize="none", force=True).score
    assert tokenised["bleu"] == none != bleu
    assert "tok:none" in tokenised["bleu_signature"]

    several = translation_scores(PREDICTIONS, [list(row) for row in zip(REFERENCES, SECOND, strict=True)])
    assert several["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES, SECOND]).score > bleu
    assert several["bleu_compound_split"] > scores["bleu_compound_split"]
    assert "nrefs:2" in several["bleu_signature"]


def test_compound_split_bleu_by_hand():
    # Reference: das Rot ##AT##-##AT## Kreuz Haus . (6). Hypothesis: das Rot ##AT##-##AT## Kreuz Auto . (6).
    expected = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    scores = translation_scores(["das Rot-Kreuz Auto."], ["das Rot-Kreuz Haus."])
    assert scores["bleu_compound_split"] == pytest.approx(expected, abs=1e-9)
    assert scores["bleu_compound_split"] > scores["bleu"]
    assert "tok:moses-like-13a+compound-split|smooth:none" in scores["bleu_compound_split_signature"]


def test_compound_split_bleu_does_not_smooth():
    scores = translation_scores(["a b c x"], ["a b c y"], tokenize="none")
    assert scores["bleu_compound_split"] == 0  # no quadruple matches, as in multi-bleu.perl
    assert scores["bleu"] > 0


def test_punctuation_beyond_ascii_is_separated():
    # Both sides quote: „ Haus “ are three words, of which two match.
    quotes = (["er sagt „Haus“… nie wieder so"], ["er sagt „Hans“… nie wieder so"])
    spaced = (["er sagt „ Haus “ … nie wieder so"], ["er sagt „ Hans “ … nie wieder so"])
    score, expected = translation_scores(*quotes), translation_scores(*spaced, tokenize="none")
    assert score["bleu_compound_split"] == expected["bleu_compound_split"] > 0


def test_plain_quotes_on_both_sides():
    """A translation with plain marks equals its reference with typographic ones after that step alone."""
    scores = translation_scores(["er sagt \"Rot-Kreuz\" , 'nie'"], ["er sagt „Rot-Kreuz“ , ‚nie‘"])
    assert scores["bleu_compound_split"] < scores["bleu_compound_split_quotes"] == pytest.approx(100)
    assert "+plain-quotes+compound-split" in scores["bleu_compound_split_quotes_signature"]


@pytest.mark.skipif(shutil.which("perl") is None, reason="needs perl")
def test_split_compounds_is_the_script_s_perl():
    program = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
    texts = ["Haus- und Hof-", "x - y -z", "", "Rot-Kreuz", "a-b-c", "aa-bb-cc", "a-ö-b", "a--b"]
    texts += ["a-b-c-d-e", "é-ü-\u00a0-x", "3-4-5", "---", "-a-"]
    done = subprocess.run(["perl", "-ple", program], input=as_lines(texts), capture_output=True, check=True)
    assert done.stdout == as_lines(map(split_compounds, texts))


@pytest.mark.parametrize("tokenize", ["zh", "char"])
def test_a_language_without_spaces(tokenize):
    """One wrong character of ten; by 13a each sentence is one wrong word."""
    references = ["我们在花园里看见了狗。", "他昨天给我写了一封信。"]
    predictions = ["我们在花园里看见了猫。", "她昨天给我写了一封信。"]
    expected = sacrebleu.corpus_bleu(predictions, [references], tokenize=tokenize).score
    scores = translation_scores(predictions, references, tokenize)
    assert scores["bleu"] == pytest.approx(expected) and scores["bleu"] > 70
    assert scores["bleu_compound_split"] == pytest.approx(expected)  # there is none
    assert f"tok:{tokenize}" in scores["bleu_signature"]


BAD_INPUT = [
    (([], []), "there are no predictions to score"),
    ((["a", "b"], ["a"]), "there are 2 predictions but 1 references"),
    ((["a", "b"], [["a"], []]), "references: sentence 2 has none"),
    ((["a"], ["a"], "moses"), "tokenize: must be one of 13a, none, zh, char, not 'moses'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT)
def test_bad_input_is_one_clear_line(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        translation_scores(*arguments)
