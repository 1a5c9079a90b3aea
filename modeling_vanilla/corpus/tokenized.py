"""Sentence pairs as token ids: tokenised, filtered, measured."""

import hashlib
import os
import re
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from accelerate.utils import patch_environment
from datasets import Dataset, Features, List, Value, concatenate_datasets
from transformers import PreTrainedTokenizerBase

from ..protect import replace_in_pair
from ..splitting_vanilla import is_blank
from .data import cache_errors
from .options import DataOptions

_TOKENIZED_PAIR = Features({"input_ids": List(Value("int32")), "labels": List(Value("int32"))})
SAMPLE = 100_000
_PAIRS_OF_A_PROCESS = 10_000  # at least: about a second of work
_MAX_PROCESSES = 16  # each takes some 200 MB
_LEAST_REPLAYED = 2000


def replayed(new: int, old: int) -> int:
    """How many of the old pairs an epoch has beside the new ones: as many, but at least 2000."""
    return min(old, max(new, _LEAST_REPLAYED))


def tokenize_pairs(pairs: Dataset, tokenizer: PreTrainedTokenizerBase, spans: re.Pattern | None = None) -> Dataset:
    """Encode every pair, however long: validation and test data are never filtered.

    A large corpus is encoded by a process for each core, at most 16. The result does not depend on their number.

    Args:
        pairs: string columns "source" and "target".
        tokenizer: one that ends every sequence with its end-of-sentence token.
        spans: those for which reserved tokens stand; see `replace_in_pair`.

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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = min(cores, _MAX_PROCESSES, len(pairs) // _PAIRS_OF_A_PROCESS)
    # Without this every process would have a thread for each core.
    with cache_errors(), patch_environment(tokenizers_parallelism="false"):
        try:
            return pairs.map(
                _encode,
                batched=True,
                fn_kwargs={"tokenizer": tokenizer, "spans": spans},
                remove_columns=pairs.column_names,
                features=_TOKENIZED_PAIR,
                num_proc=processes if processes > 1 else None,  # None: in this process
                desc=f"Tokenising {pairs.split or 'pairs'}",
            )
        except Exception as error:  # at a signal map raises errors about its processes instead, one after another
            first: BaseException | None = error
            while first is not None and not isinstance(first, KeyboardInterrupt):
                first = first.__context__
            if first is not None:
                raise first from None
            raise


def _encode(
    rows: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, spans: re.Pattern | None
) -> dict[str, list[list[int]]]:
    sources, targets = rows["source"], rows["target"]
    if spans is not None:
        replaced = [replace_in_pair(*pair, spans) for pair in zip(sources, targets, strict=True)]
        sources, targets = map(list, zip(*replaced, strict=True))
    # verbose would warn of the tokenizer's model_max_length, which is not this model's limit.
    encoded = tokenizer(sources, text_target=targets, return_attention_mask=False, verbose=False)
    return {"input_ids": encoded["input_ids"], "labels": encoded["labels"]}


@dataclass(frozen=True)
class TokenizedPairs:
    """The pairs to train on, and what a run needs to know of them.

    Attributes:
        rows: token ids, "input_ids" (the source) and "labels" (the target), both with the end-of-sentence token.
        lengths: the tokens of each row's source and of its target, two arrays of (rows,).
        sources: the source texts of at most some SAMPLE rows, evenly spread.
        new: so many of the rows are new; the others are old ones that are replayed.
        removed: how many pairs have an empty side, and how many others more tokens than the options allow.
    """

    rows: Dataset
    lengths: tuple[np.ndarray, np.ndarray]
    sources: list[str]
    new: int
    removed: dict[str, int]

    def epoch_rows(self, seed: int, epoch: int) -> np.ndarray:
        """The rows of an epoch: all new ones, and a sample of the others that seed and epoch determine."""
        old = len(self.rows) - self.new
        sample = np.random.default_rng([seed, epoch]).choice(old, replayed(self.new, old), replace=False)
        return np.concatenate([np.arange(self.new), self.new + np.sort(sample)])

    def digest(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of all token ids and lengths."""
        digest = hashlib.sha256()
        for table in self.rows.with_format("arrow").iter(batch_size=100_000):
            for side in ("input_ids", "labels"):
                ids = table[side].combine_chunks()
                digest.update(pc.list_value_length(ids).to_numpy())
                digest.update(ids.flatten().to_numpy())
        return digest.hexdigest()[:16]


def tokenize_training_pairs(
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    options: DataOptions,
    spans: re.Pattern | None = None,
    replay: Dataset | None = None,
) -> TokenizedPairs:
    """Encode the training pairs, and remove those with an empty side or more tokens than the options allow.

    A pair with an empty side counts as empty, even if its other side is too long.

    Args:
        pairs: string columns "source" and "target". spans: as for tokenize_pairs.
        replay: old pairs, of which an epoch has a sample.

    Raises:
        ValueError: if no new pair remains, or as tokenize_pairs does.
    """
    new = len(pairs)
    if replay is not None:
        pairs = concatenate_datasets([pairs, replay])
    tokenized = tokenize_pairs(pairs, tokenizer, spans)
    source, target = pair_lengths(tokenized)
    # A side that is encoded as the end-of-sentence token alone is empty too, whatever its text.
    empty = _blank(pairs, "source") | _blank(pairs, "target") | (source <= 1) | (target <= 1)
    too_long = ~empty & ((source > options.max_source_length) | (target > options.max_target_length))
    kept = np.flatnonzero(~empty & ~too_long)
    new = int(np.searchsorted(kept, new))
    if not new:
        raise ValueError(
            f"no training pair is left: {empty.sum()} are empty on a side, {too_long.sum()} have more than "
            f"{options.max_source_length} source or {options.max_target_length} target tokens"
        )
    if len(kept) < len(pairs):  # flattened, because reading through select()'s list of rows is far slower
        tokenized = tokenized.with_format("arrow").select(kept).flatten_indices().with_format(None)
    sample = kept[:: -(-len(kept) // SAMPLE)]
    return TokenizedPairs(
        rows=tokenized,
        lengths=(source[kept], target[kept]),
        sources=pairs.select(sample)["source"][:],
        new=new,
        removed={"empty": int(empty.sum()), "too_long": int(too_long.sum())},
    )


# These read Arrow's columns part by part: Python lists of millions of pairs would not fit in memory.


def pair_lengths(tokenized: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each row's source and target, end-of-sentence tokens included: two int64 arrays of (rows,)."""
    tables = tokenized.with_format("arrow").iter(batch_size=100_000)
    parts = [[pc.list_value_length(table[side]).to_numpy() for side in ("input_ids", "labels")] for table in tables]
    source, target = np.concatenate(parts, axis=1, dtype=np.int64)
    return source, target


def _blank(pairs: Dataset, side: str) -> np.ndarray:
    tables = pairs.select_columns([side]).with_format("arrow").iter(batch_size=10_000)
    return np.array([is_blank(text) for table in tables for text in table[side].to_pylist()])
