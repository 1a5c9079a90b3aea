"""What a run is told: one dataclass each for its data, its model and its training.

transformers' HfArgumentParser makes command line options of them.
"""

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from types import NoneType
from typing import get_args

from ..configuration_vanilla import PRESETS, VanillaConfig
from .metrics import TOKENIZE, check_tokenize

SPLITS = ("train", "validation", "test")
_LANGUAGE = r"([a-z]{2}(?:_[A-Z]{2})?|[a-z]{3}_[A-Z][a-z]{3})"  # en, pt_BR, eng_Latn
_ONE_LANGUAGE = re.compile(rf"\.{_LANGUAGE}(?:\.txt)?$")  # train.en, train.tok.en
_TWO_LANGUAGES = re.compile(rf"(?:^|\.){_LANGUAGE}-{_LANGUAGE}\.[^.]+(?:\.gz)?$")  # train.en-de.tsv


def _option(default, help: str):
    return field(default=default, metadata={"help": help})


def is_table(path: str, endings: str | tuple[str, ...]) -> bool:
    """Whether the name of a file, plain or .gz, has one of these endings, such as .tsv."""
    return path.lower().removesuffix(".gz").endswith(endings)


def is_language(text: str) -> bool:
    """Whether a text can be the code of a language."""
    return re.fullmatch(_LANGUAGE, text) is not None


@dataclass
class CorpusOptions:
    """Where the sentence pairs are. Each split comes from one file, two text files or the named dataset.

    Files are UTF-8, plain or, if their name ends in .gz, compressed. A line ends at "\\n" and nowhere else, with or
    without a "\\r" before it. What a file of pairs holds, the ending of its name says:

    - .csv: columns, the first line naming them; those of the two languages are read.
    - .tsv: the same, separated by tabs, a quotation mark being text. Without the languages in its first line it has two
      columns, source and target, which that line may say.
    - anything else: JSON lines, {"en": "...", "de": "..."} or {"translation": {"en": "...", "de": "..."}}.

    The languages are those of the options; else those in the names of the files, as in train.en-de.tsv or in train.en
    and train.de; else, in what names its languages, from "en" to "de". In text files and .tsv they may stay unknown.
    """

    train_file: str | None = _option(
        None,
        'Training pairs: JSON lines such as {"en": "...", "de": "..."}, or columns if its name ends in .tsv or .csv.',
    )
    validation_file: str | None = _option(None, "Validation pairs, likewise.")
    test_file: str | None = _option(None, "Test pairs, likewise.")
    train_source: str | None = _option(None, "Source sentences to train on, one a line.")
    train_target: str | None = _option(None, "Their translations, line by line.")
    validation_source: str | None = _option(None, "Source sentences to validate on, one a line.")
    validation_target: str | None = _option(None, "Their translations, line by line.")
    test_source: str | None = _option(None, "Source sentences to test on, one a line.")
    test_target: str | None = _option(None, "Their translations, line by line.")
    dataset_name: str | None = _option(
        None,
        "A dataset of the Hub or a local folder: a column 'translation' or one for each language, splits train, "
        "validation, test.",
    )
    dataset_config: str | None = _option(None, "The configuration of that dataset, for example a language pair.")
    max_train_pairs: int | None = _option(
        None, "Stream dataset_name and read only so many training pairs: the rest is never downloaded."
    )
    source_lang: str | None = _option(
        None,
        "The source language, for the model card, and the name of its column or key; by default what the files' names "
        "say, as train.en-de.tsv or train.en does, else en where there are such names.",
    )
    target_lang: str | None = _option(None, "The target language, likewise; else de.")

    def __post_init__(self):
        if self.max_train_pairs is not None and (self.max_train_pairs < 1 or self.dataset_name is None):
            raise ValueError(f"max_train_pairs: {self.max_train_pairs} must be at least 1, of a dataset_name")
        if self.dataset_config is not None and self.dataset_name is None:
            raise ValueError(f"dataset_config {self.dataset_config}: there is no dataset_name")
        named = self._languages_in_names() if None in (self.source_lang, self.target_lang) else (None, None)
        files = [file for split in SPLITS if (file := getattr(self, f"{split}_file"))]
        if named == (None, None) and (self.dataset_name or not all(is_table(file, ".tsv") for file in files)):
            named = ("en", "de")
        self.source_lang, self.target_lang = self.source_lang or named[0], self.target_lang or named[1]
        if (files or self.dataset_name) and self.source_lang is not None and self.source_lang == self.target_lang:
            raise ValueError(f"source_lang and target_lang are both {self.source_lang}, one column: give both")

    def _languages_in_names(self) -> tuple[str | None, str | None]:
        """The source and the target language that file names tell; ValueError if those of two splits differ."""
        found: dict[tuple[str, str], str] = {}
        for split in SPLITS:
            file, *sides = (getattr(self, f"{split}_{part}") for part in ("file", "source", "target"))
            matches = [_ONE_LANGUAGE.search(Path(side).name.removesuffix(".gz")) for side in sides if side]
            if file:
                matches = [_TWO_LANGUAGES.search(Path(file).name)]
            languages = [language for match in matches if match for language in match.groups()]
            if len(set(languages)) == 2:
                found.setdefault((languages[0], languages[1]), split)
        if len(found) > 1:
            (one, split), (other, another) = list(found.items())[:2]
            raise ValueError(
                f"file names: {split} data are {'-'.join(one)}, {another} data {'-'.join(other)}; give source_lang and "
                "target_lang if that is meant"
            )
        return next(iter(found), (None, None))


