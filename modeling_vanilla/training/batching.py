"""From sentence pairs to the batches and updates of section 5.1: tokenised, filtered, batched by tokens, padded."""

import os
import signal
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from accelerate.utils import patch_environment
from datasets import Dataset, Features, List, Value
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from ..loss_vanilla import IGNORED
from .options import DataOptions

_TOKENIZED_PAIR = Features({"input_ids": List(Value("int32")), "labels": List(Value("int32"))})
_EXAMPLES = 5
_PAIRS_OF_A_PROCESS = 10_000  # a second's work or so: fewer are not worth a process of their own
_MAX_PROCESSES = 16  # each takes some 200 MB


# Tokens


def tokenize_pairs(pairs: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Encode every pair, however long: validation and test data are never filtered.

    Many pairs are encoded by a process for each core, at most 16. The result does not depend on their number.

    Args:
        pairs: string columns "source" and "target".
        tokenizer: one that ends every sequence with its end-of-sentence token.

    Returns:
        The same rows in the same order, as lists of token ids: "input_ids" (the source) and "labels" (the target), both
        with the end-of-sentence token.

    Raises:
        ValueError: if the tokenizer adds no end-of-sentence token.
    """
    ids = tokenizer("").input_ids
    if tokenizer.eos_token_id is None or ids[-1:] != [tokenizer.eos_token_id]:
        raise ValueError(
            f"tokenizer: it encodes '' as {ids}, which does not end with its end-of-sentence token "
            f"({tokenizer.eos_token!r}, id {tokenizer.eos_token_id})"
        )
    with patch_environment(tokenizers_parallelism="false"):  # or every process would have a thread for each core
        return pairs.map(
            _encode,
            batched=True,
            with_rank=True,
            fn_kwargs={"tokenizer": tokenizer},
            remove_columns=pairs.column_names,
            features=_TOKENIZED_PAIR,
            num_proc=_processes(len(pairs)),
            desc=f"Tokenising {pairs.split or 'pairs'}",
        )


def _processes(pairs: int) -> int | None:
    """As many processes as there are cores and work for; None for this one alone."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(cores, _MAX_PROCESSES, pairs // _PAIRS_OF_A_PROCESS)
    return count if count > 1 else None


def _encode(
    rows: dict[str, list[str]], rank: int | None, tokenizer: PreTrainedTokenizerBase
) -> dict[str, list[list[int]]]:
    if rank is not None:  # a process of its own: Ctrl-C and SIGTERM end it, and the first process says so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # verbose: a warning about the tokenizer's model_max_length, which is not this model's limit.
    encoded = tokenizer(rows["source"], text_target=rows["target"], return_attention_mask=False, verbose=False)
    return {"input_ids": encoded["input_ids"], "labels": encoded["labels"]}


def tokenize_training_pairs(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, options: DataOptions
) -> tuple[Dataset, dict]:
    """Encode the training pairs, and remove those with an empty side or more tokens than the options allow.

    Args:
        pairs: string columns "source" and "target".

    Returns:
        The remaining rows of tokenize_pairs, in order, and a report of the others: {"empty": 3, "too_long": 12,
        "examples": ["train pair 17: source of 312 tokens", ...]}, with at most five examples. A pair with an empty side
        counts as empty, even if its other side is too long.

    Raises:
        ValueError: if no pair remains, or as tokenize_pairs does.
    """
    tokenized = tokenize_pairs(pairs, tokenizer)
    lengths = dict(zip(("source", "target"), pair_lengths(tokenized), strict=True))
    limits = {"source": options.max_source_tokens, "target": options.max_target_tokens}
    # A side that is encoded as the end-of-sentence token alone is empty too, whatever its text.
    empty = {side: (_measure(pairs, side, _visible_length) == 0) | (lengths[side] <= 1) for side in limits}
    too_long = {side: lengths[side] > limits[side] for side in limits}
    any_empty = empty["source"] | empty["target"]
    any_too_long = too_long["source"] | too_long["target"]
    removed = any_empty | any_too_long

    def describe(row: int) -> str:
        faults = [f"empty {side}" for side in limits if empty[side][row]]
        faults = faults or [f"{side} of {lengths[side][row]} tokens" for side in limits if too_long[side][row]]
        return f"{pairs.split or 'train'} pair {row + 1}: {', '.join(faults)}"

    report: dict = {
        "empty": int(any_empty.sum()),
        "too_long": int((any_too_long & ~any_empty).sum()),
        "examples": [describe(row) for row in np.flatnonzero(removed)[:_EXAMPLES].tolist()],
    }
    if removed.all():
        raise ValueError(
            f"no training pair is left: {report['empty']} are empty on a side, {report['too_long']} have more than "
            f"{limits['source']} source or {limits['target']} target tokens; {'; '.join(report['examples'])}"
        )
    return _filter(tokenized, ~removed) if removed.any() else tokenized, report


def _filter(dataset: Dataset, keep: np.ndarray) -> Dataset:
    """The rows for which `keep` is true, written out: all later reading by select()'s list of rows is far slower."""

    def kept(rows: pa.Table, numbers: list[int], keep: np.ndarray) -> pa.Table:
        return rows.filter(pa.array(keep[numbers]))

    rows = dataset.with_format("arrow").map(
        kept, with_indices=True, batched=True, batch_size=10_000, fn_kwargs={"keep": keep}, desc="Filtering"
    )
    return rows.with_format(None)


def pair_lengths(tokenized: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each row's source and target, end-of-sentence tokens included: two int64 arrays of (rows,)."""
    return _measure(tokenized, "input_ids", pc.list_value_length), _measure(tokenized, "labels", pc.list_value_length)


def _visible_length(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.utf8_length(pc.utf8_trim_whitespace(texts))


def _measure(dataset: Dataset, column: str, length: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> np.ndarray:
    # On Arrow's columns: a Python list of every row would not fit in memory for millions of pairs.
    tables = dataset.select_columns([column]).with_format("arrow").iter(batch_size=100_000)
    parts = [length(table[column]).to_numpy() for table in tables]
    return np.concatenate([np.zeros(0, np.int64), *parts], dtype=np.int64)


# Batches


def epoch_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, tokens_per_batch: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """The batches of an epoch: pairs of similar length together, in random order (section 5.1).

    The pairs are sorted by source length and, within a source length, by target length, ascending and descending in
    turn, so that neighbours are close in both; ties are broken at random. The sorted list is cut where the next pair
    would make a batch too large, and the batches are shuffled. Seed and epoch determine everything random.

    Args:
        source_lengths, target_lengths: tokens of each pair's sides, (pairs,).
        tokens_per_batch: the most tokens of a batch on either side, padding included: rows x longest row.
        seed, epoch: not negative.

    Returns:
        Arrays of row numbers; every row is in one of them.

    Raises:
        ValueError: if one pair alone is too large.
    """
    sources, targets = np.asarray(source_lengths, dtype=np.int64), np.asarray(target_lengths, dtype=np.int64)
    longest = np.maximum(sources, targets)
    if longest.max(initial=0) > tokens_per_batch:
        row = int(longest.argmax())
        raise ValueError(
            f"tokens_per_batch: {tokens_per_batch} cannot hold pair {row + 1}, of those kept, of {sources[row]} source "
            f"and {targets[row]} target tokens"
        )
    rng = np.random.default_rng([seed, epoch])
    _, source_rank = np.unique(sources, return_inverse=True)
    serpentine = np.where(source_rank % 2 == 0, targets, -targets)
    order = np.lexsort((rng.random(len(sources)), serpentine, sources))
    sources, targets = sources[order], targets[order]
    batches, start = [], 0
    while start < len(order):
        # Sources ascend, so the first one bounds the number of rows from above.
        stop = start + tokens_per_batch // max(sources[start], targets[start], 1)
        rows = np.arange(1, len(order[start:stop]) + 1)
        fits = (rows * sources[start:stop] <= tokens_per_batch) & (
            rows * np.maximum.accumulate(targets[start:stop]) <= tokens_per_batch
        )
        count = int(np.count_nonzero(fits))  # rows x longest row increases: the rows that fit come first
        batches.append(order[start : start + count])
        start += count
    return [batches[i] for i in rng.permutation(len(batches))]


def update_batches(
    batches: list[np.ndarray], source_lengths: np.ndarray, target_lengths: np.ndarray, tokens_per_update: int
) -> list[list[np.ndarray]]:
    """Group consecutive batches into optimizer updates of about `tokens_per_update` tokens a side (5.1: 25000).

    Tokens are counted without padding, as the mean of source and target. An update ends where its size is nearest to
    tokens_per_update: before the batch that would take it further above than it now is below. The last batches are an
    update of their own if they fill at least half of one; otherwise they join the previous update. The updates do not
    depend on the number of processes or accumulation steps, so they are the same whatever the hardware.

    Returns:
        The batches of each update, in their order.

    Raises:
        ValueError: if all batches together have fewer tokens than one update.
    """
    tokens = [(int(source_lengths[batch].sum()) + int(target_lengths[batch].sum())) / 2 for batch in batches]
    if sum(tokens) < tokens_per_update:
        raise ValueError(
            f"tokens_per_update: {tokens_per_update} is more than all training data has, {sum(tokens):.0f} a side"
        )
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


def collate(rows: Iterable[dict[str, list[int]]], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Pad rows of "input_ids" and "labels" on the right to the longest.

    Returns:
        int64 tensors: input_ids (B, S), attention_mask (B, S) with 1 for tokens and 0 for padding, and labels (B, T)
        with -100 for padding.
    """
    sources = [torch.tensor(row["input_ids"], dtype=torch.long) for row in rows]
    targets = [torch.tensor(row["labels"], dtype=torch.long) for row in rows]
    return {
        "input_ids": pad_sequence(sources, batch_first=True, padding_value=pad_token_id),
        # Not computed from the ids: some tokenizers pad with a token that also occurs in sentences.
        "attention_mask": pad_sequence([torch.ones_like(ids) for ids in sources], batch_first=True),
        "labels": pad_sequence(targets, batch_first=True, padding_value=IGNORED),
    }
