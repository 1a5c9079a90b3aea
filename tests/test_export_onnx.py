"""onnxruntime computes and decodes what the model does that was exported to ONNX."""

import logging

import pytest
import torch
from helpers import call, make_tokenizer, save_folder

from modeling_vanilla.cli import export
from modeling_vanilla.inference import translate, translate_nbest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

from modeling_vanilla.interop.onnx_model import OnnxModel, load_onnx
from modeling_vanilla.interop.to_onnx import DECODER, ENCODER, to_onnx

SIZES = [(1, 1, 1), (1, 7, 2), (3, 4, 5), (5, 16, 1), (2, 30, 20)]  # sentences, source and target length


def make_batch(rows: int, source_length: int, target_length: int):
    generator = torch.Generator().manual_seed(rows)
    source = torch.randint(4, 41, (rows, source_length), generator=generator)
    mask = torch.ones_like(source)
    for row in range(rows):
        mask[row, max(1, source_length - row) :] = 0
    return source * mask, mask, torch.randint(4, 41, (rows, target_length), generator=generator)


@torch.no_grad()
def assert_same_logits(model, exported: OnnxModel) -> None:
    """Of all targets at once, and token by token with the cache."""
    for sizes in SIZES:
        source, mask, target = make_batch(*sizes)
        expected = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        whole = exported(source, mask, target).logits
        torch.testing.assert_close(whole, expected, rtol=0, atol=1e-4)
        encoded, cache, steps = exported.encoder(source, mask), None, []
        for token in target.split(1, dim=1):
            output = exported(None, mask, token, encoded, cache)
            cache = output.past_key_values
            steps.append(output.logits)
        torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"d_k": 5, "d_v": 3, "attention_window": 3},
        {"position_embedding_type": "learned", "tie_word_embeddings": False, "output_bias": True},
    ],
    ids=lambda overrides: ", ".join(overrides) or "the paper's",
)
def test_the_logits_are_the_same_at_every_size_and_step(make_model, tmp_path, caplog, overrides):
    model = make_model(encoder_layers=1, decoder_layers=2, **overrides)
    before = model.config._attn_implementation
    logging.getLogger("torch").addHandler(caplog.handler)
    to_onnx(model, tmp_path)
    logging.getLogger("torch").removeHandler(caplog.handler)
    assert not [record for record in caplog.records if "torchvision" in record.getMessage()]
    assert model.config._attn_implementation == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [DECODER, ENCODER]
    model.config.save_pretrained(tmp_path)
    model.generation_config.save_pretrained(tmp_path)
    assert_same_logits(model, OnnxModel(tmp_path))


@pytest.mark.slow
def test_the_exported_folder_translates_as_the_model_does(make_model, tmp_path):
    """100 sentences of several lengths, in batches, by both searches; rounding may turn one of them."""
    words = ["a", "small", "house", "the", "dog", "runs", "across", "green", "meadow"]
    texts = [" ".join(words[number % 7 : number % 7 + number % 9 + 1]) for number in range(100)]
    tokenizer = make_tokenizer(texts)
    model = make_model(vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=2, d_k=5, d_v=3)
    model.generation_config.update(length_penalty=0.8, max_extra_tokens=8)
    destination = tmp_path / "new" / "onnx"
    call(export.main, "--to", "onnx", save_folder(tmp_path / "model", model, tokenizer), destination)
    assert [path.name for path in destination.parent.iterdir()] == ["onnx"]
    exported, own_tokenizer = load_onnx(destination)
    for beams in (1, 4):
        theirs, expected = (
            translate(*pair, texts, tokens_per_batch=200, num_beams=beams)
            for pair in ((exported, own_tokenizer), (model, tokenizer))
        )
        assert len(set(expected)) > 5
        assert sum(map(str.__eq__, theirs, expected)) >= 99
    for pair in ((exported, own_tokenizer), (model, tokenizer)):
        assert (
            translate_nbest(*pair, texts[:1], 2, num_beams=2)[0][0].text == translate(*pair, texts[:1], num_beams=2)[0]
        )
    with pytest.raises(ValueError, match="compile: a OnnxModel cannot be compiled"):
        translate(exported, own_tokenizer, texts[:1], compile=True)
    (destination / DECODER).write_bytes(b"not a graph")
    with pytest.raises(ValueError, match=r"decoder\.onnx: cannot be read: "):
        load_onnx(destination)
