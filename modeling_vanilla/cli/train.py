"""Train a translation model on your own sentence pairs, with the recipe of the paper.

The data are JSON lines {"translation": {"en": "...", "de": "..."}} (--train_file), two text files line by line
(--train_source, --train_target), plain or .gz, or a data set of the Hub (--dataset_name). On one process:

    python examples/train_translation.py --preset tiny --train_file train.jsonl --validation_file validation.jsonl \\
        --test_file test.jsonl --output_dir runs/mine

On several GPUs the same with `accelerate launch` in place of `python`. Leaves in --output_dir: model/ (what
from_pretrained loads), results.json, loss.png and the last checkpoints.
"""

import json

from accelerate import PartialState
from transformers import HfArgumentParser

from ..io import one_line_errors
from ..training import (
    DataOptions,
    ModelOptions,
    TrainingOptions,
    TranslationOptions,
    train_translation,
)


def main() -> None:
    parser = HfArgumentParser((DataOptions, TrainingOptions, TranslationOptions, ModelOptions), description=__doc__)
    with one_line_errors():
        data, training, options, model = parser.parse_args_into_dataclasses()
        results = train_translation(data, training, options, model.overrides())
        if not PartialState().is_main_process:
            return
        left = {name: value for name, value in results.items() if name not in ("settings", "versions")}
        print(json.dumps(left, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
