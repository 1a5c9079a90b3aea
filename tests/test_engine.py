"""CTranslate2 as the engine behind the functions of `inference` gives what torch does."""

import pytest
import torch
from helpers import add_noise, call, save_folder

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.cli import export
from modeling_vanilla.cli import translate as command
from modeling_vanilla.inference import load_translator, score_pairs, translate, translate_nbest, word_alignments

pytest.importorskip("ctranslate2")

TEXTS = ["a dog sees a cat", "", "the old man gives the small child a red apple", "a big dog\n\nhas cats", "a"]
PAIRS = [text.replace("\n", " ") for text in TEXTS if text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    torch.manual_seed(0)
    stacks = {"encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32, "d_model": 24}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 2}
    model = add_noise(VanillaForConditionalGeneration(VanillaConfig(vocab_size=len(tokenizer), **stacks, **heads)))
    model.eval()
    model.generation_config.max_extra_tokens = 12
    return save_folder(tmp_path_factory.mktemp("engine") / "model", model, tokenizer)


@pytest.fixture(scope="module")
def exact(folder):
    return load_translator([folder])


@pytest.fixture(scope="module")
def engine(folder):
    return load_translator([folder], engine="ctranslate2")


def test_greedy_search_is_the_same(engine, exact):
    for settings in ({}, {"max_new_tokens": 5}, {"max_length": 5}, {"prefix": "der Hund"}, {"max_source_tokens": 8}):
        assert translate(*engine, TEXTS, num_beams=1, **settings) == translate(*exact, TEXTS, num_beams=1, **settings)


def test_hypotheses_have_the_scores_of_the_model(engine, exact):
    """log P of each token by torch's forward pass, for texts, pieces and prefixes, finished or cut at their limits."""
    for settings in ({}, {"prefix": "der"}, {"length_penalty": 1.4}, {"length_penalty_type": "length"}):
        for one, text in zip(translate_nbest(*engine, PAIRS, 3, **settings), PAIRS, strict=True):
            alpha = settings.get("length_penalty", 0.6)
            assert one == sorted(one, key=lambda best: (best.finished, best.score), reverse=True)
            for best in one:
                length = len(best.tokens)
                assert length == len(best.log_probs) <= len(exact[1](text).input_ids) + 12
                assert best.finished == (best.tokens[-1] == exact[1].eos_token)
                divisor = length**alpha if "length_penalty_type" in settings else ((5 + length) / 6) ** alpha
                assert best.score == pytest.approx(sum(best.log_probs) / divisor, abs=1e-5)
    again = {best.ids: best for best in translate_nbest(*exact, PAIRS[:1], 3)[0]}
    found = {best.ids: best for best in translate_nbest(*engine, PAIRS[:1], 3)[0]}
    assert again.keys() & found.keys()
    for ids in again.keys() & found.keys():
        assert found[ids].log_probs == pytest.approx(again[ids].log_probs, abs=1e-4)
        assert found[ids]._replace(log_probs=(), score=0, rank=0) == again[ids]._replace(log_probs=(), score=0, rank=0)


def test_pairs_are_scored_and_aligned_as_by_torch(engine, exact):
    targets = [*translate(*exact, PAIRS)[:-1], ""]
    for found, expected in zip(score_pairs(*engine, PAIRS, targets), score_pairs(*exact, PAIRS, targets), strict=True):
        assert found.tokens == expected.tokens and found.log_prob == pytest.approx(expected.log_prob, abs=1e-3)
    assert word_alignments(*engine, PAIRS, targets) == word_alignments(*exact, PAIRS, targets)


def test_an_exported_folder_is_taken_as_it_is(folder, tmp_path, engine):
    assert call(export.main, "--to", "ctranslate2", folder, tmp_path / "ct2").code == 0
    exported = load_translator([tmp_path / "ct2"], engine="ctranslate2", inter_threads=1)
    assert translate_nbest(*exported, PAIRS, 2) == translate_nbest(*engine, PAIRS, 2)
    (tmp_path / "ct2" / "config.json").write_text("{}")
    assert "config.json is bad" in call(command.main, tmp_path / "ct2", "--engine", "ctranslate2").error


@pytest.mark.parametrize(
    "options, message",
    [
        (("--terms", "terms"), "terms: the engine ctranslate2 has none"),
        (("--alignments", "out", "--alignment_layer", "1"), "layer 1: the engine ctranslate2 tells of layer 0 alone"),
        (("--device", "mps"), "mps"),
    ],
)
def test_what_the_engine_lacks_is_one_line(folder, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms").write_text("dog\tHund\n")
    done = call(command.main, folder, "--engine", "ctranslate2", *options, stdin=b"a dog\n")
    assert message in done.error
    assert not (tmp_path / "out").exists()


def test_settings_that_one_engine_lacks(engine, exact, folder):
    for settings, name in (({"do_sample": True}, "do_sample"), ({"diversity_penalty": 0.5}, "diversity_penalty")):
        with pytest.raises(ValueError, match=f"{name}: the engine ctranslate2 has no such setting"):
            translate(*engine, PAIRS, **settings)
    with pytest.raises(ValueError, match="quantization int8: the engine torch has none"):
        load_translator([folder], quantization="int8")
    with pytest.raises(ValueError, match="runs one"):
        load_translator([folder, folder], engine="ctranslate2")
