"""CTranslate2 scores and translates as the model that was exported to it."""

import copy
import sys

import pytest
import torch
from helpers import call, make_tokenizer, save_folder
from transformers import AutoTokenizer

from modeling_vanilla.cli import export
from modeling_vanilla.inference import translate as our_translate

ctranslate2 = pytest.importorskip("ctranslate2")

from modeling_vanilla.interop.to_ctranslate2 import to_ctranslate2, translate  # noqa: E402

SOURCES = ["a small house", "the dog runs across the green meadow", "house", "the small dog runs"]
TARGETS = ["runs the green meadow", "a", "the dog a small house across", "green green"]


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(SOURCES)


def exported(model, tokenizer, folder, **options):
    to_ctranslate2(model, tokenizer, folder, **options)
    return ctranslate2.Translator(str(folder))


def difference_of_scores(model, tokenizer, translator) -> float:
    """The largest of log P of each target token, by CTranslate2 and by the model."""
    sources, targets = tokenizer(SOURCES).input_ids, tokenizer(TARGETS).input_ids
    scored = translator.score_batch(
        [tokenizer.convert_ids_to_tokens(ids) for ids in sources],
        [tokenizer.convert_ids_to_tokens(ids[:-1]) for ids in targets],
    )
    worst = 0.0
    for source, target, result in zip(sources, targets, scored, strict=True):
        decoder_input = torch.tensor([[model.config.decoder_start_token_id, *target[:-1]]])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([source]), decoder_input_ids=decoder_input).logits[0]
        expected = logits.log_softmax(dim=-1).gather(1, torch.tensor(target)[:, None])[:, 0]
        assert len(result.log_probs) == len(target)  # EOS, too
        worst = max(worst, (torch.tensor(result.log_probs) - expected).abs().max().item())
    return worst


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"d_k": 5, "d_v": 5},
        {"position_embedding_type": "learned", "max_position_embeddings": 60},
        {"attention_bias": True, "output_bias": True, "tie_word_embeddings": False},
        {"activation_function": "gelu", "layer_norm_eps": 0.1},
        {"activation_function": "swish"},
        {"vocab_size": 300},
    ],
    ids=lambda overrides: ", ".join(overrides) or "the paper's",
)
def test_every_token_has_the_same_probability(make_model, tokenizer, tmp_path, overrides):
    model = make_model(**{"vocab_size": len(tokenizer), **overrides})
    assert difference_of_scores(model, tokenizer, exported(model, tokenizer, tmp_path)) < 1e-4


