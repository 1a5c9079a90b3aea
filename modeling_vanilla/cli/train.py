"""Train a translation model on your own sentence pairs.

The data are JSON lines {"en": "...", "de": "..."}, .tsv or .csv (--train_file), two text files line by line
(--train_source, --train_target), plain or .gz, or a data set of the Hub (--dataset_name). On one process:

    vanilla train --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \\
        --output_dir runs/mine

Model, vocabulary, updates and learning rate are then chosen from the corpus and the machine, and printed; what you give
is as you give it. With --preset, whichever, or --model everything else is that of the paper's base model: the defaults
below. On several GPUs:

    accelerate launch -m modeling_vanilla train --preset base --train_file train.jsonl --output_dir runs/mine

--output_dir then holds model/ (what from_pretrained loads), results.json, loss.png, the last checkpoints, of which
model/ is the average, and best/, the model of the best validation BLEU. After an interruption the same command with
--resume goes on from the newest checkpoint.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from accelerate import PartialState

from ..files import check_unused
from ..progress import inform
from ..training import DataOptions, ModelOptions, TrainingOptions, TranslationOptions, summary, train_translation
from ..training.data import load_pairs
from ..training.recipe import CHOSEN, choose_recipe
from ..training.resume import started_with
from ..training.run import process_group
from .parser import CommandParser, run_command


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__, (DataOptions, TrainingOptions, TranslationOptions, ModelOptions))
    parser.set_defaults(preset=None)

    def train(options: Namespace) -> None:
        given = parser.given(arguments)
        if {"preset", "model"} <= given.keys():
            raise ValueError(f"preset {options.preset}: model {options.model} has its own")
        if options.preset is None:
            options.preset = TranslationOptions.preset
        data, training, translation, model = parser.parse_dict(vars(options), allow_extra_keys=True)
        if not given.keys() & {"preset", "model"}:
            parser.set_defaults(**_recipe(data, training.output_dir, given))
            options = parser.parse_args(arguments)
            data, training, translation, model = parser.parse_dict(vars(options), allow_extra_keys=True)
        results = train_translation(data, training, translation, model.overrides())
        if PartialState().is_main_process:
            print(summary(results, training.output_dir))

    run_command(parser, train, arguments)


def _recipe(data: DataOptions, run: str, given: dict) -> dict:
    """The options that the recipe for these data has in place of the paper's, and a line that says so.

    A run that is resumed keeps those that it was started with, and nothing is chosen.
    """
    if given.get("resume"):
        settings = started_with(Path(run))
        return {name: settings[part][name] for part in ("training", "model") for name in CHOSEN & settings[part].keys()}
    check_unused("output_dir", Path(run))
    state = process_group()
    with state.main_process_first():
        pairs = load_pairs(data)
    chosen, reason = choose_recipe(pairs, given)
    if state.is_main_process:
        inform(f"{reason}\nrecipe: {' '.join(f'--{name} {value}' for name, value in chosen.items())}")
    return chosen
