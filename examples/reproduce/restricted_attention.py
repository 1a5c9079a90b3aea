"""Self-attention restricted to a neighbourhood of r positions (section 4) at the cost that Table 1 gives it, O(r n d).

The package's `attention_window` masks the other positions, which still costs O(n^2 d). Here their scores are not
computed: the queries are cut into blocks of r, and each block is multiplied with the 2r - 1 keys its queries attend to.
"""

import torch
from torch.nn.functional import pad


def restricted_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, r: int) -> torch.Tensor:
    """Eq. 1 over the r positions around each position, the same ones as under the package's `attention_window`.

    Args:
        q, k: (B, H, T, d_k). v: (B, H, T, d_v).
        r: positions that each position attends to, itself included: r // 2 before it and the others after it.

    Returns:
        (B, H, T, d_v). The memory in between is 2 r T scores a head and about two copies of the keys and values.
    """
    length, device = q.shape[2], q.device
    blocks = -(-length // r)
    before = r // 2
    after = r - 1 - before
    rest = blocks * r - length
    q = pad(q, (0, 0, 0, rest)).unflatten(2, (blocks, r))
    # Block b of queries starts at position b r, its keys at b r - before: (B, H, blocks, d_k, 2r - 1)
    k, v = (pad(x, (0, 0, before, rest + after)).unfold(2, 2 * r - 1, r) for x in (k, v))
    scores = torch.matmul(q, k) * q.shape[-1] ** -0.5

    query, key = torch.arange(r, device=device)[:, None], torch.arange(2 * r - 1, device=device)
    start = torch.arange(blocks, device=device)[:, None, None] * r
    in_window = (key >= query) & (key < query + r)
    exists = (start - before + key >= 0) & (start - before + key < length)
    # Padding queries of the last block would attend to nothing: 0 / 0, which makes all gradients NaN.
    padding = start + query >= length
    weights = scores.masked_fill(~(in_window & (exists | padding)), -torch.inf).softmax(dim=-1)
    return torch.matmul(weights, v.transpose(-2, -1)).flatten(2, 3)[:, :, :length]
