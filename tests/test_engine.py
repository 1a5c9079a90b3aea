"""CTranslate2 as the engine of a Translator gives what torch does."""

import json

import pytest
import torch
from helpers import add_noise, call, save_folder
from importers import OPUS, write_marian
from transformers import GenerationConfig

from modeling_vanilla import Translator, VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.cli import convert, export
from modeling_vanilla.cli import translate as command

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
    return Translator.from_pretrained(folder)


@pytest.fixture(scope="module")
def engine(folder):
    return Translator.from_pretrained(folder, engine="ctranslate2")


def test_greedy_search_is_the_same(engine, exact):
    eos_alone = [[number] for number in range(exact.model.config.vocab_size) if number != exact.tokenizer.eos_token_id]
    limits = ({"max_new_tokens": 5}, {"max_length": 5}, {"max_extra_tokens": None}, {"max_source_tokens": 8})
    processors = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    for settings in ({}, *limits, {"prefix": "der Hund"}, processors, {"bad_words_ids": eos_alone}):
        assert engine.translate(TEXTS, num_beams=1, **settings) == exact.translate(TEXTS, num_beams=1, **settings)


def test_hypotheses_have_the_scores_of_the_model(engine, exact):
    """log P of each token by torch's forward pass, for texts, pieces and prefixes, finished or cut at their limits."""
    for settings in ({}, {"prefix": "der"}, {"length_penalty": 1.4}, {"length_penalty_type": "length"}):
        for one, text in zip(engine.nbest(PAIRS, 3, **settings), PAIRS, strict=True):
            alpha = settings.get("length_penalty", 0.6)
            assert one == sorted(one, key=lambda best: (best.finished, best.score), reverse=True)
            for best in one:
                length = len(best.tokens)
                assert length == len(best.log_probs) <= len(exact.tokenizer(text).input_ids) + 12
                assert best.finished == (
                    "length_penalty_type" in settings or best.tokens[-1] == exact.tokenizer.eos_token
                )
                divisor = length**alpha if "length_penalty_type" in settings else ((5 + length) / 6) ** alpha
                assert best.score == pytest.approx(sum(best.log_probs) / divisor, abs=1e-5)
    again = {best.ids: best for best in exact.nbest(PAIRS[:1], 3)[0]}
    found = {best.ids: best for best in engine.nbest(PAIRS[:1], 3)[0]}
    assert again.keys() & found.keys()
    for ids in again.keys() & found.keys():
        assert found[ids].log_probs == pytest.approx(again[ids].log_probs, abs=1e-4)
        assert found[ids]._replace(log_probs=(), score=0, rank=0) == again[ids]._replace(log_probs=(), score=0, rank=0)


def test_pairs_are_scored_and_aligned_as_by_torch(engine, exact):
    targets = [*exact.translate(PAIRS)[:-1], ""]
    for found, expected in zip(engine.score(PAIRS, targets), exact.score(PAIRS, targets), strict=True):
        assert found.tokens == expected.tokens and found.log_prob == pytest.approx(expected.log_prob, abs=1e-3)
    assert engine.align(PAIRS, targets) == exact.align(PAIRS, targets)


def test_an_exported_folder_is_taken_as_it_is(folder, tmp_path, engine):
    assert call(export.main, "--to", "ctranslate2", folder, tmp_path / "ct2").code == 0
    exported = Translator.from_pretrained(tmp_path / "ct2", engine="ctranslate2", inter_threads=1)
    assert exported.nbest(PAIRS, 2) == engine.nbest(PAIRS, 2)
    (tmp_path / "ct2" / "config.json").write_text("{}")
    assert "config.json is bad" in call(command.main, tmp_path / "ct2", "--engine", "ctranslate2").error


