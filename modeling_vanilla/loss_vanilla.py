"""Section 5.4: cross-entropy with label smoothing, also fused with the output projection.

The logits of a batch take more memory than the rest of the training step. The fused form computes a few rows of them at
a time, and from these the loss and the gradients at once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.modeling_outputs import Seq2SeqModelOutput

from .cpu_vanilla import softmax_in_one_pass

IGNORED = -100  # the label of positions that the loss leaves out, as everywhere in transformers

CHUNK_ROWS = 512  # of logits in memory at a time on a CPU
CHUNK_NUMBERS = 2**26  # elsewhere, as each chunk starts some thirty kernels


def smoothed_cross_entropy(
    logits: Tensor, labels: Tensor, epsilon: float, num_items: Tensor | int | None = None
) -> Tensor:
    """Mean over the labels y of -sum_v q_v log p_v with q = (1 - epsilon) onehot(y) + epsilon / V, p = softmax(logits).

    Args:
        logits: (..., V).
        labels: (...), the token to predict at each position, not shifted, or IGNORED.
        epsilon: epsilon_ls, the probability that is spread evenly over the vocabulary.
        num_items: divisor of the sum, such as the tokens of a whole update; by default the number of labels.

    Returns:
        A scalar in nats per token; 0 if every label is IGNORED.
    """
    total = nn.functional.cross_entropy(
        logits.flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORED, label_smoothing=epsilon, reduction="sum"
    )
    return total / _divisor(labels, num_items)


# torch.compile would compile the loop over chunks anew for every number of rows.
@torch.compiler.disable
def fused_smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, epsilon: float, num_items: Tensor | int | None = None
) -> Tensor:
    """smoothed_cross_entropy(hidden @ weight.T, labels, ...), with only a chunk of the logits' rows in memory.

    hidden (..., D) is the decoder's output, weight (V, D) the output projection.
    """
    device_type = hidden.device.type
    autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if autocast else weight.dtype
    labelled = (labels.flatten() != IGNORED).nonzero().flatten()  # a GPU's host waits for indices once
    rows = hidden.flatten(0, -2).index_select(0, labelled)
    return _FusedLoss.apply(rows, weight, labels.flatten()[labelled], epsilon, dtype) / _divisor(labels, num_items)


def is_plain(layer: nn.Linear) -> bool:
    """Whether a layer is only a weight matrix, as the fused loss takes it, without bias, adapter or hooks."""
    # accelerate's hooks replace forward().
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "forward")
    return type(layer) is nn.Linear and layer.bias is None and not any(vars(layer).get(name) for name in hooks)


@dataclass
class FusedLossOutput(Seq2SeqModelOutput):
    """The output in training mode with labels. The fused loss never holds the logits: to read them is an error."""

    loss: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        # Not a field, so that FSDP and accelerate, which copy or convert the fields, do not read it.
        raise AttributeError("logits: none in training mode with labels, unless return_dict=False: (loss, logits, ...)")

    def to_tuple(self) -> tuple:
        return self.loss, self.logits

    def __getitem__(self, key):
        if key == "logits":
            return self.logits
        return self.loss if key == 0 else super().__getitem__(key)


def _divisor(labels: Tensor, num_items: Tensor | int | None) -> Tensor | int:
    """The number of labels, or num_items if given; 1 instead of 0, for then the sum is 0, too."""
    count = (labels != IGNORED).sum() if num_items is None else num_items
    return count + (count == 0)


def softmax(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """p = softmax(z) of logits z (N, V), and log p_y of each row's label y (N,), in 32 bits."""
    log_p = z.log_softmax(dim=-1, dtype=torch.float32)
    log_p_y = log_p.gather(1, y[:, None]).squeeze(1)
    return log_p.exp_(), log_p_y


class _FusedLoss(torch.autograd.Function):
    """Sum over rows of -sum_v q_v log p_v with p = softmax(z), z = h W^T, q = (1 - epsilon) onehot(y) + epsilon / V.

    As q sums to 1, the loss of a row is logsumexp(z) - (1 - epsilon) z_y - epsilon mean(z), and its gradient with
    respect to z is p - q. Both follow from p, so the forward pass computes the gradients as well. The uniform part of q
    needs no pass over the vocabulary: with w the sum of the rows of W, its share of q W is epsilon / V w.
    """

    @staticmethod
    def forward(ctx, hidden, weight, labels, epsilon: float, dtype: torch.dtype) -> Tensor:
        """hidden (N, D), weight (V, D), labels (N,) -> scalar; the products are taken in `dtype`, sums in 32 bits."""
        spread = epsilon / weight.shape[0]
        w = weight.to(dtype)
        weight_sum = w.sum(dim=0, dtype=torch.float32)
        hidden_sum = hidden.sum(dim=0, dtype=torch.float32)
        total = -spread * torch.dot(hidden_sum, weight_sum)
        hidden_grad = torch.empty_like(hidden)
        learns = ctx.needs_input_grad[1]  # not where adapters are trained beside W
        weight_grad = (-spread * hidden_sum).repeat(weight.shape[0], 1) if learns else None
        chunk = CHUNK_ROWS if w.device.type == "cpu" else max(1, CHUNK_NUMBERS // w.shape[0])
        logits = w.new_empty(min(chunk, hidden.shape[0]), w.shape[0])  # reused by every chunk
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            h, y = hidden[rows].to(dtype), labels[rows]
            z = torch.mm(h, w.T, out=logits[: h.shape[0]])
            z_y = z.gather(1, y[:, None]).squeeze(1).float()
            p, log_p_y = softmax_in_one_pass(z, h, w, y) if z.device.type == "cpu" else softmax(z, y)
            total += (epsilon * z_y - log_p_y).sum()
            flat, of_label = p.view(-1), y + torch.arange(len(y), device=y.device) * p.shape[1]
            p_y = flat[of_label].float()
            rest = flat.index_fill_(0, of_label, 0).view_as(p).sum(dim=-1).float()
            # Where p_y is near 1, p_y - q_y loses digits to cancellation: 1 - sum of the others is more exact.
            p_y = torch.where(p_y > 0.5, 1 - rest, p_y)
            p = flat.index_copy_(0, of_label, (p_y - (1 - epsilon)).to(p.dtype)).view_as(p).to(dtype)
            hidden_grad[rows] = p @ w - spread * weight_sum
            if weight_grad is not None:
                weight_grad += torch.mm(p.T, h).float()
        ctx.save_for_backward(hidden_grad, None if weight_grad is None else weight_grad.to(weight.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output: Tensor):
        hidden_grad, weight_grad = ctx.saved_tensors
        weight_grad = None if weight_grad is None else weight_grad * grad_output
        return hidden_grad * grad_output, weight_grad, None, None, None
