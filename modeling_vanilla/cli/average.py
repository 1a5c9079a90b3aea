"""Average checkpoints into a model, as section 6.1 does: the last 5 of the base model, the last 20 of the big one.

    python examples/average_checkpoints.py runs/mine averaged --last 5
    python examples/average_checkpoints.py runs/mine/checkpoint-800 runs/mine/checkpoint-900 averaged

SRC is with --last the folder of a run of train_translation.py, which keeps as many checkpoints as --keep_checkpoints
says. Without, each SRC is a checkpoint, or a model folder with its tokenizer; all must be of the same shapes and the
same vocabulary. DST, which must be new or empty, appears only once it is complete: a folder that from_pretrained and
pipeline("translation") load, with the configuration, generation configuration and tokenizer of the last SRC.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer
from transformers.utils import logging

from ..inference import load_translator
from ..io import check_unused, one_line_errors, whole_folder
from ..training.checkpoints import average_checkpoints, list_checkpoints, save_model


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", type=Path, metavar="SRC", help="a checkpoint; with --last, a run")
    parser.add_argument("destination", type=Path, metavar="DST", help="the folder to write, which must be new or empty")
    parser.add_argument("--last", type=int, metavar="N", help="average the last N checkpoints of the run SRC")
    options = parser.parse_args(arguments)
    logging.disable_progress_bar()
    with one_line_errors():
        checkpoints = options.sources if options.last is None else last_checkpoints(options.sources, options.last)
        average(checkpoints, options.destination)
        print(f"{options.destination} is written, the mean of {', '.join(map(str, checkpoints))}")


def last_checkpoints(runs: list[Path], last: int) -> list[Path]:
    """The `last` checkpoints of one run, oldest first.

    Raises:
        ValueError: if that are not one run and at least one checkpoint, or the run has fewer.
    """
    if last < 1:
        raise ValueError(f"last must be at least 1, not {last}")
    if len(runs) > 1:
        raise ValueError(f"last: of one run, not of {len(runs)}: {', '.join(map(str, runs))}")
    found = list_checkpoints(runs[0])
    if len(found) < last:
        raise ValueError(f"{runs[0]}: has {len(found)} checkpoints, not {last}")
    return found[-last:]


def average(checkpoints: Sequence[Path], destination: Path) -> None:
    """Write the mean of the checkpoints' weights to `destination`, with all else of the last one.

    Raises:
        ValueError: if `destination` holds something, a checkpoint cannot be read, or they do not fit together.
        OSError: if `destination` cannot be written.
    """
    check_unused("destination", destination)
    weights = average_checkpoints(checkpoints)
    check_vocabularies(checkpoints)
    model, tokenizer = load_translator(checkpoints[-1:], dtype=next(iter(weights.values())).dtype)
    with whole_folder(destination) as part:
        save_model(model, tokenizer, part, weights)


def check_vocabularies(checkpoints: Sequence[Path]) -> None:
    """Raise ValueError unless every checkpoint has a tokenizer, and all the same vocabulary."""
    first = None
    for checkpoint in checkpoints:
        if not (checkpoint / "tokenizer_config.json").is_file():
            raise ValueError(f"{checkpoint}: no tokenizer, as it has no tokenizer_config.json")
        vocabulary = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True).get_vocab()
        first = first or vocabulary
        if vocabulary != first:
            raise ValueError(f"{checkpoint}: its vocabulary is another than that of {checkpoints[0]}")


if __name__ == "__main__":
    main()
