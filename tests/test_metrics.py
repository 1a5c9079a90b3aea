"""Scores against sacreBLEU called directly, and against figures worked out by hand."""

import shutil
import subprocess

import pytest
import sacrebleu
from helpers import as_lines

from modeling_vanilla.metrics import split_compounds, translation_scores

PREDICTIONS = ["Der Hund bellt laut , sagt er .", "Eine Katze schläft auf dem roten Sofa.", "我们看见了狗。"]
REFERENCES = ["Der Hund bellt sehr laut, sagt er.", "Eine Katze schläft auf dem Sofa.", "我们看见了猫。"]
ANOTHER = "Der Hund bellt laut, sagt er."


@pytest.mark.parametrize("tokenize", ["13a", "none", "zh"])
@pytest.mark.parametrize("streams", [[REFERENCES], [REFERENCES, [ANOTHER, None, None]]])
def test_scores_are_sacrebleu(tokenize, streams):
    references = [[text for text in row if text] for row in zip(*streams, strict=True)]
    scores = translation_scores(PREDICTIONS, references, tokenize)
    assert scores["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, streams, tokenize=tokenize, force=True).score > 0
    assert scores["chrf"] == sacrebleu.corpus_chrf(PREDICTIONS, streams).score
    count = len(streams) if None not in streams[-1] else "var"
    assert f"nrefs:{count}|case:mixed|eff:no|tok:{tokenize}|smooth:exp|version:" in scores["bleu_signature"]
    assert "nc:6|nw:0" in scores["chrf_signature"]
    if streams == [REFERENCES]:
        assert translation_scores(PREDICTIONS, REFERENCES, tokenize) == scores


def test_canonically_equivalent_translations_are_equal():
    scores = translation_scores(["Ein Ma\u0308dchen la\u0308uft weg."], ["Ein M\u00e4dchen l\u00e4uft weg."])
    assert [scores[name] for name in ("bleu", "bleu_compound_split", "chrf")] == pytest.approx([100, 100, 100])


def test_compound_split_bleu_by_hand():
    # Reference: das Rot ##AT##-##AT## Kreuz Haus . (6). Hypothesis: das Rot ##AT##-##AT## Kreuz Auto . (6).
    expected = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    scores = translation_scores(["das Rot-Kreuz Auto."], ["das Rot-Kreuz Haus."])
    assert scores["bleu_compound_split"] == pytest.approx(expected, abs=1e-9)
    assert "tok:moses-like-13a+compound-split|smooth:none" in scores["bleu_compound_split_signature"]


def test_compound_split_bleu_does_not_smooth_as_sacrebleu_does():
    scores = translation_scores(["a b c x"], ["a b c y"], tokenize="none")
    assert scores["bleu_compound_split"] == 0 < scores["bleu"]  # no quadruple matches, as in multi-bleu.perl


def test_punctuation_beyond_ascii_is_separated():
    # Both sides quote: „ Haus “ are three words, of which two match.
    quotes = (["er sagt „Haus“… nie wieder so"], ["er sagt „Hans“… nie wieder so"])
    spaced = (["er sagt „ Haus “ … nie wieder so"], ["er sagt „ Hans “ … nie wieder so"])
    score, expected = translation_scores(*quotes), translation_scores(*spaced, tokenize="none")
    assert score["bleu_compound_split"] == expected["bleu_compound_split"] > 0


@pytest.mark.skipif(shutil.which("perl") is None, reason="needs perl")
def test_split_compounds_is_the_script_s_perl():
    program = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
    texts = ["Haus- und Hof-", "x - y -z", "", "a-b-c", "aa-bb-cc", "a-ö-b", "a--b", "é-ü-\u00a0-x", "---", "-a-"]
    done = subprocess.run(["perl", "-ple", program], input=as_lines(texts), capture_output=True, check=True)
    assert done.stdout == as_lines(map(split_compounds, texts))


BAD_INPUT = [
    ((["a", "b"], ["a"]), "there are 2 predictions but 1 references$"),
    ((["a"], ["a"], "moses"), "tokenize: must be one of none, zh, 13a, intl, .*, not 'moses'$"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT)
def test_bad_input_is_one_clear_line(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        translation_scores(*arguments)
