"""Sentence pairs as token ids: tokenised, filtered, measured."""

import os
import signal
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from accelerate.utils import patch_environment
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

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
    if removed.any():  # written out: all later reading by select()'s list of rows is far slower
        kept = tokenized.with_format("arrow").select(np.flatnonzero(~removed))
        tokenized = kept.flatten_indices().with_format(None)
    return tokenized, report


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
