"""CTranslate2 as the engine of a Translator gives what torch does."""

import json
from functools import partial

import pytest
import torch
from helpers import call, fork, save_folder
from importers import OPUS, write_marian
from transformers import GenerationConfig

from modeling_vanilla import Translator
from modeling_vanilla.cli import convert, export
from modeling_vanilla.cli import translate as command

pytest.importorskip("ctranslate2")
from modeling_vanilla.interop.to_ctranslate2 import check_generation_config

TEXTS = ["a dog sees a cat", "", "the old man gives the small child a red apple", "a big dog\n\nhas cats", "a"]
PAIRS = [" ".join(text.split()) for text in TEXTS if text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_model, tokenizer):
    model = make_model(vocab_size=len(tokenizer))
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


def test_the_models_own_limit_is_the_same(engine, exact, monkeypatch):
    for one in (engine, exact):
        monkeypatch.setattr(one.engine.model.generation_config, "max_length", 5)
    assert engine.translate(TEXTS, num_beams=1) == exact.translate(TEXTS, num_beams=1, max_length=5)


def test_hypotheses_have_the_scores_of_the_model(engine, exact):
    """log P of each token by torch's forward pass, for texts, pieces and prefixes, finished or cut at their limits."""
    for settings in ({}, {"prefix": "der"}, {"length_penalty": 1.4}, {"length_penalty_type": "length"}):
        alpha, by_length = settings.get("length_penalty", 0.6), "length_penalty_type" in settings
        for one, text in zip(engine.nbest(PAIRS, 3, **settings), PAIRS, strict=True):
            assert one == sorted(one, key=lambda best: (best.finished, best.score), reverse=True)
            for best in one:
                length = len(best.tokens)
                assert length == len(best.log_probs) <= len(exact.tokenizer(text).input_ids) + 12
                assert best.finished == (by_length or best.tokens[-1] == exact.tokenizer.eos_token)
                divisor = length**alpha if by_length else ((5 + length) / 6) ** alpha
                assert best.score == pytest.approx(sum(best.log_probs) / divisor, abs=1e-5)
    again, found = ({best.ids: best for best in one.nbest(PAIRS[:1], 3)[0]} for one in (exact, engine))
    assert again.keys() & found.keys()
    for ids in again.keys() & found.keys():
        assert found[ids].log_probs == pytest.approx(again[ids].log_probs, abs=1e-4)
        assert found[ids]._replace(log_probs=(), score=0, rank=0) == again[ids]._replace(log_probs=(), score=0, rank=0)


def test_pairs_are_scored_and_aligned_as_by_torch(engine, exact):
    targets = [*exact.translate(PAIRS)[:-1], ""]
    for found, expected in zip(engine.score(PAIRS, targets), exact.score(PAIRS, targets), strict=True):
        assert found.tokens == expected.tokens and found.log_prob == pytest.approx(expected.log_prob, abs=1e-3)
    pairs = [*PAIRS, "", ""], [*targets, "", "a dog"]  # CTranslate2 does not read a blank source
    assert engine.align(*pairs) == exact.align(*pairs)


def test_a_text_beyond_the_positions_is_named(engine):
    """4096 positions; torch has no limit."""
    long = "dog " * 4999 + "dog"
    for run in (engine.score, engine.align):
        with pytest.raises(ValueError, match=r"^'dog dog .*, of 5001 tokens: CTranslate2: No position encodings"):
            run([PAIRS[0], long], PAIRS[:2])
    with pytest.raises(ValueError, match=r"^'dog dog .*, of 5001 tokens: "):
        engine.translate([PAIRS[0], long], max_source_tokens=10_000)


def test_a_fork_loads_an_engine_of_its_own(folder, engine):
    """The parent's, whose threads it has not, would wait for ever, and so would its end."""

    def work():
        own = Translator.from_pretrained(folder, engine="ctranslate2")
        assert own.translate(PAIRS) == expected
        for run in (engine.translate, engine.nbest, engine.score):
            with pytest.raises(ValueError, match=r"^engine: one of ctranslate2 does not work in a fork of its process"):
                run(PAIRS, *{engine.nbest: [2], engine.score: [PAIRS]}.get(run, ()))
        engine.engine = None

    expected = engine.translate(PAIRS)
    assert fork(work) == 0


def test_an_exported_folder_is_taken_as_it_is(folder, tmp_path, engine):
    assert call(export.main, "--to", "ctranslate2", folder, tmp_path / "ct2").code == 0
    exported = Translator.from_pretrained(tmp_path / "ct2", engine="ctranslate2", inter_threads=1)
    assert exported.nbest(PAIRS, 2) == engine.nbest(PAIRS, 2)
    (tmp_path / "ct2" / "config.json").write_text("{}")
    assert "config.json is bad" in call(command.main, tmp_path / "ct2", "--engine", "ctranslate2").error


