"""What makes a training step on a CPU faster, each part by a tenth or more (benchmarks/cpu.py). The paper has none."""

import torch
from torch import Tensor, nn

EAGER_KEYS = 192  # up to which Eq. 1 written out beats torch's fused kernel


def eager_is_faster(query: Tensor, key: Tensor) -> bool:
    """Whether Eq. 1 written out beats torch's fused kernel, whose backward pass is slow on a CPU in 16 bits."""
    trains_in_16_bits = torch.is_grad_enabled() and query.dtype != torch.float32
    return query.device.type == "cpu" and trains_in_16_bits and key.shape[2] <= EAGER_KEYS


class Dropout(nn.Dropout):
    """torch's Dropout, with masks that a CPU draws faster."""

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and 0 < self.p < 1 and x.device.type == "cpu") or torch.compiler.is_compiling():
            return super().forward(x)
        level = max(1, min(round(self.p * 2**15), 2**15 - 1))  # p as a multiple of 2^-15
        return _Masked.apply(x, level)


class _Masked(torch.autograd.Function):
    """Zeroes elements with probability level / 2^15, and divides the others by the probability of staying."""

    @staticmethod
    def forward(ctx, x: Tensor, level: int) -> Tensor:
        mask = keep_mask(x.numel(), level).view(x.shape).to(x.dtype)
        ctx.save_for_backward(mask)
        ctx.scale = 1 / (1 - level / 2**15)
        return (x * mask).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        (mask,) = ctx.saved_tensors
        return (grad_output * mask).mul_(ctx.scale), None


def keep_mask(count: int, level: int) -> Tensor:
    """`count` ones and zeros in bfloat16, a zero with probability level / 2^15.

    torch draws a random number for each element, on one thread. Here a draw of 64 bits serves four elements, and
    integer arithmetic, which a CPU vectorises better than comparisons, turns them into the bits of 1.0 and 0.0.
    """
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    # 15 random bits minus the level are negative where they are below it; the shift fills the number with the sign.
    dropped = bits.bitwise_and_(0x7FFF).sub_(level).bitwise_right_shift_(15)
    return dropped.bitwise_not_().bitwise_and_(0x3F80).view(torch.bfloat16)  # the bits of 1.0


def softmax_in_one_pass(z: Tensor, h: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """p = softmax(z), in the memory of the logits z = h W^T, and log p_y of each row's label y in 32 bits.

    On a CPU each pass over z counts: softmax takes one, logsumexp four. log p_y is read off p; the few rows with a p_y
    too small for its format are computed again. z (N, V), h (N, D), w (V, D), y (N,).
    """
    p = torch.softmax(z, dim=-1, out=z)
    p_y = p.gather(1, y[:, None]).squeeze(1)
    log_p_y = p_y.float().log()
    small = p_y < max(torch.finfo(dtype).tiny for dtype in (p.dtype, log_p_y.dtype))
    if small.any():
        log_p_y[small] = (h[small] @ w.T).float().log_softmax(dim=-1).gather(1, y[small, None]).squeeze(1)
    return p, log_p_y
