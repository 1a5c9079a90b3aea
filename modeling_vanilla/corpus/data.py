"""Sentence pairs: read from text files, columns, JSON lines, Parquet, TMX or a named dataset; each is two texts."""

import csv
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Features, IterableDataset, NamedSplit, Value, load_dataset_builder
from datasets.exceptions import DatasetsError
from datasets.fingerprint import Hasher
from pyarrow.parquet import ParquetFile

from ..errors import one_line
from ..files import check_path, ending, read_lines
from ..splitting_vanilla import HALF_PAIR, is_blank
from .options import CorpusOptions
from .tmx import read_tmx
from .units import CATALOGUES, read_units

# Another version of these files reads the pairs again.
_READERS = [Path(__file__).with_name(name).read_bytes() for name in ("data.py", "tmx.py", "units.py")]
_LANGUAGE = re.compile("[a-z]{2}(_[A-Z]{2})?|[a-z]{3}_[A-Z][a-z]{3}")  # en, pt_BR, eng_Latn
_PAIR = Features({"source": Value("string"), "target": Value("string")})


def load_pairs(options: CorpusOptions) -> DatasetDict:
    """Read the pairs of every split that is given.

    The pairs are written to Arrow files in the cache of datasets as they are read, so that they need not fit in memory.
    A split is read once: other processes and later runs find it there, unless its source has changed.

    Returns:
        The splits that options.splits names, each with the string columns "source" and "target". Of "corrections" the
        last of a source counts; it is in "train", in place of all other pairs of that source there and in "replay".

    Raises:
        ValueError: if there is no training data, a split is given twice or in part, or a file or dataset is missing,
            empty, not UTF-8, damaged, without the languages, or its two files differ in length.
    """
    name, languages = options.dataset_name, options.languages
    named, identity = _open_dataset(options) if name else ({}, ())
    splits = DatasetDict()
    for split in options.splits:
        files = options.files(split)
        if files and split in named:
            raise ValueError(f"{split} data is given twice, by dataset_name {name} and by {' and by '.join(files)}")
        if len(files) == 2:
            splits[split] = _cached(_read_text(*files), split, " and ".join(files), (*map(_file_state, files),))
        elif files or split in named:
            where = files[0] if files else f"dataset_name: {name}, {split}"
            records = _read_file(files[0], languages) if files else _numbered(named[split], where)
            pairs: Iterator[dict[str, str]] = (_pair(record, languages, place) for place, record in records)
            if split == "corrections":
                pairs = _newest(pairs)
            splits[split] = _cached(pairs, split, where, (_file_state(files[0]) if files else identity, languages))
    if "corrections" in splits:
        corrections = splits["corrections"]
        for split in {"train", "replay"} & splits.keys():
            splits[split] = _without(splits[split], corrections.data["source"].combine_chunks())
        parts = [splits[split] for split in ("train", "corrections") if split in splits]
        splits["train"] = datasets.concatenate_datasets(parts, split=NamedSplit("train"))
    if "train" not in splits:
        raise ValueError("no training data: give train_file, train_source with train_target, or dataset_name")
    return splits


