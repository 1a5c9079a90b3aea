"""The label-smoothed loss, plain and fused, against torch's own in 64 bits."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from accelerate.utils import convert_to_fp32
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from modeling_vanilla import VanillaForConditionalGeneration, loss_vanilla
from modeling_vanilla.loss_vanilla import IGNORED, smoothed_cross_entropy
from modeling_vanilla.loss_vanilla import fused_smoothed_cross_entropy as fused

D, V = 12, 29


def close(actual, expected, tolerance=1e-6):
    """Tensors, or sequences of them."""
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Few rows at a time, so that small inputs take several chunks."""
    monkeypatch.setattr(loss_vanilla, "CHUNK_ROWS", 8)
    monkeypatch.setattr(loss_vanilla, "CHUNK_NUMBERS", 8 * V)


def make_inputs(rows: int, ignored: float = 0.3, dtype=torch.float32):
    """hidden (rows, D), weight (V, D), labels (rows,), of which a share is IGNORED, but not the first one."""
    torch.manual_seed(rows)
    hidden = torch.randn(rows, D).to(dtype).requires_grad_()
    weight = torch.randn(V, D).to(dtype).requires_grad_()
    labels = torch.randint(0, V, (rows,))
    labels[1:][torch.rand(rows - 1) < ignored] = IGNORED
    return hidden, weight, labels


def plain(hidden, weight, labels, epsilon, num_items=None):
    return smoothed_cross_entropy(hidden @ weight.T, labels, epsilon, num_items)


def exact(hidden, weight, labels, epsilon):
    """Loss and gradients of both factors by torch's own loss in 64 bits."""
    hidden, weight = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    loss = nn.functional.cross_entropy(hidden @ weight.T, labels, ignore_index=IGNORED, label_smoothing=epsilon)
    return loss.detach(), *torch.autograd.grad(loss, (hidden, weight))


@pytest.mark.parametrize("rows", [1, 8, 9, 50])  # below, at and beyond whole chunks of 8
@pytest.mark.parametrize("ignored", [0.0, 0.4])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_value_and_gradients(rows, ignored, epsilon):
    """Of the fused form; test_training_and_evaluation_have_one_loss has those of the plain one."""
    hidden, weight, labels = make_inputs(rows, ignored)
    loss = fused(hidden, weight, labels, epsilon)
    (3.7 * loss).backward()  # as a loss scaler or accumulation would
    assert loss.dtype == torch.float32
    expected = [tensor.float() for tensor in exact(hidden, weight, labels, epsilon)]
    close([loss.detach(), hidden.grad / 3.7, weight.grad / 3.7], expected)
    hidden, weight, labels = make_inputs(rows, ignored)
    fused(hidden, weight.requires_grad_(False), labels, epsilon).backward()  # as beside adapters
    close([hidden.grad], expected[1:2])


@pytest.mark.parametrize("form", [plain, fused])
@pytest.mark.parametrize("num_items", [None, torch.tensor(0)])
def test_without_a_label_loss_and_gradients_are_zero(form, num_items):
    hidden, weight, _ = make_inputs(10)
    loss = form(hidden, weight, torch.full((10,), IGNORED), 0.1, num_items)
    loss.backward()
    assert loss.item() == 0
    assert not hidden.grad.any() and not weight.grad.any()


FORMATS = [*product((torch.bfloat16, torch.float16), (True, False)), (torch.float32, False), (torch.float64, False)]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize(("dtype", "autocast"), FORMATS)
def test_every_format_is_near_exact(dtype, autocast, scale, device):
    """Under autocast and with inputs of that format, whose gradients have it, too; large logits do not overflow."""
    hidden, weight, labels = make_inputs(50)
    hidden, weight = (x.detach().to(dtype).double() for x in (scale * hidden, weight / 4))  # what the format has
    expected = exact(hidden, weight, labels, 0.1)
    inputs = [x.to(device, torch.float32 if autocast else dtype).requires_grad_() for x in (hidden, weight)]
    with torch.autocast(device, dtype, enabled=autocast):
        loss = fused(*inputs, labels.to(device), 0.1)
    loss.backward()
    assert loss.dtype == torch.float32  # summed in 32 bits
    assert {x.grad.dtype for x in inputs} == {inputs[0].dtype}
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 0.005, torch.bfloat16: 0.03}[dtype]
    for actual, right in zip((loss, *(x.grad for x in inputs)), expected, strict=True):
        assert (actual.double().cpu() - right).norm() < tolerance * right.norm()


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation gives."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        self.numel = max(self.numel, 0, *(x.numel() for x in tree_leaves(output) if isinstance(x, torch.Tensor)))
        return output


