"""Muon (Jordan et al. 2024), which needs fewer updates than Adam: of the recipe (recipe.py), not of the paper.

docs/notebook/speedrun.md has its gain.
"""

import math
from collections import defaultdict

import torch
from torch import Tensor, nn


class Muon(torch.optim.Adam):
    """Muon with weight decay for the matrices of the layers, Adam for all other parameters, with one learning rate.

    A matrix moves by its gradients' momentum, made orthogonal. The parts of a fused projection are matrices of their
    own, as in the initialisation. Those of equal shape are computed as one stack. torch.optim.Muon knows no parts and
    computes in bfloat16, for which many CPUs need twenty times as long; here autocast decides.

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
        stacks = defaultdict(list)  # matrices and their changes, by shape
        for weight, parts in zip(matrices["params"], matrices["parts"], strict=True):
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:  # Adam asks every parameter for its step when it loads a state
                state |= {"step": torch.zeros(()), "momentum_buffer": torch.zeros_like(weight)}
            momentum = state["momentum_buffer"]
            momentum.lerp_(weight.grad, 1 - self.MOMENTUM)
            change = weight.grad.lerp(momentum, self.MOMENTUM)  # Nesterov's
            weight.mul_(1 - matrices["lr"] * self.WEIGHT_DECAY)
            for pair in zip(weight.split(parts), change.split(parts), strict=True):
                stacks[pair[0].shape].append(pair)
            weight.grad = None
        for shape, pairs in stacks.items():
            weights, changes = zip(*pairs, strict=True)
            # The root of its mean square is then about 0.2, as usual with Adam (Liu et al. 2025).
            rate = matrices["lr"] * 0.2 * math.sqrt(max(shape))
            for weight, change in zip(weights, orthogonal(torch.stack(changes)), strict=True):
                weight.sub_(change, alpha=rate)
        return super().step(closure)


def orthogonal(x: Tensor) -> Tensor:
    """About U V^T of each matrix U S V^T of x (N, rows, columns).

    Five steps of Newton and Schulz with the coefficients of Jordan et al.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    if x.shape[1] > x.shape[2]:
        return orthogonal(x.mT).mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
