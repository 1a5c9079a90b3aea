"""Section 5.3: the learning rate and Adam, against the paper's formula worked out by hand."""

import pytest
import torch

from modeling_vanilla.training.train import adam, learning_rate


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
