"""The label-smoothed loss by hand, and its fused form against the plain one."""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from modeling_vanilla import loss_vanilla
from modeling_vanilla.loss_vanilla import IGNORED, fused_smoothed_cross_entropy, smoothed_cross_entropy

D, V = 12, 29


def close(actual, expected, tolerance=1e-6):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Few rows at a time, so that small inputs take several chunks."""
    monkeypatch.setattr(loss_vanilla, "CHUNK_ROWS", 8)


def make_inputs(rows: int, ignored: float = 0.3, dtype=torch.float32):
    """hidden (rows, D), weight (V, D), labels (rows,), of which a share does not count; the first one does."""
    torch.manual_seed(rows)
    hidden = torch.randn(rows, D).to(dtype).requires_grad_()
    weight = torch.randn(V, D).to(dtype).requires_grad_()
    labels = torch.randint(0, V, (rows,))
    labels[1:][torch.rand(rows - 1) < ignored] = IGNORED
    return hidden, weight, labels


def loss_by_hand(logits, labels, epsilon: float) -> float:
    """Cross-entropy against (1 - epsilon) * one-hot + epsilon / V, mean over the labels that count, by plain sums."""
    losses = []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        if label == IGNORED:
            continue
        log_normaliser = math.log(sum(math.exp(z) for z in row))
        loss = 0.0
        for token, z in enumerate(row):
            target = epsilon / len(row) + (1 - epsilon) * (token == label)
            loss -= target * (z - log_normaliser)
        losses.append(loss)
    return sum(losses) / len(losses)


def fused(hidden, weight, labels, epsilon, num_items=None):
    return fused_smoothed_cross_entropy(hidden, weight, labels, epsilon, num_items)


def plain(hidden, weight, labels, epsilon, num_items=None):
    return smoothed_cross_entropy(hidden @ weight.T, labels, epsilon, num_items)


@pytest.mark.parametrize("form", [plain, fused])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_loss_by_hand(form, epsilon):
    hidden, weight, labels = make_inputs(21)
    expected = loss_by_hand(hidden @ weight.T, labels, epsilon)
    assert form(hidden, weight, labels, epsilon).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("form", [plain, fused])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_loss_is_torchs_with_label_smoothing(form, epsilon):
    hidden, weight, labels = make_inputs(40)
    expected = nn.functional.cross_entropy(
        hidden @ weight.T, labels, ignore_index=IGNORED, label_smoothing=epsilon, reduction="mean"
    )
    close(form(hidden, weight, labels, epsilon), expected)


def test_the_least_loss_is_the_entropy_of_the_smoothed_labels():
    """What the model would have to say: (1 - epsilon) + epsilon / V for the label, epsilon / V for the rest."""
    epsilon, labels = 0.1, torch.arange(5)
    target = torch.full((5, V), epsilon / V).scatter(1, labels[:, None], 1 - epsilon + epsilon / V)
    entropy = -(target[0] * target[0].log()).sum()
    close(smoothed_cross_entropy(target.log(), labels, epsilon), entropy)


def exact(hidden, weight, labels, epsilon):
    """Loss and gradients of both factors by torch's own loss in 64 bits."""
    hidden, weight = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    loss = nn.functional.cross_entropy(hidden @ weight.T, labels, ignore_index=IGNORED, label_smoothing=epsilon)
    return loss.detach(), *torch.autograd.grad(loss, (hidden, weight))


@pytest.mark.parametrize("form", [plain, fused])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 50])  # below, at and beyond whole chunks of 8
@pytest.mark.parametrize("ignored", [0.0, 0.4])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_value_and_gradients(form, rows, ignored, epsilon):
    hidden, weight, labels = make_inputs(rows, ignored)
    loss = form(hidden, weight, labels, epsilon)
    (3.7 * loss).backward()  # as a loss scaler or accumulation would
    assert loss.dtype == torch.float32
    actual = (loss.detach(), hidden.grad / 3.7, weight.grad / 3.7)
    for one, other in zip(actual, exact(hidden, weight, labels, epsilon), strict=True):
        close(one, other.float())


