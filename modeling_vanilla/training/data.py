"""From text files to the batches of section 5.1: pairs, tokens, batches by tokens, updates of about 25000 tokens."""

import gzip
import hashlib
import json
import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import (
    Dataset,
    DatasetDict,
    Features,
    IterableDataset,
    List,
    NamedSplit,
    Value,
    concatenate_datasets,
    load_dataset,
)
from datasets.exceptions import DatasetsError
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from ..loss_vanilla import IGNORED

SPLITS = ("train", "validation", "test")
_PAIR = Features({"source": Value("string"), "target": Value("string")})
TOKENIZED_PAIR = Features({"input_ids": List(Value("int32")), "labels": List(Value("int32"))})
_NAMED_EXAMPLES = 5


def _given(help: str):
    return field(default=None, metadata={"help": help})


@dataclass
class DataOptions:
    """Where the sentence pairs are; each split comes from one JSON file, from two text files or from the named dataset.

    Files are UTF-8, plain or, if their name ends in .gz, compressed. A line ends at "\\n" and nowhere else, with or
    without a "\\r" before it.
    """

    train_file: str | None = _given('Training pairs, a line each: {"translation": {"en": "...", "de": "..."}}.')
    validation_file: str | None = _given("Validation pairs, in the form of train_file.")
    test_file: str | None = _given("Test pairs, in the form of train_file.")
    train_source: str | None = _given("Source sentences to train on, one a line.")
    train_target: str | None = _given("Their translations, line by line.")
    validation_source: str | None = _given("Source sentences to validate on, one a line.")
    validation_target: str | None = _given("Their translations, line by line.")
    test_source: str | None = _given("Source sentences to test on, one a line.")
    test_target: str | None = _given("Their translations, line by line.")
    dataset_name: str | None = _given(
        "A dataset of the Hub or a local folder of one, with a column 'translation' and splits train, validation, test."
    )
    dataset_config: str | None = _given("Which configuration of that dataset, for example a language pair.")
    max_train_pairs: int | None = _given(
        "Read dataset_name as a stream, its training split no further than so many pairs: the rest is never downloaded."
    )
    source_lang: str = field(
        default="en",
        metadata={"help": "The source language: its key in 'translation', and its name in the model card."},
    )
    target_lang: str = field(default="de", metadata={"help": "The target language, likewise."})
    max_source_tokens: int = field(
        default=256, metadata={"help": "Training pairs whose source has more tokens, its </s> included, are left out."}
    )
    max_target_tokens: int = field(
        default=256, metadata={"help": "Training pairs whose target has more tokens, its </s> included, are left out."}
    )


# Reading


def load_pairs(options: DataOptions) -> DatasetDict:
    """Reads the pairs of every split given.

    The files are streamed into Arrow files of the datasets cache, so their size is bounded by the disk, not by memory.
    A file that has changed since is read again.

    Returns:
        The splits given, of "train", "validation" and "test", each with the string columns "source" and "target".

    Raises:
        ValueError: if there is no training data, a split is given twice or by half, or a file is missing, a folder,
            empty, not UTF-8, broken gzip or JSON, without the language, or not as long as its other half.
    """
    if options.max_train_pairs is not None and (options.max_train_pairs < 1 or options.dataset_name is None):
        raise ValueError(f"max_train_pairs: {options.max_train_pairs} must be at least 1, of a dataset_name")
    files = {split: _files(options, split) for split in SPLITS}
    named = _load_named(options) if options.dataset_name else {}
    twice = [split for split in named if files[split]]
    if twice:
        raise ValueError(
            f"{twice[0]} data is given twice, by dataset_name {options.dataset_name} and by "
            f"{' and '.join(files[twice[0]])}: give each split in one way"
        )
    pairs = DatasetDict()
    for split in SPLITS:
        if files[split]:
            pairs[split] = _load_files(files[split], split, (options.source_lang, options.target_lang))
        elif split in named:
            pairs[split] = named[split]
    if "train" not in pairs:
        raise ValueError(
            "no training data: give train_file, or train_source and train_target, or a dataset_name with a train split"
        )
    return pairs


