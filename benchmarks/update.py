"""Whole updates of the recipe for a corpus: tokens a second with what makes them faster, and without each.

    OMP_NUM_THREADS=1 python benchmarks/update.py --train_source train.en --train_target train.de

The files, and the other options for data, are those of `vanilla train`. Each variant takes turns of ten updates in one
process, with all pairs in the recipe's order; the table has the tokens of both sides a second, the median of the
rounds, and how much faster an update is with all of it. The clock is the processor's on one thread, else the wall's.
"""

import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from tempfile import TemporaryDirectory

import common
import torch
from torch import Tensor
from transformers import set_seed

from modeling_vanilla.cli.parser import CommandParser
from modeling_vanilla.corpus.data import load_pairs
from modeling_vanilla.corpus.tokenized import tokenize_training_pairs
from modeling_vanilla.errors import one_line_errors
from modeling_vanilla.training import DataOptions, muon
from modeling_vanilla.training.model import make_model, make_tokenizer
from modeling_vanilla.training.options import ModelOptions, TrainingOptions
from modeling_vanilla.training.recipe import RunOptions, complete_options
from modeling_vanilla.training.run import prepare
from modeling_vanilla.training.train import read_updates, take_update

UPDATES = 10  # of a turn
stacked = muon.orthogonal


def matrix_by_matrix(x: Tensor) -> Tensor:
    """Muon's products without stacks, in 32 bits."""
    with torch.autocast(x.device.type, enabled=False):
        return torch.cat([stacked(matrix[None]) for matrix in x])


# The options that are changed, and Muon's products.
VARIANTS: dict[str, tuple[dict, Callable]] = {
    "nothing": ({}, stacked),
    "joined batches": ({"join_batches": False}, stacked),
    "stacked matrices": ({}, matrix_by_matrix),
    "both": ({"join_batches": False}, matrix_by_matrix),
}


def measure(data: DataOptions, options: Namespace, folder: str) -> None:
    pairs = load_pairs(data)
    chosen = complete_options(pairs, data, RunOptions(TrainingOptions(folder), ModelOptions(protect="none"), {}))
    tokenizer = make_tokenizer(None, chosen.model, chosen.overrides, pairs["train"])
    corpus = tokenize_training_pairs(pairs["train"], tokenizer, data)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def make_turn(changed: dict, orthogonal: Callable) -> Callable[[], float]:
        set_seed(0)
        model = make_model(None, chosen.model, chosen.overrides, tokenizer)
        state = prepare(model, tokenizer, replace(chosen.training, **changed))
        updates = read_updates(state, corpus)

        def turn() -> float:
            muon.orthogonal, tokens, start = orthogonal, 0, clock()
            for _ in range(UPDATES):
                update = next(updates)
                take_update(state, state.model, update)
                tokens += update.tokens
            return tokens / (clock() - start)

        return turn

    rates = common.take_turns({name: make_turn(*variant) for name, variant in VARIANTS.items()}, options.rounds)
    print(f"{common.machine()}\n{chosen.reason}")
    rows = [
        (name, common.with_range(rate), f"{common.median_ratio(rates['nothing'], rate):.2f}")
        for name, rate in rates.items()
    ]
    print(common.table(("without", "tokens/s, median (range)", "with all, times as fast"), rows))


if __name__ == "__main__":
    parser = CommandParser(__doc__, (DataOptions,))
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    given = vars(parser.parse_args())
    rounds = Namespace(rounds=given.pop("rounds"))
    with one_line_errors(), TemporaryDirectory() as folder:
        measure(*parser.parse_dict(given), rounds, folder)