def test_gradients_by_finite_differences():
    """The fused form sums in 32 bits whatever it is given, hence the wide step and tolerance."""
    torch.manual_seed(0)
    hidden, weight = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (9, 5))
    labels = torch.tensor([0, 4, IGNORED, 1, 1, 2, 3, IGNORED, 0])
    assert torch.autograd.gradcheck(
        lambda h, w: fused(h, w, labels, 0.1).double(), (hidden, weight), eps=1e-2, atol=1e-3, rtol=1e-2
    )


def test_64_bit_inputs_get_64_bit_gradients():
    hidden, weight, labels = make_inputs(11, dtype=torch.float64)
    fused(hidden, weight, labels, 0.1).backward()
    _, *expected = exact(hidden, weight, labels, 0.1)
    for one, other in zip((hidden.grad, weight.grad), expected, strict=True):
        assert one.dtype == torch.float64
        close(one, other)


def test_only_what_needs_a_gradient_gets_one():
    hidden, weight, labels = make_inputs(11)
    fused(hidden.detach(), weight, labels, 0.1).backward()
    assert weight.grad is not None and hidden.grad is None
    hidden, weight, labels = make_inputs(11)
    fused(hidden, weight.detach(), labels, 0.1).backward()
    assert hidden.grad is not None and weight.grad is None
    with torch.no_grad():
        assert not fused(hidden, weight, labels, 0.1).requires_grad