@pytest.mark.parametrize(
    "options, message",
    [
        (("--terms", "terms"), "terms: the engine ctranslate2 has none"),
        (("--alignments", "out", "--alignment_layer", "1"), "layer must be from 0 to 0 with this engine, not 1"),
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
    for settings in ({"do_sample": True}, {"repetition_penalty": 1.5}, {"logits_processor": [len]}):
        with pytest.raises(ValueError, match=f"{next(iter(settings))} .*: the engine ctranslate2 has no such setting"):
            engine.translate(PAIRS, **settings)
    with pytest.raises(ValueError, match="quantization int8: the engine torch has none"):
        Translator.from_pretrained(folder, quantization="int8")
    with pytest.raises(ValueError, match="runs one"):
        Translator.from_pretrained(folder, folder, engine="ctranslate2")


# Settings of generate(), each with values that change no beam search, with some that do, or "had" by the engine.
INERT = {
    **{"temperature": [0.7], "top_k": [3], "top_p": [0.5], "min_p": [0.1], "top_h": [0.5], "typical_p": [0.5]},
    **{"epsilon_cutoff": [0.1], "eta_cutoff": [0.1], "use_cache": [False], "cache_implementation": ["dynamic"]},
    **{"cache_config": [{}], "max_cache_len": [99], "prefill_chunk_size": [5], "disable_compile": [True]},
    **{"compile_config": [], "continuous_batching_config": [], "transformers_version": ["4.0"]},
    **{f"output_{name}": [True] for name in ("attentions", "hidden_states", "scores", "logits")},
    **{"return_dict_in_generate": [False], "renormalize_logits": [True], "remove_invalid_values": [True]},
    **{"num_assistant_tokens": [5], "num_assistant_tokens_schedule": ["constant"], "max_matching_ngram_size": [2]},
    **{"assistant_confidence_threshold": [0.4], "assistant_lookbehind": [10], "target_lookbehind": [10]},
    **{"assistant_ensemble_weight": [0.5], "min_length": [0, 1], "min_new_tokens": [0], "repetition_penalty": [1.0]},
    **{"encoder_repetition_penalty": [1.0], "encoder_no_repeat_ngram_size": [0], "guidance_scale": [1]},
    **{"num_beam_groups": [1], "diversity_penalty": [0.0], "penalty_alpha": [0.0], "suppress_tokens": [[]]},
    **{"do_sample": [False], "use_mtp": [False], "token_healing": [False], "is_assistant": [False]},
}
CHANGING = {
    **{"do_sample": True, "use_mtp": True, "token_healing": True, "is_assistant": True, "min_length": 3},
    **{"min_new_tokens": 2, "repetition_penalty": 1.2, "encoder_repetition_penalty": 1.2, "diversity_penalty": 0.5},
    **{"encoder_no_repeat_ngram_size": 3, "guidance_scale": 0, "num_beam_groups": 2, "penalty_alpha": 0.6},
    **{"suppress_tokens": [5], "begin_suppress_tokens": [0], "forced_bos_token_id": 0, "forced_eos_token_id": 0},
    **{"sequence_bias": [[[5], 1.0]], "exponential_decay_length_penalty": (1, 1.1), "stop_strings": "a", "max_time": 0},
    **{"watermarking_config": {"bias": 2}, "constraints": [1], "force_words_ids": [[5]], "dola_layers": "low"},
    **{"prompt_lookup_num_tokens": 0, "assistant_early_exit": 1, "speculation_type": "dflash", "low_memory": True},
    **{"eos_token_id": [2, 5], "decoder_start_token_id": 0},
}
HAD = {"num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size", "bad_words_ids", "max_new_tokens"}
HAD |= {"max_length", "num_return_sequences", "pad_token_id", "bos_token_id"}


def test_every_setting_of_transformers_is_known(exact):
    """A new one of transformers has to be judged. What is inert is so in torch, too."""
    from modeling_vanilla.interop.to_ctranslate2 import check_settings

    fields = {name for name in vars(GenerationConfig()) if name[0] != "_"}
    assert not fields - INERT.keys() - CHANGING.keys() - HAD
    check_settings({"num_beams": 4, **GenerationConfig._get_default_generation_params()}, exact.model.config)
    expected = exact.translate(PAIRS[:2])
    for name in sorted(fields & INERT.keys()):
        for value in (None, *INERT[name]):
            check_settings({"num_beams": 4, name: value}, exact.model.config)
            assert exact.translate(PAIRS[:2], **{name: value}) == expected, name
    for name, value in CHANGING.items():
        with pytest.raises(ValueError, match=f"^{name} "):
            check_settings({"num_beams": 4, name: value}, exact.model.config)


@pytest.mark.parametrize("early_stopping", [True, "never"])
def test_by_the_rules_of_transformers_the_hypotheses_are_the_same(folder, tmp_path, early_stopping):
    """Of a model that often ends a sentence; by default, the engine stops between the two."""
    exact = Translator.from_pretrained(folder)
    with torch.no_grad():
        exact.model.get_input_embeddings().weight[exact.tokenizer.eos_token_id] *= 3
    saved = save_folder(tmp_path / "model", exact.model, exact.tokenizer)
    settings = {"length_penalty_type": "length", "length_penalty": 1.0, "early_stopping": early_stopping}
    found, expected = (
        Translator.from_pretrained(saved, engine=engine).nbest(PAIRS, 3, **settings)
        for engine in ("ctranslate2", "torch")
    )
    assert [[one.ids for one in each] for each in found] == [[one.ids for one in each] for each in expected]


# As opus-mt-en-de, -en-fr and -ko-en have them, with the ids of a smaller vocabulary.
OPUS_SEARCH = {name: OPUS[name] for name in ("pad_token_id", "decoder_start_token_id", "bos_token_id", "eos_token_id")}
OPUS_SEARCH |= {"bad_words_ids": [[OPUS["pad_token_id"]]], "forced_eos_token_id": 0, "max_length": 512}
PUBLISHED = [
    {**OPUS_SEARCH, "_from_model_config": True, "num_beams": 6, "transformers_version": "4.32.0.dev0"},
    {**OPUS_SEARCH, "num_beams": 4, "renormalize_logits": True, "transformers_version": "4.32.0.dev0"},
    {**OPUS_SEARCH, "num_beams": 6, "renormalize_logits": True, "transformers_version": "4.33.0.dev0"},
]


@pytest.mark.parametrize("published", PUBLISHED, ids=["en-de", "en-fr", "ko-en"])
def test_a_published_model_is_exported_as_it_is_and_after_seq2seq_trainer(tmp_path, published):
    write_marian(tmp_path / "opus")
    (tmp_path / "opus" / "generation_config.json").write_text(json.dumps(published))
    model = tmp_path / "model"
    assert call(convert.main, "--from", "marian", tmp_path / "opus", model).code == 0
    for name in ("as it is", "trained"):
        assert call(export.main, "--to", "ctranslate2", model, tmp_path / name).code == 0
        found, expected = (
            Translator.from_pretrained(tmp_path / name, engine="ctranslate2"),
            Translator.from_pretrained(model),
        )
        assert found.engine.generation_config.num_beams == published["num_beams"]
        assert found.translate(["A B C", "a K"], num_beams=1) == expected.translate(["A B C", "a K"], num_beams=1)
        search = GenerationConfig.from_pretrained(model)
        search.update(**GenerationConfig._get_default_generation_params(), defaults_only=True)
        search.save_pretrained(model)
    search.update(forced_eos_token_id=0)
    search.save_pretrained(model)
    done = call(export.main, "--to", "ctranslate2", model, tmp_path / "refused")
    assert done.error.startswith("forced_eos_token_id 0: ") and not (tmp_path / "refused").exists()
