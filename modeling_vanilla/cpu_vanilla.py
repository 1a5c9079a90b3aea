"""What is here only because a CPU is faster that way. None of it is in the paper.

benchmarks/cpu.py prints the time of each beside that of torch's own function.
"""

import torch
from torch import nn

# torch's softmax of fewer columns takes several times as long as of so many (benchmarks/cpu.py --parts softmax).
SOFTMAX_COLUMNS = 16
# Eq. 1 written out is a few batched products; torch's fused kernel is one loop over sentences and heads, whose backward
# pass is slow in 16 bits. The products win in training in 16 bits up to so many keys, and where they are many for the
# few queries of a decoding step (benchmarks/cpu.py --parts attention).
EAGER_KEYS = 192
EAGER_QUERIES = 8
EAGER_BATCH = 64
# Numbers of a product that `add_product` computes at a time.
PRODUCT_SIZE = 2**21
# Tokens of which `top_sums` first takes the maximum (benchmarks/cpu.py --parts top_sums).
BLOCK = 64


def short_softmax(scores: torch.Tensor) -> torch.Tensor:
    """Softmax over the last axis, which is padded where it is short."""
    columns = scores.shape[-1]
    if torch.compiler.is_compiling() or columns >= SOFTMAX_COLUMNS or scores.device.type != "cpu":
        return scores.softmax(dim=-1)
    return nn.functional.pad(scores, (0, SOFTMAX_COLUMNS - columns), value=-torch.inf).softmax(dim=-1)[..., :columns]


def eager_is_faster(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether Eq. 1 written out beats the fused kernel. query (B, H, T, K), key (B, H, S, K)"""
    if query.device.type != "cpu":
        return False
    if torch.is_grad_enabled():
        return query.dtype != torch.float32 and key.shape[2] <= EAGER_KEYS
    if torch.compiler.is_compiling():  # where the number of sentences would be one more case to compile
        return True
    batch_size, heads, queries, _ = query.shape
    return batch_size * heads >= EAGER_BATCH and queries <= EAGER_QUERIES


def dropout(x: torch.Tensor, p: float, residual: torch.Tensor | None = None) -> torch.Tensor:
    """torch's dropout in training, plus the residual if there is one, of the same shape and format.

    On a CPU the mask is drawn faster, and the sum takes no pass of its own (benchmarks/cpu.py --parts dropout
    residual).
    """
    if 0 < p < 1 and x.device.type == "cpu":
        level = max(1, min(round(p * 2**15), 2**15 - 1))  # p as a multiple of 2^-15
        scale = 1 / (1 - level / 2**15)
        if not torch.compiler.is_compiling():
            return Dropout.apply(x, level, scale, residual)
        dropped = x * torch.ops.modeling_vanilla.keep_mask(x.detach(), level).to(x.dtype) * scale
    else:
        dropped = nn.functional.dropout(x, p)
    return dropped if residual is None else residual + dropped


class Dropout(torch.autograd.Function):
    """Zeroes elements with probability level / 2^15 and multiplies the others by scale."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, level: int, scale: float, residual: torch.Tensor | None) -> torch.Tensor:
        mask = keep_mask(x.numel(), level).view(x.shape).to(x.dtype)
        ctx.save_for_backward(mask)
        ctx.scale = scale
        if residual is None:
            return (x * mask).mul_(scale)
        return torch.addcmul(residual, x, mask, value=scale)

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor):
        (mask,) = ctx.saved_tensors
        return (grad_output * mask).mul_(ctx.scale), None, None, grad_output if ctx.needs_input_grad[3] else None


def keep_mask(count: int, level: int) -> torch.Tensor:
    """`count` ones and zeros in bfloat16, a zero with probability level / 2^15.

    torch draws a random number for each element, on one thread. Here a draw of 64 bits serves four elements, and
    integer arithmetic, which a CPU vectorises better than comparisons, turns them into the bits of 1.0 and 0.0.
    """
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[:count]
    # 15 random bits minus the level are negative where they are below it; the shift fills the number with the sign.
    dropped = bits.bitwise_and_(0x7FFF).sub_(level).bitwise_right_shift_(15)
    one = 0x3F80
    return dropped.bitwise_not_().bitwise_and_(one).view(torch.bfloat16)


