"""Section 5.3: the learning rate and Adam, against the paper's formula worked out by hand; and what replaces them."""

import pytest
import torch
from torch import nn
from transformers import get_linear_schedule_with_warmup

from modeling_vanilla.training import TrainingOptions
from modeling_vanilla.training.recipe import complete
from modeling_vanilla.training.train import adam, learning_rate, muon, rate_of


def test_learning_rate_of_the_base_model_by_hand():
    # 512^-0.5 = 0.04419417; at step 4000 both terms of the minimum are 4000^-0.5 = 0.01581139.
    assert learning_rate(4000, 512, 4000) == pytest.approx(6.987712e-4, rel=1e-6)
    assert learning_rate(1, 512, 4000) == pytest.approx(0.04419417 * 4000**-1.5, rel=1e-6)
    assert learning_rate(16000, 512, 4000) == pytest.approx(3.493856e-4, rel=1e-6)
    assert learning_rate(4000, 128, 4000, scale=3.0) == pytest.approx(6 * 6.987712e-4, rel=1e-6)


@pytest.mark.parametrize(("step", "warmup"), [(0, 10), (-1, 10), (1, 0)])
def test_learning_rate_refuses_what_has_no_rate(step, warmup):
    with pytest.raises(ValueError, match=rf"at least 1, not {step} and {warmup}$"):
        learning_rate(step, 64, warmup)


def test_adam_takes_the_step_of_the_paper():
    """With beta_1 0.9, beta_2 0.98, epsilon 1e-9 and no weight decay; the update written out in 64 bits."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2, bias=False).double()
    optimizer = adam(model)
    assert optimizer.param_groups[0]["lr"] == 0  # until it is set
    expected = model.weight.detach().clone()
    first, second = torch.zeros_like(expected), torch.zeros_like(expected)
    for step in range(1, 4):
        gradient = torch.randn_like(expected)
        model.weight.grad = gradient.clone()
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * step
        optimizer.step()
        first = 0.9 * first + 0.1 * gradient
        second = 0.98 * second + 0.02 * gradient**2
        expected -= 0.1 * step * (first / (1 - 0.9**step)) / ((second / (1 - 0.98**step)).sqrt() + 1e-9)
    torch.testing.assert_close(model.weight.detach(), expected)


@pytest.mark.parametrize("peak", [{"learning_rate": 0.005}, {"learning_rate_scale": 0.005 * (128 * 10) ** 0.5}])
def test_the_linear_rate_is_that_of_transformers_with_the_first_step_above_0(peak):
    """Theirs is 0 in the step before the first and in that after the last."""
    options = {"warmup_steps": 10, "max_steps": 50, "lr_scheduler_type": "linear"}
    training = complete(TrainingOptions("unused", **options, **peak))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.005)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, 51)
    for step in range(1, 51):
        optimizer.step()
        schedule.step()
        assert rate_of(training, 128, step) == pytest.approx(schedule.get_last_lr()[0])


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
@pytest.mark.parametrize("bf16", [False, True])
def test_muon_is_that_of_torch_on_each_matrix_and_adam_on_all_else(make_model, bf16):
    """A fused projection's parts are matrices of their own. torch's computes in bfloat16."""
    model, twin = make_model(), make_model()
    ours, expected = dict(model.named_parameters()), dict(twin.named_parameters())
    counts = {name: 3 if "qkv_proj" in name else 2 if "kv_proj" in name else 1 for name in ours}
    start = {name: value.detach().clone() for name, value in ours.items() if ".layers." in name and value.dim() == 2}
    parts = [nn.Parameter(part.clone()) for name, value in start.items() for part in value.chunk(counts[name])]
    theirs = torch.optim.Muon(parts, lr=0.01, weight_decay=0.5, adjust_lr_fn="match_rms_adamw")
    optimizers = [muon(model), adam(twin), theirs]
    for _ in range(3):
        gradients = {name: torch.randn_like(value) for name, value in ours.items()}
        for values in (ours, expected):
            for name, value in values.items():
                value.grad = gradients[name].clone()
        pieces = (piece for name in start for piece in gradients[name].chunk(counts[name]))
        for part, piece in zip(parts, pieces, strict=True):
            part.grad = piece.clone()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = 0.01
            with torch.autocast("cpu", enabled=bf16):
                optimizer.step()
    left = iter(parts)
    for name, value in ours.items():
        if name not in start:
            assert value.equal(expected[name])
            continue
        whole = torch.cat([next(left) for _ in range(counts[name])])
        assert float((value - whole).detach().norm() / (value - start[name]).detach().norm()) < 0.02
