"""Train a translation model on your own sentence pairs.

The data are JSON lines {"en": "...", "de": "..."}, .tsv or .csv (--train_file), two text files line by line
(--train_source, --train_target), plain or .gz, or a data set of the Hub (--dataset_name). On one process:

    vanilla train --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \\
        --output_dir runs/mine

Model, vocabulary, updates and learning rate are then chosen from the corpus and the machine, and printed; what you give
is as you give it. With --preset all else is that of the paper's base model: 100000 updates of 25000 tokens, of which
4000 are warm-up, in batches of 3125. With --model a saved model, of a folder or of the Hub, is fine-tuned:

    vanilla train --model runs/mine/model --train_file more.jsonl --validation_file validation.jsonl --output_dir tuned

On several GPUs:

    accelerate launch -m modeling_vanilla train --preset base --train_file train.jsonl --output_dir runs/mine

--output_dir then holds model/ (what from_pretrained loads), results.json, loss.png, the last checkpoints, of which
model/ is the average, and best/, the model of the best validation BLEU. After an interruption the same command with
--resume goes on from the newest checkpoint.
"""

import argparse
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import yaml

from ..errors import one_line
from ..training.options import REGULARISATION, SPLITS, DataOptions, ModelOptions, TrainingOptions, TranslationOptions
from .parser import CommandParser, run_command

_NULL = ("", "~", "null", "Null", "NULL")  # what YAML may write for no value
_FIELDS_OF_MODEL = {field.name for field in fields(ModelOptions)}
# What an option on the command line takes the place of, if the file has it.
_REPLACED: dict[str, tuple[str, ...]] = {"learning_rate": ("learning_rate_scale",)}
_REPLACED |= {"learning_rate_scale": ("learning_rate",)}
_REPLACED |= {"model": ("revision", "preset", "tokenizer", "tokenizer_algorithm", *_FIELDS_OF_MODEL)}
_REPLACED |= {"preset": ("model", "revision")}
_REPLACED |= {"tokenizer": ("model", "revision", "tokenizer_algorithm", "vocab_size")}
_DATASET = "dataset_name", "dataset_config", "max_train_pairs"
_REPLACED |= {"dataset_name": tuple(f"{split}_{part}" for split in SPLITS for part in ("file", "source", "target"))}
for _split in SPLITS:
    _sides = f"{_split}_source", f"{_split}_target"
    _of_hub = _DATASET if _split == "train" else ()
    _REPLACED |= {f"{_split}_file": (*_sides, *_of_hub), **dict.fromkeys(_sides, (f"{_split}_file", *_of_hub))}


def read_config(path: str, given: Sequence[str] = ()) -> list[str]:
    """The options in a YAML file as words of the command line; of a run's record those of all its parts.

    Args:
        given: the words of the command line, which win: what excludes one of them is left out.

    Raises:
        ValueError: if the file holds no options, or a config of its own.
        OSError: if it cannot be read.
    """
    try:
        # Every value as it is written: "no" is a language, and a precision.
        record = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"config: {path} is no YAML: {one_line(error)}") from error
    if not isinstance(record, dict):
        raise ValueError(f"config: {path} holds no options")
    record.pop("training_data", None)  # the digest in a run's record
    options: dict = {}
    for name, value in record.items():
        options |= value if isinstance(value, dict) else {name: value}
    if "config" in options:
        raise ValueError(f"config: {path} names another, {options['config']}")
    named = (word[2:].partition("=")[0].replace("-", "_") for word in given if word.startswith("--"))
    replaced = {name for option in named for name in _REPLACED.get(option, ())}
    if options.get("model", "") not in _NULL:  # they were for fine-tuning already
        replaced -= {*REGULARISATION}
    # Of the model's fields "none" is a value, too.
    kept = {name: value for name, value in options.items() if value not in _NULL or name in _FIELDS_OF_MODEL}
    return [f"--{name}={'none' if kept[name] in _NULL else kept[name]}" for name in kept if name not in replaced]


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = CommandParser(__doc__, (DataOptions, TranslationOptions, TrainingOptions, ModelOptions))

    def train(given: Namespace) -> None:
        from accelerate import PartialState

        from ..training import summary, train_translation

        data, options, training, model = parser.parse_dict(vars(given), allow_extra_keys=True)
        results = train_translation(data, training, options, model.overrides())
        if PartialState().is_main_process:
            print(summary(results, training.output_dir))

    # Parsed before the others, as what it names stands before them: the last one given is taken.
    config = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for each in (config, parser):
        each.add_argument("--config", metavar="FILE", help="options in YAML, as in a run's run.json; those given win")
    try:
        path = config.parse_known_args(arguments)[0].config
        words = [] if path is None else read_config(path, arguments)
    except (ValueError, OSError, argparse.ArgumentError) as error:
        parser.error(one_line(error))
    run_command(parser, train, [*words, *arguments])
