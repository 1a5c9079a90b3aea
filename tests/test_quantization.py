"""Weights and activations of 8-bit integers: the layer, the model, and what is refused."""

import pytest
import torch
from helpers import as_lines, batch_of, call
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from modeling_vanilla.cli import demo, score
from modeling_vanilla.cli import translate as command
from modeling_vanilla.inference import Int8Config, load_translator, quantization
from modeling_vanilla.inference.quantization import Int8Linear

has_vnni = torch.cpu._is_vnni_supported()
needs_vnni = pytest.mark.skipif(not has_vnni, reason="a processor without AVX512-VNNI")
SOURCES = [[5, 9, 30, 2], [7, 200, 11, 40, 6, 2]]


@pytest.fixture(autouse=True)
def all_layers(monkeypatch):
    monkeypatch.setattr(quantization, "SMALLEST", 0)


def integers_of(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's integers, and the number that they are multiples of, in 64 bits."""
    unit = x.abs().max(dim=1).values / 127
    unit[unit == 0] = 1
    return (x / unit[:, None]).round().double(), unit[:, None].double()


@needs_vnni
@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize(("rows", "d_in", "d_out"), ((4, 128, 384), (1, 7, 5), (300, 513, 64), (0, 8, 8)))
@torch.no_grad()
def test_the_layer_computes_with_the_integers_in_64_bits(rows, d_in, d_out, bias):
    torch.manual_seed(0)
    linear, x = nn.Linear(d_in, d_out, bias=bias), torch.randn(rows, d_in)
    x[::3] *= 1000  # rows do not share a scale
    x[2:3] = linear.weight[1] = 0
    (q, s), (w, t) = integers_of(x), integers_of(linear.weight)
    expected = (q @ w.T) * s * t.T + (linear.bias.double() if bias else 0)
    torch.testing.assert_close(Int8Linear(linear)(x).double(), expected, rtol=1e-6, atol=1e-5)


@needs_vnni
@torch.no_grad()
def test_what_is_not_finite_stays_in_its_row():
    linear, x = nn.Linear(8, 4), torch.randn(2, 3, 8)
    layer = Int8Linear(linear)
    expected = layer(x)
    x[0, 1, 2], x[1, 0, 5] = torch.nan, torch.inf
    y, bad = layer(x), torch.tensor([[False, True, False], [True, False, False]])
    assert not y[bad].isfinite().any() and torch.equal(y[~bad], expected[~bad])


@needs_vnni
@torch.no_grad()
def test_a_model_loaded_in_8_bits_is_near_the_whole_one(folder, model, tmp_path):
    """By transformers and by our own function; each row by itself, whatever is beside it in the batch."""
    loaded, _ = load_translator([folder], "cpu", int8=True)
    batch = batch_of(SOURCES) | {"decoder_input_ids": torch.tensor([[1, 8, 9], [1, 20, 30]])}
    expected, logits = model(**batch).logits, loaded(**batch).logits
    assert 0 < (logits - expected).norm() < 0.05 * expected.norm()
    assert not [name for name, module in loaded.named_modules() if type(module) is nn.Linear]
    assert torch.equal(loaded.get_input_embeddings().weight, model.get_input_embeddings().weight)
    same = AutoModelForSeq2SeqLM.from_pretrained(folder, quantization_config=Int8Config())
    assert torch.equal(same(**batch).logits, logits)
    with pytest.raises(ValueError, match="vanilla_int8 and is not serializable"):
        same.save_pretrained(tmp_path / "saved")


@needs_vnni
def test_it_is_refused_in_16_bits(folder):
    with pytest.raises(ValueError, match=r"int8: a model in float32 on a CPU is needed, not in torch.bfloat16 on cpu"):
        load_translator([folder], "cpu", torch.bfloat16, int8=True)


@pytest.mark.parametrize("main", (command.main, score.main), ids=("translate", "score"))
def test_commands_compute_in_8_bits(folder, tmp_path, monkeypatch, caplog, main):
    (tmp_path / "target").write_bytes(as_lines(["a dog"]))
    options = ("--target", tmp_path / "target") if main is score.main else ("--nbest", 2)
    whole, eight = (call(main, folder, *options, *more, stdin=b"a cat\n") for more in ((), ("--int8",)))
    assert (whole.succeeded.output != eight.succeeded.output) == has_vnni
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    caplog.clear()
    fallback = call(main, folder, *options, "--int8", stdin=b"a cat\n")
    assert fallback.succeeded.output == whole.output
    assert caplog.messages == ["int8: this goes on in float32, as the processor has no AVX512-VNNI"]


@pytest.mark.parametrize("main", (command.main, demo.main), ids=("translate", "demo"))
def test_it_is_refused_elsewhere_than_on_a_cpu(folder, monkeypatch, main):
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)  # as where there is a GPU
    done = call(main, folder, "--int8", "--device", "cuda")
    assert done.error == "int8: it is for a CPU, not for the device cuda"
