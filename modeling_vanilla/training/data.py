"""Sentence pairs: read from JSON lines, columns, text files or a named dataset, and checked one by one."""

import csv
import inspect
import json
import os
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path

from datasets import Dataset, DatasetDict, Features, IterableDataset, NamedSplit, Value, load_dataset_builder
from datasets.exceptions import DatasetsError
from datasets.fingerprint import Hasher

from ..errors import one_line
from ..files import read_lines
from .options import SPLITS, CorpusOptions, is_language, is_table

# By which the cache knows what has read the pairs in it.
_READER = [Path(module).read_bytes() for module in (__file__, inspect.getfile(read_lines))]
_PAIR = Features({"source": Value("string"), "target": Value("string")})


def load_pairs(options: CorpusOptions) -> DatasetDict:
    """Read the pairs of every split that is given.

    They are written to Arrow files in the cache of datasets as they are read, so that the disk bounds their number, not
    the memory. A split is read once: other processes and later runs find it there, unless its source has changed.

    Returns:
        The splits, of "train", "validation" and "test", each with the string columns "source" and "target".

    Raises:
        ValueError: if there is no training data, a split is given twice or in part, or a file or dataset is missing,
            empty, not UTF-8, damaged, without the languages, or its two files differ in length.
    """
    name, languages = options.dataset_name, (options.source_lang or "en", options.target_lang or "de")
    files = {split: paths for split in SPLITS if (paths := _files_of(options, split))}
    dataset, state = _open_dataset(options) if name else ({}, None)
    if "train" not in files and "train" not in dataset:
        raise ValueError("no training data: give train_file, train_source with train_target, or dataset_name")
    pairs = DatasetDict()
    for split in SPLITS:
        if split in files and split in dataset:
            raise ValueError(
                f"{split} data is given twice, by dataset_name {name} and by {' and by '.join(files[split])}: "
                "give each split in one way"
            )
        if split in files:
            pairs[split] = _load_files(files[split], split, languages)
        elif name and split in dataset:
            where = f"dataset_name: {name}, {split}, row"
            rows = (_pair(row, languages, f"{where} {number}") for number, row in enumerate(dataset[split], start=1))
            pairs[split] = _read_once(rows, split, name, (state, languages))
    return pairs


# Files


def _files_of(options: CorpusOptions, split: str) -> tuple[str, ...]:
    """The file of a split's pairs, or its source and target file, or nothing."""
    file, source, target = (f"{split}_{part}" for part in ("file", "source", "target"))
    given = {name: path for name in (file, source, target) if (path := getattr(options, name)) is not None}
    if file in given and len(given) > 1:
        raise ValueError(f"{split} data is given twice, by {' and by '.join(given)}: give each split in one way")
    if len(given) == 1 and file not in given:
        ((name, path),) = given.items()
        raise ValueError(f"{name} {path} is given without {target if name == source else source}")
    for name, path in given.items():
        try:
            os.stat(path)
        except OSError as error:
            raise ValueError(f"{name}: {path!r} cannot be read: {error.strerror}") from error
    return tuple(given.values())


def _load_files(paths: tuple[str, ...], split: str, languages: tuple[str, str]) -> Dataset:
    if len(paths) == 2:
        pairs = _read_text(*paths)
    elif is_table(paths[0], (".csv", ".tsv")):
        pairs = _read_columns(paths[0], languages)
    else:
        pairs = _read_json(paths[0], languages)
    state = tuple((os.path.abspath(path), *_file_state(path)) for path in paths)
    return _read_once(pairs, split, " and ".join(paths), (state, languages))


