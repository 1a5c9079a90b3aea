"""Train a translation model on your own sentence pairs.

The data are JSON lines {"en": "...", "de": "..."}, .tsv or .csv (--train_file), two text files line by line
(--train_source, --train_target), plain or .gz, or a data set of the Hub (--dataset_name). On one process:

    vanilla train --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \\
        --output_dir runs/mine

Model, vocabulary, updates and learning rate are then chosen from the corpus and the machine, and printed; what you give
is as you give it. With --preset, whichever, or --model everything else is the paper's: the defaults below. On several
GPUs:

    accelerate launch -m modeling_vanilla train --preset base --train_file train.jsonl --output_dir runs/mine

--output_dir then holds model/ (what from_pretrained loads), results.json, loss.png, the last checkpoints, of which
model/ is the average, and best/, the model of the best validation BLEU. After an interruption the same command with
--resume goes on from the newest checkpoint.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from accelerate import PartialState

from ..io import check_unused
from ..progress import inform
from ..training import DataOptions, ModelOptions, TrainingOptions, TranslationOptions, summary, train_translation
from ..training.reading import load_pairs
from ..training.recipe import choose_recipe
from ..training.resume import started_with
from ..training.translation import process_group
from .parser import CommandParser, run_command


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__, (DataOptions, TrainingOptions, TranslationOptions, ModelOptions))
    parser.set_defaults(preset=None)

    def train(options: Namespace) -> None:
        given = parser.given(arguments)
        options.preset = options.preset or TranslationOptions.preset
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

    A run that is resumed keeps those that it was started with.
    """
    state = process_group()
    before = started_with(Path(run)) if given.get("resume") else {}
    if not before:
        check_unused("output_dir", Path(run))
    with state.main_process_first():
        pairs = load_pairs(data)
    chosen, reason = choose_recipe(pairs, given)
    for part in ("training", "model"):
        chosen |= {name: value for name, value in before.get(part, {}).items() if name in chosen}
    if state.is_main_process:
        inform(f"{reason}\nrecipe: {' '.join(f'--{name} {value}' for name, value in chosen.items())}")
    return chosen
