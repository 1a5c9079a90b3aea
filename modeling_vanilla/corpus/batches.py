"""Section 5.1: batches of pairs of similar length, and the updates that they make."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ..loss_vanilla import IGNORED

MOST_PADDING = 500  # positions that on a core in bf16 cost about as much as one more call of a small model


def epoch_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, tokens_per_batch: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """The batches of an epoch: pairs of similar length together, in random order (section 5.1).

    The pairs are sorted by source length and, within a source length, by target length, ascending and descending in
    turn, so that neighbours are close in both; ties are broken at random. The sorted list is cut where the next pair
    would make a batch too large, and the batches are shuffled. Seed and epoch determine everything random.

    Args:
        source_lengths, target_lengths: tokens of each pair's sides, (pairs,).
        tokens_per_batch: the most tokens of a batch on either side, padding included: rows x longest row. A larger pair
            is a batch by itself.
        seed, epoch: not negative.

    Returns:
        Arrays of row numbers; every row is in one of them.
    """
    sources, targets = source_lengths, target_lengths
    rng = np.random.default_rng([seed, epoch])
    _, source_rank = np.unique(sources, return_inverse=True)
    serpentine = np.where(source_rank % 2 == 0, targets, -targets)
    order = np.lexsort((rng.random(len(sources)), serpentine, sources))
    sources, targets = sources[order], targets[order]
    batches, start = [], 0
    while start < len(order):
        # Sources ascend, so the first one bounds the number of rows from above.
        stop = start + max(1, tokens_per_batch // max(sources[start], targets[start]))
        rows = np.arange(1, len(order[start:stop]) + 1)
        fits = (rows * sources[start:stop] <= tokens_per_batch) & (
            rows * np.maximum.accumulate(targets[start:stop]) <= tokens_per_batch
        )
        count = max(1, int(np.count_nonzero(fits)))  # rows x longest row increases: the rows that fit come first
        batches.append(order[start : start + count])
        start += count
    return [batches[i] for i in rng.permutation(len(batches))]


def update_batches(
    batches: list[np.ndarray], source_lengths: np.ndarray, target_lengths: np.ndarray, tokens_per_update: int
) -> list[list[np.ndarray]]:
    """Group consecutive batches into optimizer updates of about `tokens_per_update` tokens a side (5.1: 25000).

    Tokens are counted without padding, as the mean of source and target. An update ends where its size is nearest to
    tokens_per_update: before the batch that would take it further above than it now is below. The last batches are an
    update of their own if they fill at least half of one; otherwise they join the previous update. Data that do not
    fill an update are one. The updates do not depend on the number of processes or accumulation steps, so they are the
    same whatever the hardware.

    Returns:
        The batches of each update, in their order.
    """
    tokens = [(int(source_lengths[batch].sum()) + int(target_lengths[batch].sum())) / 2 for batch in batches]
    updates: list[list[np.ndarray]] = [[]]
    filled = 0.0
    for batch, size in zip(batches, tokens, strict=True):
        if updates[-1] and filled + size - tokens_per_update > tokens_per_update - filled:
            updates.append([])
            filled = 0.0
        updates[-1].append(batch)
        filled += size
    if len(updates) > 1 and filled < tokens_per_update / 2:
        remainder = updates.pop()
        updates[-1] += remainder
    return updates


def join_batches(batches: list[np.ndarray], source_lengths: np.ndarray, target_lengths: np.ndarray) -> list[np.ndarray]:
    """Join batches whose pairs are of lengths so near that the padding costs less than a call of the model.

    From the shortest on, a batch joins the one before it if that adds at most MOST_PADDING positions.
    """

    def longest(batch: np.ndarray) -> int:
        return int(source_lengths[batch].max() + target_lengths[batch].max())

    def positions(batch: np.ndarray) -> int:
        return len(batch) * longest(batch)

    joined: list[np.ndarray] = []
    for batch in sorted(batches, key=longest):
        both = np.concatenate([*joined[-1:], batch])
        if joined and positions(both) <= positions(joined[-1]) + positions(batch) + MOST_PADDING:
            joined[-1] = both
        else:
            joined.append(batch)
    return joined


def collate(rows: pa.Table, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Pad the lists of token ids in the columns "input_ids" and "labels" on the right to the longest.

    Returns:
        int64 tensors: input_ids (B, S), attention_mask (B, S) with 1 for tokens and 0 for padding, and labels (B, T)
        with -100 for padding.
    """
    source, is_source = _pad(rows["input_ids"], pad_token_id)
    target, _ = _pad(rows["labels"], IGNORED)
    # The mask is not computed from the ids: some tokenizers pad with a token that also occurs in sentences.
    return {"input_ids": source, "attention_mask": is_source.long(), "labels": target}


def _pad(column: pa.ChunkedArray, value: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The lists of a column as rows padded with a value, and which of their places are the lists'."""
    lists = column.combine_chunks()
    lengths = pc.list_value_length(lists).to_numpy()
    is_filled = np.arange(lengths.max()) < lengths[:, None]
    padded = np.full(is_filled.shape, value, dtype=np.int64)
    padded[is_filled] = lists.flatten().to_numpy()
    return torch.from_numpy(padded), torch.from_numpy(is_filled)
