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

from argparse import Namespace
from collections.abc import Sequence

from ..options import DataOptions, ModelOptions, TrainingOptions, TranslationOptions
from .parser import CommandParser, run_command


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__, (DataOptions, TranslationOptions, TrainingOptions, ModelOptions))

    def train(given: Namespace) -> None:
        from accelerate import PartialState

        from ..training import summary, train_translation

        data, options, training, model = parser.parse_dict(vars(given), allow_extra_keys=True)
        results = train_translation(data, training, options, model.overrides())
        if PartialState().is_main_process:
            print(summary(results, training.output_dir))

    run_command(parser, train, arguments)