def _file_state(path: str) -> tuple[int, int, int]:
    """Size and times of a file. A copy may keep the time of the last write, but not that of the last change."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read_text(source_path: str, target_path: str) -> Iterator[dict[str, str]]:
    sources, targets = read_lines(source_path), read_lines(target_path)
    for number, (source, target) in enumerate(zip_longest(sources, targets)):
        if source is None or target is None:
            longer = number + 1 + sum(1 for _ in chain(sources, targets))  # read on, as pipes are read once
            lengths = (number, longer) if source is None else (longer, number)
            raise ValueError(f"unequal length: {source_path} has {lengths[0]} lines, {target_path} has {lengths[1]}")
        yield {"source": source, "target": target}


def _read_json(path: str, languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number}"
        try:
            record = json.loads(line, object_pairs_hook=_record)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not JSON: {error.msg} at column {error.colno} of {_short(line)}") from error
        except (ValueError, RecursionError) as error:  # such as a number of thousands of digits
            raise ValueError(f"{where}: not a record: {error}") from error
        yield _pair(record, languages, where)


def _record(items: list[tuple[str, object]]) -> dict[str, object]:
    """The object of these items; ValueError if a key is repeated, whose last value JSON would take."""
    record = dict(items)
    if len(record) < len(items):
        raise ValueError(f"a key is repeated in {_short([key for key, _ in items])}")
    return record


def _read_columns(path: str, languages: tuple[str, str]) -> Iterator[dict[str, str]]:
    """The pairs of a .csv or .tsv file: its columns of the languages or, in a .tsv without them, its two columns.

    "source" and "target" in the first line of these, in either order, are their names.
    """
    rows = _rows(path)
    place, header = next(rows, (path, []))
    if not header:
        return
    for language in languages:
        if header.count(language) > 1:
            raise ValueError(f'{place}: the column "{language}" is repeated in {_short(header)}')
    missing = [language for language in languages if language not in header]
    if missing and (is_table(path, ".csv") or len(header) != 2 or all(map(is_language, header))):
        raise ValueError(f'{place}: no column "{missing[0]}" in {_short(header)}')
    names = ("source", "target") if {*header} == {"source", "target"} else languages
    is_named = {*names} <= {*header}
    source, target = map(header.index, names) if is_named else (0, 1)
    pairs = [] if is_named else [(place, header)]
    for where, row in chain(pairs, rows):
        if len(row) != len(header):
            raise ValueError(f"{where}: {len(row)} columns, not {len(header)}: {_short(row)}")
        yield {"source": row[source], "target": row[target]}


def _rows(path: str) -> Iterator[tuple[str, list[str]]]:
    """Each row of a .csv or .tsv file, with the place where it starts; blank lines of a .csv are none."""
    if is_table(path, ".tsv"):
        for number, line in enumerate(read_lines(path), start=1):
            yield f"{path}, line {number}", line.split("\t")
        return
    rows = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    while True:
        where = f"{path}, line {rows.line_num + 1}"
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{where}: not CSV: {error}") from error
        if row:
            yield where, row


# Datasets


def _open_dataset(options: CorpusOptions) -> tuple[dict[str, Dataset | IterableDataset], tuple]:
    """The splits of the named dataset, as streams if max_train_pairs is given, and what identifies their contents."""
    limit = options.max_train_pairs
    try:
        builder = load_dataset_builder(options.dataset_name, options.dataset_config)
        if limit is None:
            builder.download_and_prepare()
            dataset = builder.as_dataset()
        else:
            dataset = builder.as_streaming_dataset()
            if "train" in dataset:
                dataset["train"] = dataset["train"].take(limit)
    except Exception as error:  # a damaged file makes its reader raise almost anything
        reason = one_line(error.__cause__ or error)
        raise ValueError(f"dataset_name: {options.dataset_name} cannot be loaded: {reason}") from error
    return dataset, (builder.cache_dir, limit)  # the folder is named after the dataset's revision or its files' times


# Both


def _read_once(pairs: Iterator[dict[str, str]], split: str, name: str, state: tuple) -> Dataset:
    """Write the pairs to the cache; if they were read before in the same state, only find them there."""

    def read() -> Iterator[dict[str, str]]:
        first = next(pairs, None)
        if first is None:
            raise ValueError(f"{split} data: {name} is empty")
        yield first
        yield from pairs

    try:
        return Dataset.from_generator(
            read, _PAIR, split=NamedSplit(split), fingerprint=Hasher.hash((_READER, split, state))
        )
    except DatasetsError as error:
        # datasets wraps what the readers raise in an error that does not say what it was.
        cause = error.__cause__ or error
        if type(cause) is ValueError:  # ours; those of pyarrow and pandas are of classes derived from it
            raise cause from cause.__cause__
        raise ValueError(f"{split} data cannot be read: {one_line(cause)}") from cause


def _pair(record: object, languages: tuple[str, str], where: str) -> dict[str, str]:
    """The pair of a record {language: text} or {"translation": {language: text}}; ValueError names what is wrong."""
    inner = isinstance(record, dict) and "translation" in record
    texts = record["translation"] if inner else record
    name = '"translation"' if inner else "the record"
    if not isinstance(texts, dict):
        raise ValueError(f"{where}: {name} is {_short(texts)}, not an object of languages")
    for language in languages:
        if language not in texts:
            raise ValueError(f'{where}: no "{language}" in {name}, which has {_short([*texts])}')
        text = texts[language]
        if not isinstance(text, str):
            raise ValueError(f'{where}: "{language}" is {_short(text)}, not text')
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f'{where}: "{language}" is not Unicode text: {_short(text)}') from error
    return {"source": texts[languages[0]], "target": texts[languages[1]]}


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
