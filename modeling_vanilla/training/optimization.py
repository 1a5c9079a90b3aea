"""Section 5.3: Adam and the learning rate that rises for the warm-up steps and falls with the root of the step."""

import torch
from torch import nn


def learning_rate(step: int, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (5.3, Eq. 3); the first step is 1.

    Raises:
        ValueError: if step or warmup_steps is below 1.
    """
    if step < 1 or warmup_steps < 1:
        raise ValueError(f"step and warmup_steps must be at least 1, not {step} and {warmup_steps}")
    return scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def adam(model: nn.Module) -> torch.optim.Adam:
    """Adam with beta_1 0.9, beta_2 0.98, epsilon 1e-9 (5.3); its rate is set before each step from learning_rate."""
    return torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
