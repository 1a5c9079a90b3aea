"""Cores that are shared: training and translation with threads that wait spinning or asleep, quiet and beside others.

    python benchmarks/shared_cores.py
    python benchmarks/shared_cores.py --dims base --bf16

Two threads by OpenMP's own default, which spins long, two that soon sleep (GOMP_SPINCOUNT=3000, as the package sets
it), two that sleep at once (GOMP_SPINCOUNT=0), and one, each in a process of its own. They take turns, first
quiet and then beside --busy processes that never rest. The figures are made-up tokens a second by the clock, the
median of the rounds: of both sides of training steps, and of the output of a beam search with random weights. The
table takes some four minutes of two cores.
"""

import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import common
import torch
from train_step import made_up_batch, ours, real_tokens, training_step

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.training.cpu_memory import keep_freed_memory

# GNU's OpenMP knows no word for its default: it spins 300000 times, then sleeps.
WAYS = {"two, spinning": ("2", "300000"), "two, soon asleep": ("2", "3000"), "two, asleep": ("2", "0")}
WAYS |= {"one": ("1", "0")}
SENTENCES, NEW_TOKENS, LENGTH = 32, 24, 20


def make_work(options: Namespace) -> Callable[[], list[float]]:
    """A function that trains, then translates, each for some seconds, and returns tokens a second of both."""
    keep_freed_memory()
    dims = common.DIMS[options.dims]
    train = training_step("ours", dims, options.bf16)
    batch = made_up_batch(options.tokens // LENGTH, LENGTH, dims[-1])
    model, _ = ours(*dims)
    model.eval().to(torch.bfloat16 if options.bf16 else torch.float32)
    search = {"num_beams": 4, "do_sample": False, "max_new_tokens": NEW_TOKENS}
    translate = partial(model.generate, input_ids=torch.randint(4, dims[-1], (SENTENCES, LENGTH)), **search)

    def rate(step: Callable[[], object], tokens: int) -> float:
        start, done = time.perf_counter(), 0
        while (seconds := time.perf_counter() - start) < options.seconds:
            step()
            done += tokens
        return done / seconds

    return lambda: [rate(partial(train, batch), real_tokens(batch)), rate(translate, SENTENCES * NEW_TOKENS)]


def take_turn(way: str, busy: int, run: Callable[[], list[float]]) -> list[float]:
    """What `run` returns beside so many busy processes. Its own starts at its first turn, with the way's variables."""
    threads, spins = WAYS[way]
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        with patch.dict(os.environ, {"OMP_NUM_THREADS": threads, "GOMP_SPINCOUNT": spins}):
            return run()
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(options: Namespace) -> None:
    print(common.machine())
    runs, loads = {way: common.in_own_process(make_work, options) for way in WAYS}, (0, options.busy)
    turns = {(way, busy): partial(take_turn, way, busy, run) for busy in loads for way, run in runs.items()}
    found = common.take_turns(turns, options.rounds)
    rows = []
    for index, what in enumerate(("training", "translation")):
        for way in WAYS:
            row = [what, way]
            for busy in loads:
                rates, one = ([both[index] for both in found[each, busy]] for each in (way, "one"))
                row += [common.with_range(rates), f"{common.median_ratio(rates, one):.2f}"]
            rows.append(row)
    print(common.table((options.dims, "threads", "quiet", "to one", f"beside {options.busy}", "to one"), rows))


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("--dims", choices=common.DIMS, default="tiny", help="of the model")
    parser.add_argument("--tokens", type=int, default=1024, help="of a training batch on either side")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16, and translation by weights in it")
    parser.add_argument("--busy", type=int, default=1, help="other processes that are busy")
    parser.add_argument("--seconds", type=float, default=2.0, help="of either work in a turn, at least")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count")
    run_command(parser, measure)
