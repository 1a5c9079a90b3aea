"""A look at sentence pairs before training: what in them is likely to lower the scores, and the pairs without it.

The means are simple: lengths, hashes, and what Unicode says of characters. No pair is understood. All is one pass over
the pairs, which keeps some 30 bytes of each in memory.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache
from operator import eq
from pathlib import Path
from typing import NamedTuple

import numpy as np
from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from ..files import check_unused, whole_folder
from ..progress import progress_bar

# What may be wrong with a pair, and what is said of such pairs.
FAULTS = {
    "empty": "with an empty side",
    "equal": "whose sides are the same text",
    "duplicate": "that occurred before",
    "length": "of which one side is far too long for the other",
    "script": "with a side in another script than most of that side",
    "broken": "with broken characters: control characters, U+FFFD, UTF-8 read as Latin-1",
    "unseen": "with characters for which the tokenizer has no token",
    "shared": "whose source sentence is both in the training data and in validation or test data",
}
_BIT = {name: 1 << number for number, name in enumerate(FAULTS)}
_EXAMPLES = 3
_ROWS = 10_000  # that are in memory at a time
_LENGTH_MARGIN = 20  # characters by which short sentences may differ, whatever their ratio

_BROKEN_CATEGORIES = ("Cc", "Cn", "Co", "Cs")  # control, unassigned, private use, surrogate
_BROKEN_CHARACTERS = "\ufffd\ufeff"
# The first letters of two-byte characters that were read as Latin-1 or Windows-1252, and the start of quotation marks.
_MISREAD = re.compile("[\u00c2\u00c3][\u0080-\u00bf]|\u00c3[\u0178\u201e\u2013\u0153]|\u00e2\u20ac")
_MISREAD_LEADS = set("\u00c2\u00c3\u00e2")
_SCRIPTS: dict[str, int] = {}  # the number of each, in the order in which they were met
# Scripts that one language mixes, and letters named otherwise than by theirs.
_TOGETHER = dict.fromkeys(("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HALFWIDTH", "IDEOGRAPHIC"), "CJK")
_TOGETHER |= {"MICRO": "GREEK", "FEMININE": "LATIN", "MASCULINE": "LATIN"}


class Finding(NamedTuple):
    """The pairs of a split with one fault: the fault, their number, and the rows of the first three, counted from 0."""

    fault: str
    total: int
    rows: list[int]


# Looking


def find_faults(
    pairs: DatasetDict,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_length_ratio: float = 3.0,
    show_progress: bool = False,
) -> dict[str, np.ndarray]:
    """Look at all pairs of all splits.

    Args:
        pairs: what load_pairs returns.
        tokenizer: a character is unseen if it is in none of its tokens; without one, if the training data lack it.
        max_length_ratio: how many times as long as the other a side may be, in characters, beyond a margin of 20. The
            sources' lengths are first scaled by the median ratio of the training pairs, as one language writes shorter
            than another.
        show_progress: a progress bar on stderr.

    Returns:
        For each split a row of bits for each of its pairs, one for each of FAULTS, as findings() reads them.
    """
    seen = _alphabet(pairs["train"]) if tokenizer is None else _alphabet_of(tokenizer)
    total = sum(map(len, pairs.values()))
    with progress_bar(total=total, unit=" pairs", desc="Checking", disable=not show_progress) as bar:
        scans = {split: _scan(rows, seen, bar.update) for split, rows in pairs.items()}
    train = scans["train"]
    scale = _typical_ratio(train)
    scripts = [int(np.bincount(numbers, minlength=2)[1:].argmax()) + 1 for numbers in train.scripts]
    held_out = [scan.sources for split, scan in scans.items() if split != "train"]
    for split, scan in scans.items():
        others = np.concatenate([train.sources[:0], *held_out]) if split == "train" else train.sources
        _compare(scan, scale, scripts, others, max_length_ratio)
    return {split: scan.bits for split, scan in scans.items()}


def findings(bits: np.ndarray) -> list[Finding]:
    """What find_faults has found in a split, the faults in the order of FAULTS; those without a pair are left out."""
    rows = {name: np.flatnonzero(bits & bit) for name, bit in _BIT.items()}
    return [Finding(name, len(those), those[:_EXAMPLES].tolist()) for name, those in rows.items() if len(those)]


class _Scan(NamedTuple):
    """What one pass keeps of the pairs of a split: arrays (pairs,), those of each side (2, pairs)."""

    bits: np.ndarray
    hashes: np.ndarray  # of the pairs
    sources: np.ndarray  # hashes of the source sentences
    lengths: np.ndarray
    scripts: np.ndarray


def _alphabet(rows: Dataset) -> set[str]:
    """All characters of some pairs."""
    characters: set[str] = set()
    for batch in rows.with_format("arrow").iter(_ROWS):
        characters.update(*batch["source"].to_pylist(), *batch["target"].to_pylist())
    return characters


def _alphabet_of(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """The characters that some token holds as a whole, not a byte of them. Blanks may be lost as a token is decoded."""
    tokens = tokenizer.batch_decode([[number] for number in range(len(tokenizer))])
    return set(string.whitespace).union(*tokens)


def _scan(rows: Dataset, seen: set[str], progress: Callable[[int], object]) -> _Scan:
    """Look at each pair by itself; `seen` are the characters that the tokenizer saw."""
    parts = []
    for batch in rows.with_format("arrow").iter(_ROWS):
        sides = [batch[side].to_pylist() for side in ("source", "target")]
        bits = _BIT["equal"] * np.array(list(map(eq, *sides)), np.uint8)
        scripts = np.zeros((2, len(batch)), np.uint16)
        for side, texts in enumerate(sides):
            # What a character is, is asked once for a batch: most batches have none that is wrong, and one script.
            alphabet = set().union(*texts)
            bits |= _BIT["broken"] * _which(texts, set(filter(_is_broken, alphabet)))
            bits |= _BIT["unseen"] * _which(texts, alphabet - seen)
            if not _MISREAD_LEADS.isdisjoint(alphabet):
                bits |= _BIT["broken"] * np.array([bool(_MISREAD.search(text)) for text in texts], np.uint8)
            numbers = set(map(_script_of, alphabet)) - {0}
            scripts[side] = list(map(_script, texts)) if len(numbers) > 1 else max(numbers, default=0)
        pairs, sources = (
            np.array(list(map(hash, values)), np.int64) for values in (zip(*sides, strict=True), sides[0])
        )
        lengths = np.array([[len(text.strip()) for text in texts] for texts in sides], np.int32)
        parts.append(_Scan(bits, pairs, sources, lengths, scripts))
        progress(len(batch))
    return _Scan(*(np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True)))


def _which(texts: list[str], characters: set[str]) -> np.ndarray:
    """1 for each text that has one of the characters, 0 for the others."""
    if not characters:
        return np.zeros(len(texts), np.uint8)
    return np.array([not characters.isdisjoint(text) for text in texts], np.uint8)


def _compare(scan: _Scan, scale: float, scripts: list[int], others: np.ndarray, max_length_ratio: float) -> None:
    """Set the bits that depend on more than the pair itself."""
    source, target = scan.lengths.astype(np.float64)
    filled = (source > 0) & (target > 0)
    repeated = np.ones(len(filled), bool)
    repeated[np.unique(scan.hashes, return_index=True)[1]] = False
    shorter, longer = np.minimum(source * scale, target), np.maximum(source * scale, target)
    other_script = (scan.scripts > 0) & (scan.scripts != np.array(scripts)[:, None])
    faults = {
        "duplicate": repeated,
        "length": longer > max_length_ratio * shorter + _LENGTH_MARGIN,
        "script": other_script.any(axis=0),
        "shared": np.isin(scan.sources, others),
    }
    for name, rows in faults.items():
        scan.bits[rows] |= _BIT[name]
    scan.bits[~filled] = _BIT["empty"]  # nothing else is worth saying of these


def _typical_ratio(train: _Scan) -> float:
    source, target = train.lengths
    filled = (source > 0) & (target > 0)
    return float(np.median(target[filled] / source[filled])) if filled.any() else 1.0


def _script(text: str) -> int:
    """The number of the script that most different letters of a text are of, the first of equals; 0 without letters."""
    counts = Counter(map(_script_of, dict.fromkeys(text)))
    del counts[0]
    return max(counts, key=counts.__getitem__, default=0)


@cache
def _script_of(character: str) -> int:
    """The number of a letter's script, the first word of its name in Unicode; 0 if it is no letter."""
    if not character.isalpha():
        return 0
    name = unicodedata.name(character, "UNKNOWN").split()[0]
    return _SCRIPTS.setdefault(_TOGETHER.get(name, name), len(_SCRIPTS) + 1)