def _files(options: DataOptions, split: str) -> tuple[str, ...]:
    """The JSON file of a split, or its source and target, or nothing."""
    given = {
        name: getattr(options, name)
        for name in (f"{split}_file", f"{split}_source", f"{split}_target")
        if getattr(options, name) is not None
    }
    if f"{split}_file" in given and len(given) > 1:
        raise ValueError(f"{split} data is given twice, by {' and by '.join(given)}: give each split in one way")
    if len(given) == 1 and f"{split}_file" not in given:
        (half,) = given
        other = f"{split}_target" if half == f"{split}_source" else f"{split}_source"
        raise ValueError(f"{half} {given[half]} is given without {other}")
    for name, path in given.items():
        if not os.path.exists(path):
            raise ValueError(f"{name}: there is no file {path!r}")
        if os.path.isdir(path):
            raise ValueError(f"{name}: {path} is a folder, not a file")
    return tuple(given.values())


def _load_files(paths: tuple[str, ...], split: str, languages: tuple[str, str]) -> Dataset:
    paths = tuple(os.path.abspath(path) for path in paths)
    # The cache finds what it holds by these arguments: the state of the files is there to have them read again.
    arguments = {"paths": paths, "languages": languages, "states": tuple(_state(path) for path in paths)}
    try:
        return Dataset.from_generator(_read, _PAIR, gen_kwargs=arguments, split=NamedSplit(split))
    except DatasetsError as error:
        # datasets wraps whatever the reader raises in an error that does not say what it was.
        raise error.__cause__ or error from None


