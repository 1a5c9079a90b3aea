"""What every exporter promises: the other library computes and translates as the model, or one line says why not."""

import copy

import numpy as np
import pytest
import torch
from helpers import call, read_json, save_folder
from importers import make_marian
from plain_search import log_probs_of
from test_interop_importers import assert_same_logits, reference_of
from tokenizers import Tokenizer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, MarianMTModel

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.cli import export
from modeling_vanilla.interop import folders, from_marian
from modeling_vanilla.interop.to_marian import marian_search, to_marian

SOURCES = ["a small house", "the dog runs across the green meadow", "house", "the small dog runs"]
TARGETS = ["runs the green meadow", "a", "the dog a small house across", "green green"]


def write(library, model, tokenizer, folder, **options):
    """Export to an existing folder, where the library is there."""
    module = pytest.importorskip(f"modeling_vanilla.interop.to_{library}")
    getattr(module, f"to_{library}")(model, tokenizer, folder, **options)


# Probabilities


def assert_marian_is_same(model, tokenizer, folder):
    marian = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    assert type(marian) is MarianMTModel
    assert_same_logits(model, reference_of(marian), tolerance=1e-5)


def assert_ctranslate2_is_same(model, tokenizer, folder, tolerance=1e-4):
    """log P of each target token, EOS included."""
    import ctranslate2

    sources, targets = tokenizer(SOURCES).input_ids, tokenizer(TARGETS).input_ids
    without_eos = [ids[:-1] for ids in targets]
    given = [[tokenizer.convert_ids_to_tokens(ids) for ids in side] for side in (sources, without_eos)]
    # In 32 bits, whatever the weights have: products of 8 bits depend on the processor.
    scored = ctranslate2.Translator(str(folder), compute_type="float32").score_batch(*given)
    for source, target, result in zip(sources, targets, scored, strict=True):
        assert result.log_probs == pytest.approx(log_probs_of(model, source, target), abs=tolerance)


