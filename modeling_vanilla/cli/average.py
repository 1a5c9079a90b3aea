"""Average checkpoints into a model, as section 6.1 does: the last 5 of the base model, the last 20 of the big one.

    vanilla average runs/mine averaged --last 5
    vanilla average runs/mine/checkpoint-800 runs/mine/checkpoint-900 averaged

With --last, SRC is the output folder of `vanilla train`, which keeps as many checkpoints as --keep_checkpoints says; if
there are fewer than N, all are averaged. Without, each SRC is a checkpoint, or a model with its
tokenizer, a folder or a name on the Hub; all must have the same shapes and the same vocabulary. DST, which must be new
or empty, appears only once it is complete: a folder that from_pretrained and pipeline("translation") load, with the
configuration, generation configuration and tokenizer of the last SRC.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from ..inference.averaging import write_average
from ..loading import model_folder
from ..training.checkpoints import list_checkpoints
from .parser import CommandParser, run_command


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("sources", nargs="+", metavar="SRC", help="a checkpoint or model; with --last, a run")
    parser.add_argument("destination", type=Path, metavar="DST", help="the folder to write, which must be new or empty")
    parser.add_argument("--last", type=int, metavar="N", help="average the last N checkpoints of the run SRC")
    run_command(parser, average, arguments)


def average(options: Namespace) -> None:
    checkpoints = [model_folder(source) for source in options.sources]
    if options.last is not None:
        if options.last < 1 or len(checkpoints) > 1:
            raise ValueError(f"last {options.last}: must be at least 1, and of one run, not of {len(checkpoints)}")
        checkpoints = list_checkpoints(checkpoints[0])[-options.last :]
        if not checkpoints:
            raise ValueError(f"{options.sources[0]}: has no checkpoints")
    write_average(checkpoints, options.destination)
    print(f"{options.destination} is written, the mean of {', '.join(map(str, checkpoints))}")