@dataclass
class DataOptions(CorpusOptions):
    """Where the sentence pairs are, as CorpusOptions says it, and how long those to train on may be."""

    max_source_tokens: int = _option(256, "Remove training pairs whose source has more tokens, </s> included.")
    max_target_tokens: int = _option(256, "Remove training pairs whose target has more tokens, </s> included.")


@dataclass
class TranslationOptions:
    """Which model to train, over which vocabulary."""

    preset: str = _option("base", f"The model: {', '.join(PRESETS)}. Without it the command chooses a recipe.")
    model: str | None = _option(
        None, "Start from this saved model folder, with its vocabulary, instead of from a preset."
    )
    tokenizer: str | None = _option(None, "Use this saved tokenizer instead of training one on the training data.")
    tokenizer_algorithm: str = _option("bpe", "The algorithm of a tokenizer that is trained: bpe or wordpiece.")
    resume: bool = _option(False, "Continue from the last checkpoint of output_dir.")


def check_model_options(options: TranslationOptions, overrides: dict) -> None:
    """Check the settings of the model before any data are read.

    Args:
        overrides: fields of VanillaConfig that replace the preset's.

    Raises:
        ValueError: as VanillaConfig.preset does, for a model folder that does not exist, or one with overrides or
            another tokenizer, and for a tokenizer_algorithm where none is trained.
    """
    saved = options.model or options.tokenizer
    if saved and options.tokenizer_algorithm != TranslationOptions.tokenizer_algorithm:
        raise ValueError(f"tokenizer_algorithm {options.tokenizer_algorithm}: {saved} has a tokenizer")
    if options.model is None:
        VanillaConfig.preset(options.preset, **overrides)
    elif options.tokenizer is not None:
        raise ValueError(f"tokenizer {options.tokenizer}: model {options.model} has its own")
    elif overrides:
        raise ValueError(f"model {options.model}: its {next(iter(overrides))} cannot be changed")
    elif not (Path(options.model) / "config.json").is_file():
        raise ValueError(f"model: {options.model} is no model folder, as it has no config.json")


def _field_texts() -> dict[str, str]:
    """What the docstring of VanillaConfig says of each field."""
    arguments = inspect.getdoc(VanillaConfig).split("\nArgs:\n")[1].split("\n\n")[0]
    texts: dict[str, str] = {}
    for entry in re.split(r"^ {4}(?=\S)", arguments, flags=re.MULTILINE)[1:]:
        names, text = entry.split(":", 1)
        texts |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return texts


class _PresetValue:
    """The default of every model option: not given."""

    def __repr__(self) -> str:
        return "the preset's"


_PRESET_VALUE = _PresetValue()


def _argument_type(annotation) -> Callable[[str], int | float | str | None]:
    """The function that argparse applies to a word: a type; where a field may be None, "none" becomes None."""
    types = get_args(annotation) or (annotation,)
    number = float if float in types else types[0]
    if NoneType not in types:
        return number

    def number_or_none(word: str) -> int | float | None:
        return None if word == "none" else number(word)

    number_or_none.__name__ = f"{number.__name__} or none"  # for argparse's error message
    return number_or_none


def _model_fields() -> list[tuple]:
    """The fields of VanillaConfig that shape a model; transformers, the vocabulary and the data decide the others."""
    texts, result = _field_texts(), []
    for name, annotation in VanillaConfig.__annotations__.items():
        if not name.endswith("_token_id") and not name.startswith(("is_", "use_", "max_source_")):
            none = " Write none for None." if NoneType in get_args(annotation) else ""
            result.append((name, _argument_type(annotation), _option(_PRESET_VALUE, texts[name] + none)))
    return result


def _overrides(model_options) -> dict:
    """The fields that were given."""
    return {name: value for name, value in vars(model_options).items() if value is not _PRESET_VALUE}


ModelOptions = make_dataclass("ModelOptions", _model_fields(), namespace={"overrides": _overrides})
ModelOptions.__doc__ = "Fields of VanillaConfig that replace the preset's; overrides() is what train_translation takes."


