"""Self-attention restricted to a neighbourhood of r positions (section 4) at the cost that Table 1 gives it, O(r n d).

The package's `attention_window` hides the other positions behind a mask, and costs O(n^2 d) still. Here the scores of
those positions never exist: the queries are cut into blocks of r, and a block meets only the 2r - 1 keys that any of
its queries sees.
"""

import torch
from torch.nn.functional import pad


def restricted_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, r: int, causal: bool = False
) -> torch.Tensor:
    """Eq. 1 over the r positions around each position, the same ones as under the package's `attention_window`.

    Args:
        q, k: (B, H, T, K). v: (B, H, T, V).
        r: positions that each position sees, itself included: r // 2 before it and the others behind it.
        causal: the r - 1 before it and itself instead, as in the decoder.

    Returns:
        (B, H, T, V). Held in between: 2 r T scores a head, and the keys and values about twice.

    Raises:
        ValueError: if r is below 1.
    """
    if r < 1:
        raise ValueError(f"r must be at least 1, not {r}")
    length, device = q.shape[2], q.device
    blocks = -(-length // r)
    before = r - 1 if causal else r // 2
    behind = r - 1 - before
    rest = blocks * r - length
    q = pad(q, (0, 0, 0, rest)).unflatten(2, (blocks, r))
    # Block b of queries starts at position b r, its keys at b r - before: (B, H, blocks, K, 2r - 1)
    k, v = (pad(x, (0, 0, before, rest + behind)).unfold(2, 2 * r - 1, r) for x in (k, v))
    scores = torch.matmul(q, k) * q.shape[-1] ** -0.5

    query, key = torch.arange(r, device=device)[:, None], torch.arange(2 * r - 1, device=device)
    start = torch.arange(blocks, device=device)[:, None, None] * r
    near = (key >= query) & (key < query + r)
    exists = (start - before + key >= 0) & (start - before + key < length)
    # Queries that only fill the last block up would see nothing, and their 0 / 0 spoil the gradients of all the others.
    filler = start + query >= length
    weights = scores.masked_fill(~(near & (exists | filler)), -torch.inf).softmax(dim=-1)
    return torch.matmul(weights, v.transpose(-2, -1)).flatten(2, 3)[:, :, :length]
