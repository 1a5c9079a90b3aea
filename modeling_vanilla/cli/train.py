"""Train a translation model on your own sentence pairs.

The data are JSON lines {"en": "...", "de": "..."}, .tsv, .csv, .parquet, .tmx, .po or .xliff (--train_file), two text
files line by line (--train_source, --train_target), plain or .gz, or a data set of the Hub (--dataset_name). On one
process:

    vanilla train --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \\
        --output_dir runs/mine

Model, vocabulary, updates and learning rate are then chosen by corpus and machine, and printed; options that you give
are taken as they are. With --preset the others are what the paper says of that model: for base, 100000 updates of 25000
tokens, of which 4000 are warm-up, in batches of 3125, and the average of the last 5 checkpoints; for big, 300000 and
20. With --model a saved model, from a folder or the Hub, is fine-tuned:

    vanilla train --model runs/mine/model --train_file more.jsonl --validation_file validation.jsonl --output_dir tuned

On several GPUs:

    accelerate launch -m modeling_vanilla train --preset base --train_file train.jsonl --output_dir runs/mine

--output_dir then holds model/ (what from_pretrained loads), results.json, loss.png, the last checkpoints, of which
model/ is the average, and best/, the model of the best validation BLEU. After an interruption the same command with
--resume goes on from the newest checkpoint.

    vanilla train --model runs/mine/model --train_file new.tmx --validation_file new-valid.tsv --corrections_file \\
        corrections.csv --replay_file old.tsv --replay_validation_file old-valid.tsv --output_dir runs/next

mixes old pairs among the new ones, so that nothing is forgotten. With old validation pairs, model/ is the validated
model that is best on the new pairs, of those whose BLEU on the old ones is not lower by more than chance (p < 0.05,
sacreBLEU's paired bootstrap). If there is none that is better than before, there is no model/: serve the old one.

Exit code: 0; 2 for bad input, with one line that says what is wrong; 3 if no model is to be served; 130 after Ctrl-C.
"""

import argparse
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import yaml
from accelerate import PartialState

from ..errors import Interrupted, one_line
from ..training import ConfigOptions, DataOptions, ModelOptions, TrainingOptions, summary, train_translation
from ..training.run_record import is_begun
from .parser import CommandParser, run_command

_NULL = ("", "~", "null", "Null", "NULL")  # what YAML may write for no value


def read_config(path: str) -> dict[str, str]:
    """The options in a YAML file or a run's record, each value as it is written.

    Raises:
        ValueError: the file holds no options.
        OSError: it cannot be read.
    """
    try:
        # BaseLoader keeps values as they are written: "no" is a language, and a precision.
        record = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"config: {path} is no YAML: {one_line(error)}") from error
    if not isinstance(record, dict):
        raise ValueError(f"config: {path} holds no options")
    record.pop("pairs", None)  # of a run's record; these are not options
    options: dict[str, str] = {}
    for name, value in record.items():
        options |= value if isinstance(value, dict) else {name: value}
    return {name: value for name, value in options.items() if value not in _NULL}


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = CommandParser(__doc__, (DataOptions, ModelOptions, TrainingOptions, ConfigOptions))

    def train(given: Namespace) -> None:
        data, options, training, model = parser.parse_dict(vars(given), allow_extra_keys=True)
        try:
            results = train_translation(data, training, options, model.overrides())
        except Interrupted as end:
            if not is_begun(Path(training.output_dir)):
                raise
            raise Interrupted(end.signum, f"{end}; the same command with --resume goes on from there") from None
        if PartialState().is_main_process:
            print(summary(results, training.output_dir))
        if not results.get("passed", True):
            sys.exit(3)

    # Parsed before the other options, which come behind those of the file and win.
    config = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for each in (config, parser):
        each.add_argument("--config", metavar="FILE", help="options in YAML, as in a run's run.json; those given win")
    try:
        path = config.parse_known_args(arguments)[0].config
        options = {} if path is None else read_config(path)
    except (ValueError, OSError, argparse.ArgumentError) as error:
        parser.error(one_line(error))
    run_command(parser, train, [*(f"--{name}={value}" for name, value in options.items()), *arguments])