LACKING = [
    (("--terms", "terms"), "terms: the engine ctranslate2 needs a model trained with --protect"),
    (("--alignments", "out", "--alignment_layer", "1"), "layer must be from 0 to 0 with this engine, not 1"),
    (("--device", "mps"), "mps"),
]


@pytest.mark.parametrize(("options", "message"), LACKING)
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


DEFAULTS = GenerationConfig._get_default_generation_params()
SAMPLES = {"do_sample": True, "num_beams": 1}
INERT = [DEFAULTS, DEFAULTS | SAMPLES, dict.fromkeys(vars(GenerationConfig())), {"top_p": 0.9, "epsilon_cutoff": 0.1}]
INERT += [{"use_cache": False, "renormalize_logits": True}, {"min_new_tokens": 0, "suppress_tokens": []}]
CHANGING = [SAMPLES | {"top_p": 0.9}, {"do_sample": True}, {"repetition_penalty": 1.2}, {"min_length": 3}]
CHANGING += [{"forced_eos_token_id": 0}, {"eos_token_id": [2, 5]}, {"guidance_scale": 0}, {"max_time": 0}]
CHANGING += [{"suppress_tokens": [5]}, {"stop_strings": "a"}, {"of_a_later_version": 1}]


def test_a_setting_that_the_engine_lacks_is_refused_if_it_changes_the_search(exact):
    check = partial(check_generation_config, config=exact.model.config)
    for settings in INERT:
        check({"num_beams": 4, **settings})
    for settings in INERT[3:]:
        assert exact.translate(PAIRS, **settings) == exact.translate(PAIRS)
    for settings in CHANGING:
        with pytest.raises(ValueError, match=f"^{[*settings][-1]} "):
            check({"num_beams": 4, **settings})


@pytest.mark.parametrize("early_stopping", [True, "never"])
def test_by_the_rules_of_transformers_the_hypotheses_are_the_same(folder, tmp_path, early_stopping):
    """Of a model that often ends a sentence; with False, the engine stops between the two."""
    exact = Translator.from_pretrained(folder)
    with torch.no_grad():
        exact.model.get_input_embeddings().weight[exact.tokenizer.eos_token_id] *= 3
    saved = save_folder(tmp_path / "model", exact.model, exact.tokenizer)
    settings = {"length_penalty_type": "length", "length_penalty": 1.0, "early_stopping": early_stopping}
    ids = []
    for name in ("ctranslate2", "torch"):
        nbest = Translator.from_pretrained(saved, engine=name).nbest(PAIRS, 3, **settings)
        ids.append([[best.ids for best in one] for one in nbest])
    assert ids[0] == ids[1]


# As opus-mt-en-de and -en-fr have them, with the ids of a smaller vocabulary.
OPUS_SEARCH = {name: OPUS[name] for name in ("pad_token_id", "decoder_start_token_id", "bos_token_id", "eos_token_id")}
OPUS_SEARCH |= {"bad_words_ids": [[OPUS["pad_token_id"]]], "forced_eos_token_id": 0, "max_length": 512}
PUBLISHED = [
    {**OPUS_SEARCH, "_from_model_config": True, "num_beams": 6, "transformers_version": "4.32.0.dev0"},
    {**OPUS_SEARCH, "num_beams": 4, "renormalize_logits": True, "transformers_version": "4.32.0.dev0"},
]


@pytest.mark.parametrize("published", PUBLISHED, ids=["en-de", "en-fr"])
def test_a_published_model_is_exported_as_it_is_and_after_seq2seq_trainer(tmp_path, published):
    write_marian(tmp_path / "opus")
    (tmp_path / "opus" / "generation_config.json").write_text(json.dumps(published))
    model = tmp_path / "model"
    assert call(convert.main, "--from", "marian", tmp_path / "opus", model).code == 0
    for name in ("as it is", "trained"):
        assert call(export.main, "--to", "ctranslate2", model, tmp_path / name).code == 0
        found = Translator.from_pretrained(tmp_path / name, engine="ctranslate2")
        expected = Translator.from_pretrained(model)
        assert found.engine.model.generation_config.num_beams == published["num_beams"]
        assert found.translate(["A B C", "a K"], num_beams=1) == expected.translate(["A B C", "a K"], num_beams=1)
        search = GenerationConfig.from_pretrained(model)
        search.update(**GenerationConfig._get_default_generation_params(), defaults_only=True)
        search.save_pretrained(model)
    search.update(forced_eos_token_id=0)
    search.save_pretrained(model)
    done = call(export.main, "--to", "ctranslate2", model, tmp_path / "refused")
    assert done.error.startswith("forced_eos_token_id 0: ") and not (tmp_path / "refused").exists()