def _newest(pairs: Iterator[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Of the pairs of a source the last that has a target."""
    yield from {pair["source"]: pair for pair in pairs if not is_blank(pair["target"])}.values()


def _without(pairs: Dataset, sources: pa.Array) -> Dataset:
    """The pairs of other sources."""
    kept = np.flatnonzero(~pc.is_in(pairs.data["source"], value_set=sources).to_numpy())
    return pairs if len(kept) == len(pairs) else pairs.select(kept).flatten_indices()


def _cached(pairs: Iterator[dict[str, str]], split: str, name: str, state: tuple) -> Dataset:
    """Write the pairs to the cache; pairs that were read in the same state before are found there."""

    def read() -> Iterator[dict[str, str]]:
        try:
            first = next(pairs, None)
            if first is None:
                raise ValueError(f"{split} data: {name} is empty")
            yield first
            yield from pairs
        except (OSError, EOFError, zlib.error) as error:  # the last two: a damaged .gz
            raise ValueError(f"{split} data: {name} cannot be read: {one_line(error)}") from error

    fingerprint = Hasher.hash((_READERS, split, state))
    with cache_errors():
        try:
            return Dataset.from_generator(read, _PAIR, split=NamedSplit(split), fingerprint=fingerprint)
        except DatasetsError as error:
            # datasets wraps what the readers raise in an error that does not say what it was.
            cause = error.__cause__ or error
            if type(cause) is ValueError or isinstance(cause, OSError):  # pyarrow's and pandas' derive from ValueError
                raise cause from cause.__cause__
            raise ValueError(f"{split} data: {name} cannot be read: {one_line(cause)}") from cause


@contextmanager
def cache_errors() -> Iterator[None]:
    """Make an error of the disk name the cache of datasets, where what is read is written."""
    try:
        yield
    except OSError as error:
        cache = f"{datasets.config.HF_DATASETS_CACHE}: the cache of datasets cannot be written"
        raise OSError(f"{cache}: {error.strerror or error}; HF_DATASETS_CACHE names another") from error


def _file_state(path: str) -> tuple[str, int, int, int]:
    """A file's path, size and times. A copy may keep the time of the last write, but not that of the last change."""
    check_path(path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    return os.path.abspath(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns


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


# Readers of our own, because those of datasets guess: its CSV reader takes a first column too many for an index and a
# missing one for an empty text, its JSON reader makes dates of text, its text reader ends lines at a lone "\r".


def _read_text(source_path: str, target_path: str) -> Iterator[dict[str, str]]:
    lines = zip_longest(read_lines(source_path), read_lines(target_path))
    for number, (source, target) in enumerate(lines):
        if source is None or target is None:
            shorter, longer = (source_path, target_path) if source is None else (target_path, source_path)
            raise ValueError(f"unequal length: {shorter} has {number} lines, {longer} has more")
        yield {"source": source, "target": target}


def _read_file(path: str, languages: tuple[str, str]) -> Iterator[tuple[str, object]]:
    """The records {language: text} of a file, each with its place."""
    kind = ending(path)
    if kind in (".csv", ".tsv"):
        yield from _read_columns(path, kind, languages)
    elif kind == ".tmx":
        yield from read_tmx(path, languages)
    elif kind in CATALOGUES:
        yield from read_units(path, languages)
    elif kind in (".xlsx", ".xls", ".ods"):
        raise ValueError(f"{path}: a spreadsheet: save it as CSV in UTF-8")
    elif kind == ".parquet":
        yield from _numbered((row for batch in ParquetFile(path).iter_batches(1000) for row in batch.to_pylist()), path)
    else:
        yield from _read_json(path)


def _numbered(rows: Iterable[object], where: str) -> Iterator[tuple[str, object]]:
    for number, row in enumerate(rows, start=1):
        yield f"{where}, row {number}", row


def _read_json(path: str) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                yield f"{path}, line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:  # not only JSONDecodeError: a number of thousands of digits
                reason = getattr(error, "msg", error)
                raise ValueError(f"{path}, line {number}: not JSON: {reason}: {_short(line)}") from error


def _read_columns(path: str, kind: str, languages: tuple[str, str]) -> Iterator[tuple[str, object]]:
    """The rows as {column: text}. The first row names the columns; a .tsv of two columns need not name them."""
    rows = _rows(path, kind)
    where, header = next(rows, ("", [*languages]))
    given = {language.lower(): language for language in languages}
    header = [given.get(name.lower(), name) for name in header]
    if {*header} == {"source", "target"}:
        header = [languages[name == "target"] for name in header]
    if missing := [language for language in languages if language not in header]:
        if kind == ".csv" or len(header) != 2 or all(map(_LANGUAGE.fullmatch, header)):
            remedy = "the first line names the columns, --source_lang and --target_lang those to read"
            raise ValueError(f'{where}: no column "{missing[0]}" in {_short(header)}: {remedy}')
        rows, header = chain([(where, header)], rows), [*languages]
    if double := [language for language in languages if header.count(language) > 1]:
        raise ValueError(f'{where}: more than one column "{double[0]}" in {_short(header)}')
    for where, row in rows:
        if len(row) != len(header):
            raise ValueError(f"{where}: {len(row)} columns, not {len(header)}: {_short(row)}")
        yield where, dict(zip(header, row, strict=True))


def _rows(path: str, kind: str) -> Iterator[tuple[str, list[str]]]:
    """The rows that are not blank, each with the line where it starts: a cell of a .csv may hold line ends."""
    if kind == ".tsv":
        lines = enumerate(read_lines(path), start=1)
        yield from ((f"{path}, line {number}", line.split("\t")) for number, line in lines if line)
        return
    csv.field_size_limit(2**31 - 1)
    texts = read_lines(path)
    header = next(texts, "")
    mark = ";" if ";" in header and "," not in header else ","  # Excel writes semicolons where decimals have commas
    rows = csv.reader((line + "\n" for line in chain([header], texts)), delimiter=mark, strict=True)
    start = 1
    try:
        for row in rows:
            if row:
                yield f"{path}, line {start}", row
            start = rows.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {start}: not {kind}: {error}") from error


def _pair(record: object, languages: tuple[str, str], where: str) -> dict[str, str]:
    """The pair of a record {language: text} or {"translation": {language: text}}; ValueError names what is wrong."""
    texts = record["translation"] if isinstance(record, dict) and "translation" in record else record
    if not isinstance(texts, dict):
        raise ValueError(f"{where}: {_short(texts)} is no object of languages")
    for language in languages:
        if language not in texts:
            raise ValueError(f'{where}: no "{language}" among {_short([*texts])}')
        if not isinstance(text := texts[language], str):
            raise ValueError(f'{where}: "{language}" is {_short(text)}, not text')
        if HALF_PAIR.search(text):
            raise ValueError(f'{where}: "{language}" is {_short(text)}, which has half of a surrogate pair')
    return {"source": texts[languages[0]], "target": texts[languages[1]]}


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
