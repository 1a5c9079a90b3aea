"""Cores that are shared: training and translation with threads that wait spinning or asleep, quiet and beside others.

    python benchmarks/shared_cores.py
    python benchmarks/shared_cores.py --dims base --tokens 1024 --bf16

Two threads by OpenMP's own default, which spins long, two that soon sleep (GOMP_SPINCOUNT=3000, as the package sets
it), two that sleep at once (OMP_WAIT_POLICY=PASSIVE), and one, each in a process of its own. They take turns, first
quiet and then beside --busy processes that never rest. The figures are made-up tokens a second by the clock, the
median of the rounds: of both sides of training steps, and of the output of a beam search with random weights.
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


def make_work(what: str, options: Namespace) -> Callable[[], float]:
    """A function that trains or translates for some seconds, and returns tokens a second."""
    keep_freed_memory()
    dims = common.DIMS[options.dims]
    torch.manual_seed(0)
    if what == "training":
        step = training_step("ours", dims, "autocast" if options.bf16 else None)
        batch = made_up_batch(options.tokens // LENGTH, LENGTH, dims[-1])
        tokens = real_tokens(batch)
    else:
        model, _ = ours(*dims)
        model.eval().to(torch.bfloat16 if options.bf16 else torch.float32)
        batch, tokens = torch.randint(4, dims[-1], (SENTENCES, LENGTH)), SENTENCES * NEW_TOKENS

        def step(ids: torch.Tensor) -> None:
            model.generate(input_ids=ids, num_beams=4, do_sample=False, max_new_tokens=NEW_TOKENS)

    def run() -> float:
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < options.seconds:
            step(batch)
            done += tokens
        return done / (time.perf_counter() - start)

    return run


def in_way(way: str, what: str, options: Namespace) -> Callable[[], float]:
    """The work in a process that is started, at its first turn, with the variables of the way."""
    threads, spins = WAYS[way]
    told = {"OMP_NUM_THREADS": threads, "GOMP_SPINCOUNT": spins}
    turn = common.in_own_process(make_work, what, options)

    def run() -> float:
        with patch.dict(os.environ, told):
            return turn()

    return run


def beside_others(run: Callable[[], float], count: int) -> float:
    """What `run` returns while so many other processes are busy."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        return run()
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(options: Namespace) -> None:
    print(common.machine())
    runs = {(what, way): in_way(way, what, options) for what in ("training", "translation") for way in WAYS}
    busy = {(*names, "busy"): partial(beside_others, run, options.busy) for names, run in runs.items()}
    found = common.take_turns(runs | busy, options.rounds)
    rows = []
    for what, way in runs:
        columns = []
        for load in ((), ("busy",)):
            rates, one = found[what, way, *load], found[what, "one", *load]
            columns += [common.with_range(rates), f"{common.median_ratio(rates, one):.2f}"]
        rows.append((what, way, *columns))
    print(common.table((options.dims, "threads", "quiet", "to one", f"beside {options.busy}", "to one"), rows))


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("--dims", choices=common.DIMS, default="tiny", help="of the model")
    parser.add_argument("--tokens", type=int, default=4096, help="of a training batch on either side")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16, and translation by weights in it")
    parser.add_argument("--busy", type=int, default=1, help="other processes that are busy")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn, at least")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    run_command(parser, measure)