@torch.no_grad()
def assert_onnx_is_same(model, tokenizer, folder):
    """The logits of all targets at once, and token by token with the cache, at several sizes."""
    from onnxruntime import InferenceSession

    encoder, decoder = (InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
    names = [put.name for put in decoder.get_inputs()]
    for rows, source_length, target_length in ((1, 1, 1), (1, 7, 2), (3, 4, 5), (5, 16, 1), (2, 30, 20)):
        generator = torch.Generator().manual_seed(rows)
        source = torch.randint(4, 41, (rows, source_length), generator=generator)
        target = torch.randint(4, 41, (rows, target_length), generator=generator)
        mask = torch.ones_like(source)
        for row in range(rows):
            mask[row, max(1, source_length - row) :] = 0
        source *= mask
        expected = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        encoded = encoder.run(None, {"input_ids": source.numpy(), "attention_mask": mask.numpy()})
        empty = [np.zeros((rows, put.shape[1], 0, put.shape[3]), np.float32) for put in decoder.get_inputs()[3:]]
        for length in (target_length, 1):
            logits, past = [], empty
            for tokens in target.split(length, dim=1):
                feeds = dict(zip(names, [tokens.numpy(), mask.numpy(), *encoded, *past], strict=True))
                of_tokens, *past = decoder.run(None, feeds)
                logits.append(torch.from_numpy(of_tokens))
            torch.testing.assert_close(torch.cat(logits, dim=1), expected, rtol=0, atol=1e-4)


def assert_older_libraries_read_the_tokenizer(folder, tokenizer):
    """transformers 4 and tokenizers alone, without torch: the first knows neither this class of 5 nor this field."""
    settings = read_json(folder / "tokenizer_config.json")
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast" and "extra_special_tokens" not in settings
    stock = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [stock.encode(text).ids for text in SOURCES] == tokenizer(SOURCES).input_ids


COMPARISONS = {"marian": assert_marian_is_same, "ctranslate2": assert_ctranslate2_is_same, "onnx": assert_onnx_is_same}
SEPARATE = {"tie_word_embeddings": False, "output_bias": True}
LEARNED = {"position_embedding_type": "learned", "max_position_embeddings": 60}
BIASES = {"attention_bias": True, "output_bias": True, "activation_function": "gelu", "layer_norm_eps": 1e-5}
ODD = {"d_model": 15, "encoder_attention_heads": 5, "decoder_attention_heads": 3}
MODELS = [
    ("marian", {}),
    ("marian", {**BIASES, **ODD}),
    ("ctranslate2", {}),
    ("ctranslate2", {"d_k": 5, "d_v": 5, "activation_function": "swish", "attention_bias": True, **SEPARATE}),
    ("ctranslate2", {"activation_function": "gelu", "layer_norm_eps": 0.1, "vocab_size": 400, **LEARNED}),
    pytest.param("onnx", {}, marks=pytest.mark.slow),
    pytest.param("onnx", {"d_k": 5, "d_v": 3, "attention_window": 3, **SEPARATE, **LEARNED}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("library", "overrides"), MODELS)
def test_the_logits_are_the_models(make_model, tokenizer, tmp_path, library, overrides):
    model = make_model(**{"vocab_size": len(tokenizer), **overrides})
    before = copy.deepcopy(model.state_dict())
    write(library, model, tokenizer, tmp_path)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    COMPARISONS[library](model, tokenizer, tmp_path)
    assert_older_libraries_read_the_tokenizer(tmp_path, tokenizer)


def test_what_came_from_marian_goes_back_to_the_bit(tokenizer, tmp_path):
    marian = make_marian()
    to_marian(from_marian(marian), tokenizer, tmp_path, positions=64)
    weights = MarianMTModel.from_pretrained(tmp_path).state_dict()
    torch.testing.assert_close(weights, marian.state_dict(), rtol=0, atol=0)


def test_weights_of_8_bits_are_smaller_and_nearly_the_same(make_model, tokenizer, tmp_path):
    pytest.importorskip("ctranslate2")
    model, folder = make_model(vocab_size=len(tokenizer)), tmp_path / "int8"
    source = save_folder(tmp_path / "model", model, tokenizer)
    assert call(export.main, "--to", "ctranslate2", "--quantization", "int8", source, folder).succeeded
    assert_ctranslate2_is_same(model, tokenizer, folder, tolerance=0.5)
    write("ctranslate2", model, tokenizer, source)
    assert (folder / "model.bin").stat().st_size < (source / "model.bin").stat().st_size


# Folders


OWN_LIMITS = [
    ({}, {"max_length": 512}),
    ({"max_length": 20}, {"max_length": 512}),
    ({"max_length": 9}, {"max_length": 9}),
    ({"max_new_tokens": 600}, {"max_new_tokens": 511}),
]


@pytest.mark.parametrize(("own", "kept"), OWN_LIMITS)
def test_a_marian_keeps_the_models_own_limit_within_its_positions(own, kept):
    found, _ = marian_search(GenerationConfig(max_extra_tokens=50, **own), positions=512)
    assert {name: getattr(found, name) for name in ("max_length", "max_new_tokens") if getattr(found, name)} == kept


def test_a_marian_folder_loads_and_searches_as_marian(make_model, tokenizer, tmp_path):
    model = make_model(vocab_size=len(tokenizer))
    source = save_folder(tmp_path / "model", model, tokenizer)
    (source / "README.md").write_text("---\nlicense: mit\nbase_model: you/it\n---\n")
    done = call(export.main, "--to", "marian", source, tmp_path / "marian").succeeded
    (warning,) = (line for line in done.errors.splitlines() if "max_extra_tokens" not in line)
    assert warning == "warning: length_penalty 0.6 is GNMT's; transformers divides log P by length^0.6 instead"
    card = (tmp_path / "marian" / "README.md").read_text()
    assert "license: mit" in card and "trust_remote_code" not in card and "log P / length^0.6;" in card
    marian, marians = (auto.from_pretrained(tmp_path / "marian") for auto in (AutoModelForSeq2SeqLM, AutoTokenizer))
    inputs = tokenizer(SOURCES, padding=True, return_tensors="pt")
    assert marians(SOURCES).input_ids == tokenizer(SOURCES).input_ids
    outputs = marian.generate(**inputs, num_beams=1, max_length=5).tolist()
    assert outputs == model.generate(**inputs, num_beams=1, max_new_tokens=4, max_extra_tokens=None).tolist()


# What cannot be exported


NOT_EXPRESSED = [
    ("ctranslate2", {"attention_window": 3}, "attention_window 3: CTranslate2 cannot express this; export to onnx"),
    ("marian", LEARNED, "position_embedding_type 'learned': "),
    ("marian", {"d_k": 5, "d_v": 6}, "d_k 5 and d_v 6, which are not d_model / heads: "),
]


@pytest.mark.parametrize(("library", "overrides", "message"), NOT_EXPRESSED)
def test_what_a_library_cannot_express_is_refused(make_model, tokenizer, tmp_path, library, overrides, message):
    model = make_model(**{"vocab_size": len(tokenizer), **overrides})
    with pytest.raises(ValueError, match=f"^{message}"):
        write(library, model, tokenizer, tmp_path, positions=30)
    assert not list(tmp_path.iterdir())


class Doubled(VanillaForConditionalGeneration):
    """A variant whose logits are not those of its weights by the model's names."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 2
        return output


class Variant(VanillaConfig):
    """Fields that turn changes on, by default, and fields that turn them off."""

    relu_squared: bool = True
    pre_norm: bool = False
    key_heads: int | None = None


@pytest.mark.parametrize("library", ["marian", "ctranslate2"])
def test_what_the_exporters_do_not_know_is_refused_by_name(make_model, tokenizer, tmp_path, library):
    model = make_model(vocab_size=len(tokenizer))
    model.config = Variant(**model.config.to_dict())
    for change, fault in (
        ({}, "the unknown field relu_squared True"),
        ({"relu_squared": False, "pre_norm": True}, "the unknown field pre_norm True"),
        ({"relu_squared": False, "key_heads": 0}, "the unknown field key_heads 0"),
    ):
        variant = copy.deepcopy(model)
        vars(variant.config).update(change)
        with pytest.raises(ValueError, match=f"^{fault}: .* cannot express this"):
            write(library, variant, tokenizer, tmp_path)
    model.config.relu_squared, variant = False, copy.deepcopy(model)
    variant.model.encoder.layers[1].ffn_add_norm = torch.nn.RMSNorm(24)
    with pytest.raises(ValueError, match=r"^the missing weight model\.encoder\.layers\.1\.ffn_add_norm\.bias: "):
        write(library, variant, tokenizer, tmp_path)
    variant.model.encoder.norm = torch.nn.LayerNorm(24)
    with pytest.raises(ValueError, match=r"^the unknown weight model\.encoder\.norm\.weight: "):
        write(library, variant, tokenizer, tmp_path)
    assert not list(tmp_path.iterdir())
    write(library, model, tokenizer, tmp_path)


def test_what_is_not_known_to_onnx_and_to_no_format_is_refused(make_model, tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"^ONNX: .* miss the model's logits by "):
        write("onnx", make_model(Doubled, vocab_size=len(tokenizer)), tokenizer, tmp_path)
    with pytest.raises(ValueError, match=r"^format: 'ONNX' is none of ctranslate2, "):
        folders.export("ONNX", tmp_path, tmp_path / "new")
    assert not list(tmp_path.iterdir())