def _state(path: str) -> tuple[int, int, int]:
    """Size and times of a file. A copy may keep the time of the last write, but not that of the last change."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(paths: tuple[str, ...], languages: tuple[str, str], states: tuple) -> Iterator[dict[str, str]]:
    return _read_json(*paths, languages) if len(paths) == 1 else _read_text(*paths)


def _read_text(source_path: str, target_path: str) -> Iterator[dict[str, str]]:
    sources, targets = _lines(source_path), _lines(target_path)
    for number, (source, target) in enumerate(zip_longest(sources, targets)):
        if source is None or target is None:
            longer = number + 1 + sum(1 for _ in (targets if source is None else sources))
            lengths = (number, longer) if source is None else (longer, number)
            raise ValueError(f"unequal length: {source_path} has {lengths[0]} lines, {target_path} has {lengths[1]}")
        yield {"source": source, "target": target}


def _read_json(path: str, languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    for number, line in enumerate(_lines(path), start=1):
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not JSON: {error.msg} at column {error.colno} of {_short(line)}") from None
        if not isinstance(record, dict) or "translation" not in record:
            raise ValueError(f'{where}: no "translation" in {_short(record)}')
        yield _pair(record["translation"], languages, where)


def _lines(path: str) -> Iterator[str]:
    """The lines of a file of UTF-8 text. Read as bytes, since text mode and str.splitlines end lines elsewhere too."""
    number = 0
    try:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield _decode(line.removesuffix(b"\n").removesuffix(b"\r"), f"{path}, line {number}")
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read beyond line {number}: {error}") from None
    if number == 0:
        raise ValueError(f"{path}: the file is empty")


def _decode(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{line[error.start]:02x} at position {error.start}"
        raise ValueError(f"{where}: not UTF-8: {byte}") from None


def _pair(translation: dict, languages: tuple[str, str], where: str) -> dict[str, str]:
    if not isinstance(translation, dict):
        raise ValueError(f'{where}: "translation" is {_short(translation)}, not an object of languages')
    for language in languages:
        if language not in translation:
            raise ValueError(f'{where}: no "{language}" in "translation", which has {", ".join(translation) or "none"}')
        text = translation[language]
        if not isinstance(text, str):
            raise ValueError(f'{where}: "{language}" is {_short(text)}, not text')
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f'{where}: "{language}" is not Unicode text: {_short(text)}') from None
    return {"source": translation[languages[0]], "target": translation[languages[1]]}


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _load_named(options: DataOptions) -> dict[str, Dataset]:
    name, languages = options.dataset_name, (options.source_lang, options.target_lang)
    limit = options.max_train_pairs
    try:
        found = load_dataset(name, options.dataset_config, streaming=limit is not None)
        if limit is not None:
            found = {
                split: stored(found[split].take(limit) if split == "train" else found[split], split)
                for split in SPLITS
                if split in found
            }
    except (OSError, ValueError, DatasetsError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise ValueError(f"dataset_name: {name} cannot be loaded: {reason}") from error
    pairs = {}
    for split in SPLITS:
        if split not in found:
            continue
        where, columns = f"dataset_name: {name}, {split}", found[split].column_names
        if "translation" not in columns:
            raise ValueError(f'{where}: no column "translation" among {", ".join(columns)}')
        if not len(found[split]):
            raise ValueError(f"{where}: the split is empty")
        pairs[split] = found[split].map(
            _named_rows,
            batched=True,
            with_indices=True,
            fn_kwargs={"languages": languages, "where": where},
            remove_columns=columns,
            features=_PAIR,
            desc=f"Reading {split}",
        )
    return pairs


def stored(stream: IterableDataset, split: str = "train") -> Dataset:
    """The rows of a stream, written to the datasets cache as they come.

    Batches of like length (5.1) are chosen among all pairs, and a run that is resumed finds its place among them.

    Raises:
        ValueError: whatever the stream raises, and if it gives nothing.
    """
    try:
        # A stream cannot be known again, as a file can by its state: each is written anew.
        return Dataset.from_generator(
            lambda: iter(stream), stream.features, split=NamedSplit(split), fingerprint=uuid.uuid4().hex
        )
    except DatasetsError as error:
        raise ValueError(f"{split} data cannot be read from the stream: {error.__cause__ or error}") from error


def _named_rows(rows: dict, indices: list[int], languages: tuple[str, str], where: str) -> dict[str, list[str]]:
    pairs = [
        _pair(translation, languages, f"{where}, row {index + 1}")
        for translation, index in zip(rows["translation"], indices, strict=True)
    ]
    return {side: [pair[side] for pair in pairs] for side in _PAIR}


# Tokens


def tokenize_pairs(pairs: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Encodes every pair, however long: for validation and test data, of which nothing may be left out.

    Args:
        pairs: string columns "source" and "target".
        tokenizer: one that ends what it encodes with its end-of-sentence token.

    Returns:
        As many rows, in the same order, with "input_ids" (the source) and "labels" (the target), both lists of token
        ids that end with the end-of-sentence token.

    Raises:
        ValueError: if the tokenizer does not end what it encodes.
    """
    ids = tokenizer("").input_ids
    if tokenizer.eos_token_id is None or ids[-1:] != [tokenizer.eos_token_id]:
        raise ValueError(
            f"tokenizer: it encodes '' as {ids}, which does not end with its end-of-sentence token "
            f"({tokenizer.eos_token!r}, id {tokenizer.eos_token_id})"
        )
    return pairs.map(
        encode_pairs,
        batched=True,
        fn_kwargs={"tokenizer": tokenizer},
        remove_columns=pairs.column_names,
        features=TOKENIZED_PAIR,
        desc=f"Tokenising {pairs.split or 'pairs'}",
    )


def encode_pairs(rows: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[list[int]]]:
    """A batch of rows with "source" and "target" -> "input_ids" and "labels" of each."""
    # verbose: a warning about the tokenizer's model_max_length, which is not this model's limit.
    encoded = tokenizer(rows["source"], text_target=rows["target"], verbose=False)
    return {"input_ids": encoded["input_ids"], "labels": encoded["labels"]}