@dataclass
class TrainingOptions:
    """How to train. The defaults are the paper's base model's (5.1, 5.3, 6.1)."""

    output_dir: str = field(metadata={"help": "Folder of this run: its checkpoints, its model, its results."})
    max_steps: int = _option(100_000, "Updates to train for.")
    max_minutes: float | None = _option(None, "Stop after this many minutes of training, if that comes first.")
    tokens_per_update: int = _option(25_000, "Tokens of an update on either side, whatever the number of processes.")
    tokens_per_batch: int = _option(
        3125, "Tokens of a batch on either side, padding included: what a device holds at a time. 3125 is an eighth."
    )
    fit_batch: bool = _option(False, "Lower tokens_per_batch until a step fits in the device's memory.")
    warmup_steps: int = _option(4000, "Steps for which the learning rate rises.")
    learning_rate_scale: float = _option(1.0, "Factor of the paper's learning rate.")
    max_grad_norm: float | None = _option(None, "Clip the gradient's norm to this. The paper does not.")
    mixed_precision: str | None = _option(
        None, "no, bf16 or fp16; by default what accelerate launch was told, else no."
    )
    compile: bool = _option(False, "Compile the training step by torch.compile.")
    validate_steps: int = _option(1000, "Validate every so many updates, and at the end.")
    early_stopping: int | None = _option(None, "Stop when so many validations in a row have not raised the best BLEU.")
    checkpoint_steps: int | None = _option(
        None,
        "Write a checkpoint every so many updates; by default 1.5%% of max_steps, but at least 10: 1500 of the base "
        "model's 100000, the paper's 10 minutes.",
    )
    checkpoint_minutes: float | None = _option(
        10.0, "Write one every so many minutes, too, to resume from; it is not averaged."
    )
    keep_checkpoints: int = _option(5, "Keep the last so many checkpoints. The best model by validation BLEU is apart.")
    average_checkpoints: int = _option(5, "The final model is the average of the last so many checkpoints.")
    bleu_tokenize: str = _option(
        TOKENIZE,
        "sacreBLEU's tokeniser: 13a, none for text that is tokenised already, zh or char for text without spaces.",
    )
    seed: int = _option(0, "Seed of initialisation, data order and dropout.")
    data_workers: int = _option(0, "Processes that prepare batches for each training process.")
    sustained_tflops: float | None = _option(
        None, "What one device sustains, for the cost as Table 2 estimates it; by default measured."
    )

    def __post_init__(self):
        for name in (
            "max_steps",
            "tokens_per_update",
            "tokens_per_batch",
            "warmup_steps",
            "validate_steps",
            "early_stopping",
            "checkpoint_steps",
            "keep_checkpoints",
            "average_checkpoints",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        for name in (
            "max_minutes",
            "learning_rate_scale",
            "max_grad_norm",
            "checkpoint_minutes",
            "sustained_tflops",
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, not {value}")
        if self.data_workers < 0:
            raise ValueError(f"data_workers must be at least 0, not {self.data_workers}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be from 0 to 4294967295, not {self.seed}")
        if self.average_checkpoints > self.keep_checkpoints:
            raise ValueError(
                f"average_checkpoints {self.average_checkpoints} is more than keep_checkpoints {self.keep_checkpoints}"
            )
        check_tokenize(self.bleu_tokenize, "bleu_tokenize")
        if self.mixed_precision not in (None, "no", "bf16", "fp16"):
            raise ValueError(f"mixed_precision must be no, bf16 or fp16, not {self.mixed_precision!r}")

    @property
    def checkpoint_interval(self) -> int:
        """Updates from one checkpoint to the next.

        The paper averages checkpoints written every 10 minutes (6.1), which are 1500 of the base model's updates of
        0.4 s (5.2) and 600 of the big one's. Counted in updates, as by the clock no two runs would average the same; as
        a share of the run, so that the last ones lie as near its end in a short run; but at least 10, as writing one
        takes time, too.
        """
        return self.checkpoint_steps or max(10, round(0.015 * self.max_steps))

    def is_scheduled(self, step: int) -> bool:
        """Whether a checkpoint after this update is of those to average: they lie evenly up to the last update."""
        return (self.max_steps - step) % self.checkpoint_interval == 0

    def warnings(self) -> list[str]:
        """A line for each setting that can be trained with but does not fit the length of the run."""
        lines = []
        if self.warmup_steps > self.max_steps / 2:
            lines.append(
                f"warmup_steps: the learning rate rises for {self.warmup_steps} of {self.max_steps} updates and hardly "
                "falls; set fewer"
            )
        if self.average_checkpoints * self.checkpoint_interval > self.max_steps / 2:
            lines.append(
                f"average_checkpoints: {self.average_checkpoints} checkpoints, one every {self.checkpoint_interval} "
                f"updates, span more than half of {self.max_steps} updates; set fewer, or a smaller checkpoint_steps"
            )
        if self.max_minutes is not None and self.checkpoint_steps is None:
            lines.append(
                f"checkpoint_steps: a checkpoint every {self.checkpoint_interval} updates, 1.5% of max_steps "
                f"{self.max_steps}; set fewer if {self.max_minutes:g} minutes end the run much sooner"
            )
        return lines


# What may differ when a run is resumed: a longer run, or one that reports more often or is tested on something else, is
# still the same.
MAY_CHANGE_ON_RESUME = {
    "test_file",
    "test_source",
    "test_target",
    "max_steps",
    "max_minutes",
    "validate_steps",
    "early_stopping",
    "checkpoint_steps",
    "checkpoint_minutes",
    "keep_checkpoints",
    "average_checkpoints",
    "data_workers",
    "sustained_tflops",
}
