"""Section 5.4: cross-entropy against smoothed labels, fused with the output projection.

With a vocabulary of 37000 the logits of one batch outweigh the rest of the training step. The fused form computes
them a few rows at a time, takes loss and gradient from them on the spot and drops them, so that the full matrix
(tokens x vocabulary) never exists.
"""

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from .cpu_vanilla import softmax_and_normaliser

IGNORED = -100  # the label of a position that does not count, as everywhere in transformers

# Rows of logits that exist at a time: few enough to stay in cache, enough to keep the products large.
CHUNK_ROWS = 256


def smoothed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, epsilon: float, num_items: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Cross-entropy against (1 - epsilon) * one-hot + epsilon / V, the mean over the labels that count.

    Args:
        logits: (..., V). labels: (...), unshifted: the token each position shall give, IGNORED where none counts.
        epsilon: epsilon_ls, the probability spread evenly over the whole vocabulary.
        num_items: divide the sum by this instead of the number of labels that count here (the tokens of a whole
            update, if this is one of its batches).

    Returns:
        A scalar in nats per token.
    """
    total = nn.functional.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        ignore_index=IGNORED,
        label_smoothing=epsilon,
        reduction="sum",
    )
    return total / _count(labels, num_items)


# Its loop over chunks would be compiled anew for every number of rows; what it calls is compiled already.
@torch.compiler.disable
def fused_smoothed_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    epsilon: float,
    num_items: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """smoothed_cross_entropy(hidden @ weight.T, labels, ...) without ever holding those logits.

    Args:
        hidden: (..., D), the decoder's output. weight: (V, D), the output projection. The rest as above.
    """
    device_type = hidden.device.type
    autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if autocast else weight.dtype
    counts = labels.flatten() != IGNORED
    rows = hidden.flatten(0, -2)[counts]
    return _FusedLoss.apply(rows, weight, labels.flatten()[counts], epsilon, dtype) / _count(labels, num_items)


def _count(labels: torch.Tensor, num_items: torch.Tensor | int | None) -> torch.Tensor | int:
    # A batch without a single label that counts has loss 0, not 0 / 0.
    return (labels != IGNORED).sum().clamp(min=1) if num_items is None else num_items


class _FusedLoss(torch.autograd.Function):
    """Sum over rows of -sum_v q_v log p_v with p = softmax(z), z = h W^T, q = (1 - epsilon) onehot(y) + epsilon / V.

    As q sums to 1, a row's loss is logsumexp(z) - (1 - epsilon) z_y - epsilon mean(z), and its gradient in z is
    p - q. Both are there once p is, so the forward pass computes the gradients as well. The even part of q needs no
    pass over the vocabulary: with w the sum of W's rows, it adds epsilon / V w to q W.
    """

    @staticmethod
    def forward(ctx, hidden, weight, labels, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
        """hidden (N, D), weight (V, D), labels (N,) -> scalar; the products are taken in `dtype`, sums in 32 bits."""
        spread = epsilon / weight.shape[0]
        w = weight.to(dtype)
        weight_sum = w.sum(dim=0, dtype=torch.float32)
        hidden_sum = hidden.sum(dim=0, dtype=torch.float32)
        total = -spread * torch.dot(hidden_sum, weight_sum)
        hidden_grad = torch.empty_like(hidden)
        weight_grad = (-spread * hidden_sum).repeat(weight.shape[0], 1)
        # Written over and over: fresh memory of this size costs a CPU more than the arithmetic in it.
        logits = w.new_empty(min(CHUNK_ROWS, hidden.shape[0]), w.shape[0])
        product, product_32 = torch.empty_like(w), torch.empty_like(weight_grad)
        for start in range(0, hidden.shape[0], CHUNK_ROWS):
            h, y = hidden[start : start + CHUNK_ROWS].to(dtype), labels[start : start + CHUNK_ROWS, None]
            z = torch.mm(h, w.T, out=logits[: h.shape[0]])
            z_y = z.gather(1, y).float()
            p, log_normaliser = softmax_and_normaliser(z)
            total += log_normaliser.sum() - (1 - epsilon) * z_y.sum()
            p_y = p.gather(1, y).float()
            rest = p.scatter_(1, y, 0).sum(dim=-1, keepdim=True).float()
            # p_y - q_y cancels where the model is sure, and there what the rest leaves of 1 is the more exact p_y.
            p_y = torch.where(p_y > 0.5, 1 - rest, p_y)
            p = p.scatter_(1, y, (p_y - (1 - epsilon)).to(p.dtype)).to(dtype)
            hidden_grad[start : start + CHUNK_ROWS] = p @ w - spread * weight_sum
            if dtype == weight_grad.dtype:
                weight_grad.addmm_(p.T, h)
            else:
                weight_grad += product_32.copy_(torch.mm(p.T, h, out=product))
        ctx.save_for_backward(hidden_grad, weight_grad.to(weight.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output: torch.Tensor):
        hidden_grad, weight_grad = ctx.saved_tensors
        return hidden_grad * grad_output, weight_grad * grad_output, None, None, None