def tokenize_training_pairs(
    pairs: Dataset | IterableDataset, tokenizer: PreTrainedTokenizerBase, options: DataOptions
) -> tuple[Dataset, dict]:
    """Encodes the training pairs and leaves out those with an empty side or more tokens than the options allow.

    Args:
        pairs: string columns "source" and "target". A stream is `stored` first.

    Returns:
        The rows that are kept, in order, with the columns of `tokenize_pairs` beside their text, and a report of those
        that are not: {"empty": 3, "too_long": 12, "examples": ["train line 17: source of 312 tokens", ...]}, with
        no more than five examples. A pair that is both empty on one side and too long on the other counts as empty.

    Raises:
        ValueError: if no pair is kept, or as `tokenize_pairs` does.
    """
    if isinstance(pairs, IterableDataset):
        pairs = stored(pairs)
    tokenized = tokenize_pairs(pairs, tokenizer)
    lengths = dict(zip(("source", "target"), pair_lengths(tokenized), strict=True))
    limits = {"source": options.max_source_tokens, "target": options.max_target_tokens}
    # A side of nothing but the end-of-sentence token is empty, too, whatever the text was.
    blank = {side: (_measure(pairs, side, _visible_length) == 0) | (lengths[side] <= 1) for side in lengths}
    over = {side: lengths[side] > limits[side] for side in lengths}
    empty = blank["source"] | blank["target"]
    too_long = (over["source"] | over["target"]) & ~empty
    left_out = np.flatnonzero(empty | too_long)

    def describe(row: int) -> str:
        if empty[row]:
            faults = [f"empty {side}" for side in blank if blank[side][row]]
        else:
            faults = [f"{side} of {lengths[side][row]} tokens" for side in over if over[side][row]]
        return f"{pairs.split or 'train'} line {row + 1}: {', '.join(faults)}"

    report = {
        "empty": int(empty.sum()),
        "too_long": int(too_long.sum()),
        "examples": [describe(int(row)) for row in left_out[:_NAMED_EXAMPLES]],
    }
    if len(left_out) == len(pairs):
        raise ValueError(
            f"no training pair is left: {report['empty']} are empty on a side, {report['too_long']} have more than "
            f"{limits['source']} source or {limits['target']} target tokens; {'; '.join(report['examples'])}"
        )
    kept = concatenate_datasets([pairs, tokenized], axis=1)
    if len(left_out):
        kept = kept.select(np.flatnonzero(~(empty | too_long)))
    return kept, report


