"""Inputs as batches: rows of similar length together, pairs checked and padded."""

from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..progress import progress_bar

TOKENS_PER_BATCH = 4096  # by default, with padding


def batches_by_length(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Batches of row numbers, sorted by length: the longest rows first.

    In this order a batch that does not fit in memory fails at once, and the time left is estimated too high rather
    than too low. Training has random batches of both sides of a pair instead: `training.batches.epoch_batches`.

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


def pair_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    tokens_per_batch: int,
    show_progress: bool,
) -> Iterator[tuple[list[int], dict[str, torch.Tensor], torch.Tensor]]:
    """Pairs of token ids, batch by batch, for a model that reads each target as it stands.

    Args:
        tokens_per_batch: the most tokens of a batch on either side, padding included.

    Yields:
        Row numbers; the model's inputs, (B, S) of the sources and (B, T) of the targets shifted right; labels (B, T).
        Targets are padded on the right, where the decoder's causal mask hides padding from every token.
    """
    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    with progress_bar(total=len(sources), unit=" pairs", disable=not show_progress) as bar:
        for rows in batches_by_length(lengths, tokens_per_batch):
            inputs = tokenizer.pad({"input_ids": [sources[row] for row in rows]}, return_tensors="pt").to(model.device)
            ids = [torch.tensor(targets[row], dtype=torch.long) for row in rows]
            labels = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=tokenizer.pad_token_id)
            labels = labels.to(model.device)
            decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
            yield rows, {**inputs, "decoder_input_ids": decoder_input_ids}, labels
            bar.update(len(rows))


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
