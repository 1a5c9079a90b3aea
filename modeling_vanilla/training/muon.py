"""Muon (Jordan et al. 2024), which needs fewer updates than Adam: of the recipe (recipe.py), not of the paper.

docs/notebook/speedrun.md has its gain.
"""

import math

import torch
from torch import Tensor, nn


class Muon(torch.optim.Adam):
    """Muon with weight decay for the matrices of the layers, Adam for all other parameters, with one learning rate.

    A matrix moves by its gradients' momentum, made orthogonal. The parts of a fused projection are matrices of their
    own, as in the initialisation. torch.optim.Muon knows no parts and computes in bfloat16, for which most CPUs need
    twenty times as long.

    Args:
        adam: arguments of torch.optim.Adam.
    """

    MOMENTUM = 0.95
    WEIGHT_DECAY = 0.5  # of the matrices, times the rate; the paper has none

    def __init__(self, model: nn.Module, **adam):
        linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
        linears.remove(model.get_output_embeddings())
        matrices = {linear.weight: getattr(linear, "parts", [linear.out_features]) for linear in linears}
        others = [parameter for parameter in model.parameters() if parameter not in matrices]
        groups: list[dict] = [{"params": [*matrices], "parts": [*matrices.values()]}, {"params": others}]
        super().__init__(groups, **adam)
        # Adam would take a scaler's word for which gradients have overflowed; so the scaler leaves out the whole step.
        self._step_supports_amp_scaling = False

    @torch.no_grad()
    def step(self, closure=None):
        """Take a step; it leaves matrices without a gradient, so that Adam passes them by."""
        matrices, _ = self.param_groups
        for weight, parts in zip(matrices["params"], matrices["parts"], strict=True):
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:  # Adam asks every parameter for its step when it loads a state
                state |= {"step": torch.zeros(()), "momentum_buffer": torch.zeros_like(weight)}
            momentum = state["momentum_buffer"]
            momentum.lerp_(weight.grad, 1 - self.MOMENTUM)
            update = weight.grad.lerp(momentum, self.MOMENTUM)  # Nesterov's
            weight.mul_(1 - matrices["lr"] * self.WEIGHT_DECAY)
            for part, change in zip(weight.split(parts), update.split(parts), strict=True):
                # The root of its mean square is then about 0.2, as usual with Adam (Liu et al. 2025).
                part.sub_(orthogonal(change), alpha=matrices["lr"] * 0.2 * math.sqrt(max(part.shape)))
            weight.grad = None
        return super().step(closure)


def orthogonal(matrix: Tensor) -> Tensor:
    """About U V^T of the matrix U S V^T: five steps of Newton and Schulz with the coefficients of Jordan et al."""
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x