def test_the_logits_are_never_held():
    rows = 200
    inputs = make_inputs(rows, ignored=0.0)
    # hidden (rows x D), its gradient, and eight rows of logits: nothing as large as rows x V.
    for form, numel in ((plain, rows * V), (fused, rows * D)):
        with LargestTensor() as largest:
            form(*inputs, 0.1).backward()
        assert largest.numel == numel


# In the model


@pytest.fixture
def batch(batch):
    labels = batch["decoder_input_ids"]
    labels[1, 4:] = labels[2, 2:] = IGNORED
    return {"input_ids": batch["input_ids"], "labels": labels}


def test_without_a_padding_token_the_loss_is_the_same(make_model, batch):
    """Where there is no label, the decoder may read any token."""
    close(*(make_model(pad_token_id=pad)(**batch).loss for pad in (0, None)))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("epsilon", "bias"), [(0.0, False), (0.1, False), (0.1, True)])
def test_training_and_evaluation_have_one_loss(make_model, batch, tied, epsilon, bias):
    """That of the logits on labels that are not shifted, by torch, and its gradients."""
    model = make_model(tie_word_embeddings=tied, label_smoothing=epsilon, output_bias=bias)
    assert not bias or not VanillaForConditionalGeneration(model.config).lm_head.bias.any()
    logits, smoothed = model(**batch).logits.flatten(0, 1), {"ignore_index": IGNORED, "label_smoothing": epsilon}
    model.zero_grad()
    loss = nn.functional.cross_entropy(logits, batch["labels"].flatten(), **smoothed)
    loss.backward()
    expected = [loss, *(parameter.grad.clone() for parameter in model.parameters())]
    for training in (False, True):
        model.train(training).zero_grad()
        output = model(**batch)
        output.loss.backward()
        close([output.loss, *(parameter.grad for parameter in model.parameters())], expected, 1e-5)
        assert hasattr(output, "logits") == (not training or bias)
        assert output.past_key_values is None


@pytest.mark.parametrize("copied", [convert_to_fp32, replace], ids=["by accelerate", "by FSDP"])
def test_the_second_output_is_the_logits_or_says_how_to_get_them(make_model, batch, copied):
    model = make_model()
    loss, logits, *_ = model(**batch).to_tuple()
    output = copied(model.train()(**batch))
    close((output[0], output.loss), (loss, loss))
    for read in (lambda: output.logits, lambda: output["logits"], lambda: output[1], lambda: output[1:]):
        with pytest.raises(AttributeError, match=r"^logits: .* return_dict=False"):
            read()
    close(model(**batch, return_dict=False)[:2], (loss, logits))
    model.config.return_dict = False
    close(model(**batch)[:2], (loss, logits))


def add_accelerates_hook(layer, call):
    """As of a device_map over several devices, where it moves the layer's input to its weights."""
    hook = ModelHook()
    hook.pre_forward = lambda module, *args, **kwargs: call(module) or (args, kwargs)
    add_hook_to_module(layer, hook)


@pytest.mark.parametrize("register", [add_accelerates_hook, nn.Module.register_forward_hook])
def test_hooks_of_the_output_layer_are_called_in_training(make_model, batch, register):
    model, calls = make_model().train(), []
    expected = model(**batch).loss
    register(model.lm_head, lambda module, *_: calls.append(module))
    loss = model(**batch).loss
    loss.backward()
    close(loss, expected, 1e-5)
    assert calls == [model.lm_head]
