"""The options of a corpus: where its sentence pairs are, and how long they may be."""

from dataclasses import dataclass, field
from typing import ClassVar

from ..files import ending
from .units import CATALOGUES


def option(default, help: str):
    """A field with its help; transformers' HfArgumentParser makes a command line option of it."""
    return field(default=default, metadata={"help": help})


@dataclass
class CorpusOptions:
    """Where the sentence pairs are. Each split comes from one file, two text files or the named dataset.

    Files are UTF-8, plain or .gz. A line ends at "\\n" and nowhere else, with or without a "\\r" before it. What a file
    of pairs holds is told by the ending of its name:

    - .csv: columns, the first line naming them, separated by commas, or by semicolons if it has no comma; those of the
      two languages are read.
    - .tsv: the same, separated by tabs, a quotation mark being text. Without the languages in its first line it has two
      columns, source and target, which that line may say.
    - .parquet: columns of the two languages, or a column "translation" of both.
    - .tmx: a translation memory; of its units those with both languages are read (de is also de-DE).
    - .po, .xliff or .xlf: a catalogue, from its source to its target language, by pip install translate-toolkit; of its
      units those that are translated, not fuzzy and need no review are read, plural forms as pairs.
    - anything else: JSON lines, {"en": "...", "de": "..."} or {"translation": {"en": "...", "de": "..."}}.

    Blank lines of these are skipped.
    """

    _argument_group_name = "data"
    splits: ClassVar[tuple[str, ...]] = ("train", "validation", "test")

    train_file: str | None = option(
        None, "Training pairs: JSON lines, .tsv, .csv, .parquet, .tmx, .po or .xliff, as described."
    )
    validation_file: str | None = option(None, "Validation pairs, likewise.")
    test_file: str | None = option(None, "Test pairs, likewise.")
    train_source: str | None = option(None, "Source sentences to train on, one a line.")
    train_target: str | None = option(None, "Their translations, line by line.")
    validation_source: str | None = option(None, "Source sentences to validate on.")
    validation_target: str | None = option(None, "Their translations.")
    test_source: str | None = option(None, "Source sentences to test on.")
    test_target: str | None = option(None, "Their translations.")
    dataset_name: str | None = option(None, "A dataset of the Hub, or a local folder of one.")
    dataset_config: str | None = option(None, "Its configuration, for example a language pair.")
    max_train_pairs: int | None = option(None, "Stream dataset_name and read only so many training pairs.")
    source_lang: str | None = option(None, "Source language, which names its column (of columns en by default).")
    target_lang: str | None = option(None, "Target language, likewise (of columns de by default).")

    def __post_init__(self):
        if self.max_train_pairs is not None and self.dataset_name is None:
            raise ValueError(f"max_train_pairs {self.max_train_pairs}: needs dataset_name; of files all pairs are read")
        if self.max_train_pairs is not None and self.max_train_pairs < 1:
            raise ValueError(f"max_train_pairs must be at least 1, not {self.max_train_pairs}")
        source, target = self.languages
        if self.has_columns and source == target:
            raise ValueError(f"source_lang and target_lang are both {source}, one column: give both")

    @property
    def has_columns(self) -> bool:
        """Whether a split comes from columns that are named after the languages; catalogues have none."""
        files = [file for split in self.splits if (file := getattr(self, f"{split}_file"))]
        return bool(self.dataset_name) or any(ending(file) not in CATALOGUES for file in files)

    @property
    def languages(self) -> tuple[str, str]:
        """Those of source and target, which name the columns."""
        return self.source_lang or "en", self.target_lang or "de"

    def files(self, split: str) -> list[str]:
        """The file of a split's pairs, or those of its sources and of its targets, or none; ValueError if in part."""
        given = vars(self)
        parts = {part: path for part in ("file", "source", "target") if (path := given.get(f"{split}_{part}"))}
        if [*parts] not in ([], ["file"], ["source", "target"]):
            what = " and ".join(f"{split}_{part} {path}" for part, path in parts.items())
            raise ValueError(f"give {split}_file, or {split}_source with {split}_target, not {what}")
        return [*parts.values()]


@dataclass
class DataOptions(CorpusOptions):
    """Where the sentence pairs are (CorpusOptions), those a fine-tuned model is to keep, and how long they may be."""

    splits: ClassVar = (*CorpusOptions.splits, "replay", "replay_validation", "corrections")

    replay_file: str | None = option(None, "Old pairs, of which every epoch of --model has a fresh sample.")
    replay_source: str | None = option(None, "Or their source sentences, one a line.")
    replay_target: str | None = option(None, "Their translations.")
    replay_validation_file: str | None = option(None, "Old validation pairs, on which the model must get no worse.")
    replay_validation_source: str | None = option(None, "Or their source sentences.")
    replay_validation_target: str | None = option(None, "Their translations.")
    corrections_file: str | None = option(
        None, "Corrected translations, pairs to train on besides; the last of a source replaces all other pairs of it."
    )
    max_source_length: int = option(256, "Remove training pairs whose source has more tokens, </s> included.")
    max_target_length: int = option(256, "Remove training pairs whose target has more tokens, </s> included.")