# keep_mask in the shape of x as one operation to the compiler, which merges two calls with the same arguments unless a
# tag says that they are random; torch 2.7 has no tags in torch.library.custom_op. Copies of this file, which come with
# models from the Hub, share the operation.
if not hasattr(torch.ops.modeling_vanilla, "keep_mask"):
    name = "modeling_vanilla::keep_mask"
    torch.library.define(name, "(Tensor x, SymInt level) -> Tensor", tags=torch.Tag.nondeterministic_seeded)
    torch.library.impl(name, "CPU", lambda x, level: keep_mask(x.numel(), level).view(x.shape))
    torch.library.register_fake(name, lambda x, level: torch.empty(x.shape, dtype=torch.bfloat16, device=x.device))


def softmax_of_logits(
    h: torch.Tensor, w: torch.Tensor, y: torch.Tensor, out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """p = softmax(z) of the logits z = h W^T, and in 32 bits z_y and log p_y of each row's label y.

    On a CPU each pass over z counts: softmax takes one, logsumexp four. log p_y is read off p; the few rows with a p_y
    too small for its format are computed again (benchmarks/cpu.py --parts loss).

    Args:
        h: (N, D). w: (V, D). y: (N,). out: (N, V), memory for z, which may be overwritten with p.

    Returns:
        (N, V), (N,), (N,)
    """
    z = torch.mm(h, w.T, out=out)
    z_y = z.gather(1, y[:, None]).squeeze(1).float()
    if z.device.type != "cpu":
        log_p = z.log_softmax(dim=-1, dtype=torch.float32)
        log_p_y = log_p.gather(1, y[:, None]).squeeze(1)
        return log_p.exp_(), z_y, log_p_y
    p = torch.softmax(z, dim=-1, out=z)
    p_y = p.gather(1, y[:, None]).squeeze(1)
    log_p_y = p_y.float().log()
    small = p_y < max(torch.finfo(dtype).tiny for dtype in (p.dtype, log_p_y.dtype))
    if small.any():
        log_p_y[small] = (h[small] @ w.T).float().log_softmax(dim=-1).gather(1, y[small, None]).squeeze(1)
    return p, z_y, log_p_y


def add_product(total: torch.Tensor, p: torch.Tensor, h: torch.Tensor) -> None:
    """total += P^T H, in 32 bits, where the product may be of 16. total (V, D), p (N, V), h (N, D)

    Some rows at a time: the whole product in both formats would be fresh memory of more than the weights', which costs
    a CPU more than its arithmetic (benchmarks/cpu.py --parts add_product).
    """
    if p.dtype == total.dtype:
        total.addmm_(p.T, h)
        return
    some = max(1, PRODUCT_SIZE // total.shape[1]) if total.device.type == "cpu" else len(total)
    for start in range(0, len(total), some):
        rows = slice(start, start + some)
        total[rows] += torch.mm(p[:, rows].T, h).float()  # adding 16 bits to 32 without .float() is slower


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """log softmax(logits) over the last axis, in 32 bits.

    A 16-bit matrix is converted once and overwritten, as fresh memory of that size costs a CPU time
    (benchmarks/cpu.py --parts log_softmax).
    """
    if logits.dtype == torch.float32:
        return logits.log_softmax(dim=-1)
    z = logits.float()
    return torch.log_softmax(z, dim=-1, out=z)


def top_sums(score: torch.Tensor, log_probs: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest sums of a hypothesis' score (B, K) and the log-probability of a next token (B, K, V), sorted.

    torch's topk partially sorts each row. A plain maximum is faster: a block of tokens whose largest sum is not among
    the k largest of all blocks has no token to give, so that only k blocks are sorted.

    Returns:
        The sums and their index, hypothesis * V + token. Each (B, k), or all there are.
    """
    if score.device.type != "cpu":
        sums = (score[..., None] + log_probs).flatten(1)
        top = sums.topk(min(k, sums.shape[1]))
        return top.values, top.indices
    batch_size, beams, vocabulary = log_probs.shape
    blocks = vocabulary // BLOCK
    rest = torch.arange(blocks * BLOCK, vocabulary, device=score.device)  # too few for a block
    index = (torch.arange(beams, device=score.device)[:, None] * vocabulary + rest).flatten().expand(batch_size, -1)
    if blocks:
        largest = log_probs[..., : blocks * BLOCK].unflatten(2, (blocks, BLOCK)).amax(dim=-1)
        block = (score[..., None] + largest).flatten(1).topk(min(k, beams * blocks), sorted=False).indices
        first = block // blocks * vocabulary + block % blocks * BLOCK
        within = torch.arange(BLOCK, device=score.device)
        index = torch.cat(((first[..., None] + within).flatten(1), index), dim=1)
    sums = score.gather(1, index // vocabulary) + log_probs.flatten(1).gather(1, index)
    best, order = sums.topk(min(k, beams * vocabulary))
    return best, index.gather(1, order)
