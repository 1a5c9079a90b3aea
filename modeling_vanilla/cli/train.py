"""Train a translation model on your own sentence pairs.

The data are JSON lines {"en": "...", "de": "..."}, .tsv or .csv (--train_file), two text files line by line
(--train_source, --train_target), plain or .gz, or a data set of the Hub (--dataset_name). On one process:

    vanilla train --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \\
        --output_dir runs/mine

Model, vocabulary, updates and learning rate are then chosen from the corpus and the machine, and printed; what you give
is as you give it. With --preset, whichever, or --model everything else is the paper's. On several GPUs:

    accelerate launch -m modeling_vanilla train --preset base --train_file train.jsonl --output_dir runs/mine

--output_dir then holds model/ (what from_pretrained loads), results.json, loss.png, the last checkpoints, of which
model/ is the average, and best/, the model of the best validation BLEU. After an interruption the same command with
--resume goes on from the newest checkpoint.
"""

from argparse import Namespace
from collections.abc import Sequence

from accelerate import PartialState

from ..progress import inform
from ..training import DataOptions, ModelOptions, TrainingOptions, TranslationOptions, summary, train_translation
from ..training.reading import load_pairs
from ..training.recipe import choose_recipe
from ..training.translation import process_group
from .parser import CommandParser, run_command


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__, (DataOptions, TrainingOptions, TranslationOptions, ModelOptions))
    parser.set_defaults(preset=None)

    def train(options: Namespace) -> None:
        data, training, translation, model = parser.parse_dict(vars(options), allow_extra_keys=True)
        given = parser.given(arguments)
        if not given.keys() & {"preset", "model"}:
            parser.set_defaults(**_recipe(data, given))
            options = parser.parse_args(arguments)
            data, training, translation, model = parser.parse_dict(vars(options), allow_extra_keys=True)
        results = train_translation(data, training, translation, model.overrides())
        if PartialState().is_main_process:
            print(summary(results, training.output_dir))

    run_command(parser, train, arguments)


def _recipe(data: DataOptions, given: dict) -> dict:
    """The options that the recipe for these data has in place of the paper's, and a line that says so."""
    state = process_group()
    with state.main_process_first():
        pairs = load_pairs(data)
    recipe, reason = choose_recipe(pairs, given.get("max_steps"))
    chosen = {name: value for name, value in recipe.items() if name not in given}
    if "tokenizer" in given:
        chosen.pop("vocab_size", None)
    if state.is_main_process:
        inform(f"{reason}\nrecipe: {' '.join(f'--{name} {value}' for name, value in chosen.items())}")
    return chosen