def test_weights_of_8_bits_are_smaller_and_nearly_the_same(make_model, tokenizer, tmp_path):
    model = make_model(vocab_size=len(tokenizer))
    before, sizes = copy.deepcopy(model.state_dict()), {}
    for quantization, tolerance in (("float32", 1e-4), ("int8", 0.5)):
        folder = tmp_path / quantization
        folder.mkdir()
        translator = exported(model, tokenizer, folder, quantization=quantization, positions=32)
        assert translator.compute_type.startswith(quantization)
        assert difference_of_scores(model, tokenizer, translator) < tolerance
        sizes[quantization] = (folder / "model.bin").stat().st_size
    assert sizes["int8"] < sizes["float32"] / 2
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("settings", [{"num_beams": 1, "length_penalty": 0.0}, {"num_beams": 4, "length_penalty": 0.6}])
def test_translations_are_the_same(make_model, tokenizer, tmp_path, settings):
    """Each up to its own limit, which is where this model, that has learnt nothing, stops."""
    model = make_model(vocab_size=len(tokenizer), seed=1)
    translator = exported(model, tokenizer, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    theirs = translate(translator, loaded, [*SOURCES, " "], max_extra_tokens=3, **settings)
    assert theirs == our_translate(model, tokenizer, [*SOURCES, " "], max_extra_tokens=3, **settings)
    assert len(set(theirs)) == 5 and theirs[-1] == ""


def test_gnmts_rule_chooses_among_the_hypotheses(tokenizer):
    """log P and length of the two differ so that length^alpha and GNMT's penalty disagree."""

    class Result:
        hypotheses = [["Ġhouse"] * 1, ["Ġhouse"] * 9]
        scores = [-1.0 / 2**0.6, -2.6 / 10**0.6]  # log P -1.0 and -2.6, over length^0.6

    class Translator:
        def translate_batch(self, source, **settings):
            assert (settings["beam_size"], settings["num_hypotheses"], settings["max_decoding_length"]) == (2, 2, 7)
            return [Result()]

    assert max(Result.scores) == Result.scores[1]
    gnmt = [-1.0 / (7 / 6) ** 0.6, -2.6 / (15 / 6) ** 0.6]
    expected = " ".join(["house"] * len(Result.hypotheses[gnmt.index(max(gnmt))]))
    assert translate(Translator(), tokenizer, ["house"], num_beams=2, max_extra_tokens=5) == [expected]


def test_the_table_ends_where_it_was_said_to(make_model, tokenizer, tmp_path):
    translator = exported(make_model(vocab_size=len(tokenizer)), tokenizer, tmp_path, positions=1030)
    with pytest.raises(RuntimeError, match="position"):
        translate(translator, tokenizer, ["house " * 1040], max_extra_tokens=-1040)


# What cannot be exported


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"attention_window": 3}, r"^attention_window 3: .*section 4"),
        ({"d_k": 5, "d_v": 6}, r"^d_k 5 and d_v 6 differ"),
        ({"activation_function": "relu6"}, r"^activation_function 'relu6'"),
        ({"eos_token_id": [2, 3]}, r"^eos_token_id \[2, 3\]"),
        ({"decoder_start_token_id": None}, r"^decoder_start_token_id is None"),
        ({"vocab_size": 50}, r"^the tokenizer has 280 tokens, the model 50"),
    ],
)
def test_what_ctranslate2_cannot_express_is_refused(make_model, tokenizer, tmp_path, overrides, message):
    model = make_model(**{"vocab_size": len(tokenizer), **overrides})
    with pytest.raises(ValueError, match=message):
        to_ctranslate2(model, tokenizer, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("option", "value"), [("quantization", "int7"), ("positions", 0)])
def test_bad_options_are_refused(make_model, tokenizer, tmp_path, option, value):
    with pytest.raises(ValueError, match=f"^{option} must be .*{value}"):
        to_ctranslate2(make_model(vocab_size=len(tokenizer)), tokenizer, tmp_path, **{option: value})


def test_learned_positions_are_as_many_as_they_are(make_model, tokenizer, tmp_path):
    learned = {"position_embedding_type": "learned", "max_position_embeddings": 24}
    with pytest.raises(ValueError, match=r"^positions 1024: this model has learned 24$"):
        to_ctranslate2(make_model(vocab_size=len(tokenizer), **learned), tokenizer, tmp_path, positions=1024)


# The script


def test_the_script_writes_a_folder_that_translates(make_model, tokenizer, tmp_path):
    model, destination = make_model(vocab_size=len(tokenizer)), tmp_path / "new" / "ct2"
    source = save_folder(tmp_path / "model", model, tokenizer)
    options = ("--to", "ctranslate2", source, destination, "--quantization")
    assert call(export.main, *options, "int7").error == "quantization must be one of float32, int8, not 'int7'"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert call(export.main, *options, "int8").code == 0
    assert [path.name for path in destination.parent.iterdir()] == ["ct2"]
    translator = ctranslate2.Translator(str(destination))
    assert translator.compute_type == "int8_float32"
    assert difference_of_scores(model, tokenizer, translator) < 0.5


@pytest.mark.parametrize(("library", "packages"), [("ctranslate2", "ctranslate2"), ("onnx", "onnx onnxscript")])
def test_the_script_asks_for_the_library(make_model, tokenizer, tmp_path, monkeypatch, library, packages):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"modeling_vanilla.interop.to_{library}", raising=False)
    source = save_folder(tmp_path / "model", make_model(vocab_size=len(tokenizer)), tokenizer)
    error = call(export.main, "--to", library, source, tmp_path / "out").error
    assert error == f"{library} is not installed: pip install {packages}"
