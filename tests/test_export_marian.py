"""transformers' MarianMTModel computes what the model does that was exported to it, and loads without this package."""

import json

import pytest
import torch
from helpers import call, make_tokenizer, run_elsewhere, save_folder
from importers import VOCAB, make_marian, write_marian
from test_interop_importers import assert_same_logits, reference_of
from transformers import AutoModelForSeq2SeqLM, MarianMTModel

from modeling_vanilla.cli import export
from modeling_vanilla.hub.publishing import write_search
from modeling_vanilla.interop import from_marian, marian_tokenizer
from modeling_vanilla.interop.to_marian import to_marian

SOURCES = ["a small house", "the dog runs across the green meadow", "house"]


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(SOURCES)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"attention_bias": True, "output_bias": True, "activation_function": "gelu", "layer_norm_eps": 1e-5},
        {"layer_norm_eps": 1e-5, "d_model": 15, "encoder_attention_heads": 5, "decoder_attention_heads": 3},
    ],
    ids=lambda overrides: ", ".join(overrides) or "the paper's",
)
def test_the_logits_are_equal(make_model, tokenizer, tmp_path, overrides):
    model = make_model(vocab_size=len(tokenizer), **overrides)
    to_marian(model, tokenizer, tmp_path)
    marian = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert type(marian) is MarianMTModel
    assert_same_logits(model, reference_of(marian), tolerance=1e-5)


def test_what_came_from_marian_goes_back_to_the_bit(tokenizer, tmp_path):
    marian = make_marian()
    to_marian(from_marian(marian), tokenizer, tmp_path, positions=64)
    weights = MarianMTModel.from_pretrained(tmp_path).state_dict()
    torch.testing.assert_close(weights, marian.state_dict(), rtol=0, atol=0)


LOADED = """
import json
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model, tokenizer = (auto.from_pretrained(sys.argv[1]) for auto in (AutoModelForSeq2SeqLM, AutoTokenizer))
inputs = tokenizer(json.loads(sys.argv[2]), padding=True, return_tensors="pt")
settings = {"num_beams": 4, "length_penalty": 0.6, "max_extra_tokens": 3}
search = {"custom_generate": "search", "trust_remote_code": True}
print(json.dumps({"ids": inputs.input_ids.tolist(), "ours": model.generate(**inputs, **settings, **search).tolist(),
                  "theirs": model.generate(**inputs, max_length=4).tolist()}))
"""


def test_the_command_writes_a_folder_that_loads_and_searches_elsewhere(make_model, tokenizer, tmp_path):
    model = make_model(vocab_size=len(tokenizer))
    source = save_folder(tmp_path / "model", model, tokenizer)
    (source / "README.md").write_text("---\nlicense: mit\nbase_model: you/it\n---\n")
    done = call(export.main, "--to", "marian", source, tmp_path / "marian")
    assert (done.code, done.errors.splitlines()) == (0, [
        "warning: length_penalty 0.6 is GNMT's; transformers divides log P by length^0.6 instead",
        "warning: max_extra_tokens 50 follows the source's length; max_length is 1024 instead",
    ])  # fmt: skip
    card = (tmp_path / "marian" / "README.md").read_text()
    assert "license: mit" in card and "trust_remote_code" not in card and "log P / length^0.6;" in card
    config = json.loads((tmp_path / "marian" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    write_search(tmp_path / "search", "you/search")
    loaded = run_elsewhere(LOADED, "marian", json.dumps(SOURCES), cwd=tmp_path)
    inputs = tokenizer(SOURCES, padding=True, return_tensors="pt")
    assert loaded["ids"] == inputs.input_ids.tolist() and len(loaded["theirs"]) == 3
    assert loaded["ours"] == model.generate(**inputs, max_extra_tokens=3).tolist()


def test_ctranslate2_converts_what_has_opus_mts_tokens(tmp_path):
    """By its own converter of MarianMT: without the last token, <pad>, from an embedding of zeros, with heads alike."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    for name in ("opus", "marian"):
        (tmp_path / name).mkdir()
    reference = write_marian(tmp_path / "opus", decoder_attention_heads=4)
    to_marian(from_marian(tmp_path / "opus"), marian_tokenizer(tmp_path / "opus"), tmp_path / "marian")
    ctranslate2.converters.TransformersConverter(str(tmp_path / "marian")).convert(str(tmp_path / "ct2"))
    scored = ctranslate2.Translator(str(tmp_path / "ct2")).score_batch([["A", "c", "D", "</s>"]], [["B", "a"]])
    source, target = torch.tensor([2, 30, 5, 0]), torch.tensor([3, 28, 0])
    with torch.no_grad():
        logits = reference(source, torch.tensor([VOCAB - 1, 3, 28]))[:, :-1]
    expected = logits.log_softmax(dim=-1).gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(scored[0].log_probs), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"position_embedding_type": "learned"}, "^position_embedding_type 'learned'"),
        ({"attention_window": 3}, "^attention_window 3"),
        ({"tie_word_embeddings": False}, "^tie_word_embeddings False"),
        ({"d_k": 5, "d_v": 6}, "^d_k 5, d_v 6: MarianMT has d_model / heads, 6; use onnx$"),
        ({"layer_norm_eps": 0.1}, "^layer_norm_eps 0.1"),
    ],
)
def test_what_marian_cannot_express_is_refused(make_model, tokenizer, tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        to_marian(make_model(vocab_size=len(tokenizer), **overrides), tokenizer, tmp_path)
    assert not list(tmp_path.iterdir())