@cache
def _is_broken(character: str) -> bool:
    return unicodedata.category(character) in _BROKEN_CATEGORIES or character in _BROKEN_CHARACTERS


# Cleaning


def write_clean(rows: Dataset, bits: np.ndarray, languages: tuple[str, str], folder: Path) -> int:
    """Write the pairs without a fault as two text files, `train.LANGUAGE` each, into a new folder; all or nothing.

    Pairs with unseen characters and no other fault are kept, as names have such. No text of those kept has a line end:
    it is a control character.

    Args:
        rows: the training pairs.
        bits: theirs of find_faults.
        languages: of source and target. The files are train.source and train.target if these give no two file names.

    Returns:
        How many pairs were written.

    Raises:
        ValueError: the folder holds something already, or no pair is without a fault.
        OSError: it cannot be written.
    """
    check_unused("output_dir", folder)
    kept = rows.select(np.flatnonzero((bits & ~np.uint8(_BIT["unseen"])) == 0))
    if not len(kept):
        raise ValueError(f"none of {len(rows)} training pairs is without a fault")
    names = [f"train.{language}" for language in languages]
    if names[0] == names[1] or any(Path(name).name != name for name in names):
        names = ["train.source", "train.target"]
    with whole_folder(folder) as part:
        for side, name in zip(("source", "target"), names, strict=True):
            with (part / name).open("w", encoding="utf-8", newline="\n") as stream:
                for batch in kept.with_format("arrow").iter(_ROWS):
                    stream.writelines(f"{text}\n" for text in batch[side].to_pylist())
    return len(kept)
