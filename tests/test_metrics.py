"""Metrics against sacreBLEU called directly, and against figures worked out by hand."""

import math
import shutil
import socket
import subprocess

import evaluate
import pytest
import sacrebleu

from modeling_vanilla.training.metrics import (
    ChrF,
    CompoundSplitBleu,
    Perplexity,
    SacreBleu,
    split_compounds,
    translation_scores,
)

PREDICTIONS = ["Der Hund bellt laut , sagt er .", "Eine Katze schläft auf dem roten Sofa.", "Das ist gut."]
REFERENCES = ["Der Hund bellt sehr laut, sagt er.", "Eine Katze schläft auf dem Sofa.", "Das ist sehr gut!"]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a metric must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def make(tmp_path):
    return lambda metric, **options: metric(cache_dir=str(tmp_path), **options)


def test_metrics_are_sacrebleu(make):
    bleu = sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score
    chrf = sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES]).score
    assert 0 < bleu < 100
    result = make(SacreBleu).compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result["bleu"] == bleu
    for part in ("nrefs:1", "case:mixed", "tok:13a", "smooth:exp", f"version:{sacrebleu.__version__}"):
        assert part in result["bleu_signature"]
    result = make(ChrF).compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result["chrf"] == chrf
    assert "nc:6|nw:0" in result["chrf_signature"]


def test_tokenised_text_is_left_as_it_is(make):
    none = sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES], tokenize="none", force=True).score
    result = make(SacreBleu).compute(predictions=PREDICTIONS, references=REFERENCES, tokenize="none")
    assert result["bleu"] == none != sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score
    assert "tok:none" in result["bleu_signature"]


def test_several_references(make):
    second = ["Der Hund bellt laut, sagt er.", "Die Katze schläft auf dem roten Sofa.", "Das ist gut!"]
    expected = sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES, second]).score
    references = [list(row) for row in zip(REFERENCES, second, strict=True)]
    result = make(SacreBleu).compute(predictions=PREDICTIONS, references=references)
    assert result["bleu"] == expected > sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score
    assert "nrefs:2" in result["bleu_signature"]


def test_batches_add_up(make):
    metric = make(SacreBleu)
    for prediction, reference in zip(PREDICTIONS, REFERENCES, strict=True):
        metric.add_batch(predictions=[prediction], references=[reference])
    assert metric.compute()["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score


def test_metrics_combine(make):
    both = evaluate.combine([make(SacreBleu), make(ChrF), make(CompoundSplitBleu)])
    result = both.compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result == translation_scores(PREDICTIONS, REFERENCES)


def test_bleu_by_hand():
    # 7 of 8 words match, 5 of 7 pairs, 3 of 6 triples and 2 of 5 quadruples; 9 words in the reference.
    prediction, reference = "a b c d e f x g", "a b c d e f g h i"
    precisions = [7 / 8, 5 / 7, 4 / 6, 3 / 5]
    expected = 100 * math.exp(1 - 9 / 8) * math.prod(precisions) ** 0.25
    scores = translation_scores([prediction], [reference], tokenize="none")
    assert scores["bleu"] == pytest.approx(expected, abs=1e-9)
    assert scores["bleu_compound_split"] == pytest.approx(expected, abs=1e-9)


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


def test_punctuation_beyond_ascii_is_set_apart():
    # Both sides quote: „ Haus “ are three words, of which two match.
    quoted = translation_scores(["er sagt „Haus“… nie wieder so"], ["er sagt „Hans“… nie wieder so"])
    spaced = translation_scores(
        ["er sagt „ Haus “ … nie wieder so"], ["er sagt „ Hans “ … nie wieder so"], tokenize="none"
    )
    assert quoted["bleu_compound_split"] == spaced["bleu_compound_split"] > 0


SPLITS = {
    "Rot-Kreuz": "Rot ##AT##-##AT## Kreuz",
    "a-b-c": "a ##AT##-##AT## b-c",
    "aa-bb-cc": "aa ##AT##-##AT## bb ##AT##-##AT## cc",
    "a-ö-b": "a ##AT##-##AT## ö ##AT##-##AT## b",
    "a--b": "a ##AT##-##AT## -b",
    "Haus- und Hof-": "Haus- und Hof-",
    "x - y -z": "x - y -z",
    "": "",
}


@pytest.mark.parametrize("text", SPLITS)
def test_split_compounds(text):
    assert split_compounds(text) == SPLITS[text]


@pytest.mark.skipif(shutil.which("perl") is None, reason="needs perl")
def test_split_compounds_is_the_script_s_perl():
    program = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
    texts = [*SPLITS, "a-b-c-d-e", "é-ü-\u00a0-x", "3-4-5", "---", "-a-"]
    done = subprocess.run(
        ["perl", "-ple", program],
        input="".join(text + "\n" for text in texts).encode(),
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == "".join(split_compounds(text) + "\n" for text in texts)


def test_translation_scores_are_those_of_the_metrics(make):
    scores = translation_scores(PREDICTIONS, REFERENCES)
    for metric in (SacreBleu, CompoundSplitBleu, ChrF):
        result = make(metric).compute(predictions=PREDICTIONS, references=REFERENCES)
        assert result == {name: scores[name] for name in result}
    assert set(scores) == {
        name + suffix for name in ("bleu", "bleu_compound_split", "chrf") for suffix in ("", "_signature")
    }


def test_a_perfect_translation_scores_100():
    scores = translation_scores(REFERENCES, REFERENCES)
    assert [scores[name] for name in ("bleu", "bleu_compound_split", "chrf")] == pytest.approx([100, 100, 100])


def test_bad_input_is_one_clear_line():
    for arguments, part in [
        (([], []), "no predictions"),
        ((["a", "b"], ["a"]), "2 predictions but 1 references"),
        ((["a", "b"], [["a"], []]), "sentence 2 has none"),
        ((["a"], ["a"], "moses"), "'moses'"),
    ]:
        with pytest.raises(ValueError, match=part) as raised:
            translation_scores(*arguments)
        assert "\n" not in str(raised.value)


def test_perplexity_by_hand(make):
    metric = make(Perplexity)
    # Four tokens of probability 1/2, then one of 1/8: the mean is 7/5 ln 2.
    metric.add_batch(nll=[4 * math.log(2)], tokens=[4])
    metric.add_batch(nll=[math.log(8)], tokens=[1])
    result = metric.compute()
    assert result["perplexity"] == pytest.approx(2**1.4, rel=1e-12)
    assert result["nll"] == pytest.approx(1.4 * math.log(2), rel=1e-12)
    assert result["tokens"] == 5
    assert make(Perplexity).compute(nll=[2000.0], tokens=[1])["perplexity"] == math.inf
    with pytest.raises(ValueError, match="at least one token"):
        make(Perplexity).compute(nll=[0.0], tokens=[0])
