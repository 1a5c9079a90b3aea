"""Inputs as batches: rows of similar length together, pairs checked, targets padded."""

from collections.abc import Iterator, Sequence

import torch


def batches_by_length(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Batches of row numbers, sorted by length: the longest rows first.

    In this order a batch that does not fit in memory fails at once, and the time left is estimated too high rather
    than too low. Training has random batches of both sides of a pair instead: `training.batching.epoch_batches`.

    Args:
        lengths: tokens of each row.
        tokens_per_batch: the most tokens of a batch, padding included. A single row is a batch whatever its length.

    Raises:
        ValueError: if tokens_per_batch is below 1.
    """
    if tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch must be at least 1, not {tokens_per_batch}")
    rows = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while rows:
        count = max(1, tokens_per_batch // max(1, lengths[rows[0]]))
        yield rows[:count]
        rows = rows[count:]


def pad_targets(targets: Sequence[list[int]], pad_token_id: int) -> torch.Tensor:
    """(B, T) of token ids, padded on the right, where the decoder's causal mask hides padding from every token."""
    rows = [torch.tensor(target, dtype=torch.long) for target in targets]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_token_id)


def check_pairs(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Raise ValueError unless these are two lists of texts of the same length."""
    for name, texts in (("sources", sources), ("targets", targets)):
        if isinstance(texts, str):
            raise ValueError(f"{name} must be a list of texts, not one text: {texts!r:.60}")
    if len(sources) != len(targets):
        raise ValueError(f"there are {len(sources)} sources but {len(targets)} targets")


def regroup(values: Sequence, pieces: Sequence[Sequence[str]]) -> list[list]:
    """Group the values of all pieces by text, as the pieces are grouped."""
    remaining = iter(values)
    return [[next(remaining) for _ in parts] for parts in pieces]