def pair_lengths(tokenized: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each row's source and target, end-of-sentence tokens included: two int64 arrays of (rows,)."""
    return _measure(tokenized, "input_ids", pc.list_value_length), _measure(tokenized, "labels", pc.list_value_length)


def _visible_length(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.utf8_length(pc.utf8_trim_whitespace(texts))


def _measure(dataset: Dataset, column: str, length: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> np.ndarray:
    """Computed on Arrow's columns: a Python list of every row would not fit in memory for millions of pairs."""
    tables = dataset.select_columns([column]).with_format("arrow").iter(batch_size=100_000)
    parts = [length(table[column]).to_numpy() for table in tables]
    return np.concatenate([np.zeros(0, np.int64), *parts], dtype=np.int64)


def digest(tokenized: Dataset) -> str:
    """A short hash of all token ids in their order, by which a resumed run knows its data again."""
    result = hashlib.sha256()
    for table in tokenized.select_columns(["input_ids", "labels"]).with_format("arrow").iter(batch_size=100_000):
        for column in table.columns:
            ids = column.combine_chunks()
            result.update(pc.list_value_length(ids).to_numpy())
            result.update(ids.flatten().to_numpy())
    return result.hexdigest()[:16]


# Batches


def token_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, tokens_per_batch: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """Batches of pairs of similar length, in random order (section 5.1).

    The pairs are sorted by source length and, among equal ones, by target length, up and down in turn, so that
    neighbours are close in both; ties are broken at random. The sorted list is cut where the next pair would make a
    batch too large, and the batches are shuffled. All chance comes from the seed and the epoch.

    Args:
        source_lengths, target_lengths: tokens of each pair's sides, (pairs,).
        tokens_per_batch: the most tokens of a batch on either side, padding included: rows x longest.
        seed, epoch: not negative.

    Returns:
        Arrays of row numbers, in which every row appears once.

    Raises:
        ValueError: if one pair alone is too large.
    """
    sources, targets = np.asarray(source_lengths, dtype=np.int64), np.asarray(target_lengths, dtype=np.int64)
    longest = np.maximum(sources, targets)
    if longest.max(initial=0) > tokens_per_batch:
        row = int(longest.argmax())
        raise ValueError(
            f"tokens_per_batch: {tokens_per_batch} cannot hold pair {row + 1} of {sources[row]} source and "
            f"{targets[row]} target tokens"
        )
    rng = np.random.default_rng([seed, epoch])
    _, source_rank = np.unique(sources, return_inverse=True)
    serpentine = np.where(source_rank % 2 == 0, targets, -targets)
    order = np.lexsort((rng.random(len(sources)), serpentine, sources))
    sources, targets = sources[order], targets[order]
    batches, start = [], 0
    while start < len(order):
        # Sources ascend, so the first one bounds the rows from above, and only so many need a look.
        stop = start + tokens_per_batch // max(sources[start], targets[start], 1)
        rows = np.arange(1, len(order[start:stop]) + 1)
        fits = (rows * sources[start:stop] <= tokens_per_batch) & (
            rows * np.maximum.accumulate(targets[start:stop]) <= tokens_per_batch
        )
        count = int(np.count_nonzero(fits))  # rows x longest only grows: the rows that fit come first
        batches.append(order[start : start + count])
        start += count
    return [batches[i] for i in rng.permutation(len(batches))]


def update_batches(
    batches: list[np.ndarray], source_lengths: np.ndarray, target_lengths: np.ndarray, tokens_per_update: int
) -> list[list[np.ndarray]]:
    """Groups consecutive batches into optimizer updates of about `tokens_per_update` tokens a side (5.1: 25000).

    Counted are real tokens, the mean of source and target. An update ends where it is nearest to the target: before
    the batch that would take it further above than it now is below. What is left at the end is an update of its own if
    that is at least half of one, else it joins the last. Nothing here knows of processes or accumulation steps, so
    the updates are the same whatever the hardware.

    Returns:
        For each update the batches it consists of, all batches in their order.

    Raises:
        ValueError: if all batches together have fewer tokens than one update.
    """
    tokens = [(int(source_lengths[batch].sum()) + int(target_lengths[batch].sum())) / 2 for batch in batches]
    if sum(tokens) < tokens_per_update:
        raise ValueError(
            f"tokens_per_update: {tokens_per_update} is more than all training data has, {sum(tokens):.0f} a side"
        )
    updates, filled = [[]], 0.0
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
    """Pads rows of "input_ids" and "labels" on the right to the longest.

    Returns:
        int64 tensors: input_ids (B, S), attention_mask (B, S) with 1 for tokens and 0 for padding, and labels (B, T)
        with -100 for padding.
    """
    sources = [torch.tensor(row["input_ids"], dtype=torch.long) for row in rows]
    targets = [torch.tensor(row["labels"], dtype=torch.long) for row in rows]
    return {
        "input_ids": pad_sequence(sources, batch_first=True, padding_value=pad_token_id),
        # Not read off the ids: some tokenizers pad with a token that sentences hold too.
        "attention_mask": pad_sequence([torch.ones_like(ids) for ids in sources], batch_first=True),
        "labels": pad_sequence(targets, batch_first=True, padding_value=IGNORED),
    }