def test_a_second_derivative_is_refused_rather_than_wrong():
    hidden, weight, labels = make_inputs(11)
    (gradient,) = torch.autograd.grad(fused(hidden, weight, labels, 0.1).square(), hidden, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(gradient.square().sum(), hidden)


@pytest.mark.parametrize("form", [plain, fused])
def test_batches_of_any_shape(form):
    hidden, weight, labels = make_inputs(24)
    expected = form(hidden, weight, labels, 0.1)
    close(form(hidden.view(4, 6, D), weight, labels.view(4, 6), 0.1), expected)
    # as a transposed view, which is not contiguous
    turned = hidden.view(4, 6, D).transpose(0, 1)
    close(form(turned, weight, labels.view(4, 6).T, 0.1), expected)


@pytest.mark.parametrize("form", [plain, fused])
def test_no_label_that_counts_gives_zero_and_finite_gradients(form):
    hidden, weight, _ = make_inputs(10)
    loss = form(hidden, weight, torch.full((10,), IGNORED), 0.1)
    loss.backward()
    assert loss.item() == 0
    assert not hidden.grad.any() and not weight.grad.any()


@pytest.mark.parametrize("form", [plain, fused])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_num_items_divides_the_sum(form, as_tensor):
    """Two batches of one update, each divided by the tokens of both, add up to the loss of all in one batch."""
    hidden, weight, labels = make_inputs(30)
    items = (labels != IGNORED).sum()
    items = items if as_tensor else items.item()
    halves = [form(hidden[half], weight, labels[half], 0.1, items) for half in (slice(0, 11), slice(11, 30))]
    close(sum(halves), form(hidden, weight, labels, 0.1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_near_single_precision(dtype):
    results = []
    for enabled in (False, True):
        hidden, weight, labels = make_inputs(50)
        with torch.autocast("cpu", dtype, enabled=enabled):
            loss = fused(hidden, weight, labels, 0.1)
        loss.backward()
        results.append((loss.detach(), hidden.grad, weight.grad))
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert (one - other).norm() < 0.02 * one.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs(dtype):
    hidden, weight, labels = make_inputs(50)
    _, *expected = exact(hidden, weight, labels, 0.1)
    hidden, weight, labels = make_inputs(50, dtype=dtype)
    loss = fused(hidden, weight, labels, 0.1)
    assert loss.dtype == torch.float32  # summed in 32 bits
    loss.backward()
    for one, other in zip((hidden.grad, weight.grad), expected, strict=True):
        assert one.dtype == dtype
        assert (one.float() - other).norm() < 0.02 * other.norm()


def test_large_logits_do_not_overflow():
    hidden, weight, labels = make_inputs(20)
    big = (1000 * hidden).detach().requires_grad_()
    loss = fused(big, weight, labels, 0.1)
    loss.backward()
    close(loss, plain(big, weight, labels, 0.1), 1e-5)
    assert loss.isfinite() and big.grad.isfinite().all()


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation gives."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else [output]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return output


def largest_tensor(function) -> int:
    with LargestTensor() as largest:
        function().backward()
    return largest.numel


def test_the_logits_are_never_held():
    rows = 200
    hidden, weight, labels = make_inputs(rows, ignored=0.0)
    assert largest_tensor(lambda: plain(hidden, weight, labels, 0.1)) == rows * V
    # hidden (rows x D), its gradient, and eight rows of logits: nothing as large as rows x V.
    assert largest_tensor(lambda: fused(hidden, weight, labels, 0.1)) == rows * D

    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.numel()) or tensor, lambda t: t):
        fused(hidden, weight, labels, 0.1)
    assert max(saved) <= rows * D


# In the model


@pytest.fixture
def batch():
    torch.manual_seed(1)
    labels = torch.randint(4, 41, (3, 9))
    labels[1, 6:] = IGNORED
    labels[2, 2:] = IGNORED
    return {"input_ids": torch.randint(4, 41, (3, 7)), "labels": labels}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_training_and_evaluation_have_one_loss(make_model, batch, tied, epsilon):
    """And one gradient. In training mode the logits are not returned, for they never exist."""
    model = make_model(tie_word_embeddings=tied, label_smoothing=epsilon)
    results = []
    for training in (False, True):
        model.train(training).zero_grad()
        output = model(**batch)
        output.loss.backward()
        results.append((output.loss, [parameter.grad.clone() for parameter in model.parameters()]))
        assert (output.logits is None) == training
        assert output.past_key_values is None
    (loss, gradients), (training_loss, training_gradients) = results
    close(training_loss, loss)
    for one, other in zip(training_gradients, gradients, strict=True):
        close(one, other, 1e-5)


def test_the_models_loss_is_that_of_its_logits_on_unshifted_labels(make_model, batch):
    model = make_model(label_smoothing=0.2)
    output = model(**batch)
    expected = nn.functional.cross_entropy(
        output.logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED, label_smoothing=0.2
    )
    close(output.loss, expected)
    shifted = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    close(output.logits, model(batch["input_ids"], decoder_input_ids=shifted).logits)


@pytest.mark.parametrize("training", [False, True])
def test_the_model_divides_by_num_items_in_batch(make_model, batch, training):
    model = make_model().train(training)
    items = (batch["labels"] != IGNORED).sum()
    close(model(**batch, num_items_in_batch=4 * items).loss * 4, model(**batch).loss)


def test_the_training_step_never_holds_the_logits(make_model):
    model = make_model(vocab_size=500).train()
    torch.manual_seed(0)
    source, labels = torch.randint(4, 500, (8, 10)), torch.randint(4, 500, (8, 10))
    assert largest_tensor(lambda: model.eval()(source, labels=labels).loss) == 80 * 500
    # The largest is now the embedding matrix.
    assert largest_tensor(lambda: model.train()(source, labels=labels).loss) == 500 * 24


def test_without_labels_training_mode_returns_logits(make_model, batch):
    model = make_model().train()
    output = model(batch["input_ids"], decoder_input_ids=torch.randint(4, 41, (3, 5)))
    assert output.loss is None and output.logits.shape == (3, 5, 41)


def test_a_replaced_output_layer_is_called(make_model, batch):
    """An adapter around the projection must not be bypassed by the fused loss."""

    class Adapter(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    model = make_model(tie_word_embeddings=False)
    adapter = Adapter(24, 41, bias=False)
    adapter.load_state_dict(model.lm_head.state_dict())
    model.lm_head = adapter
    expected = model(**batch)
    output = model.train()(**batch)
    close(output.loss, expected.loss)
    assert output.logits is not None
