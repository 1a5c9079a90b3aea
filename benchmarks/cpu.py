"""What is there only because a CPU trains faster that way: a training step with all of it, and without each.

    OMP_NUM_THREADS=1 python benchmarks/cpu.py
    OMP_NUM_THREADS=1 python benchmarks/cpu.py --dims base --float32 --rounds 3
    OMP_NUM_THREADS=2 python benchmarks/cpu.py --busy 1  # beside a process that never rests

Each variant is a process of its own, which take turns; the table has real tokens a second, the median of the rounds,
and how much faster the step is with all of it. "short spins" is OpenMP's own default, by which a waiting thread spins
300000 times where the command has 3000; "spins" is without any: both count where there are several threads. "kernels"
is oneDNN's cache of compiled kernels left as it is: it saves memory above all, and is measured, as the others, on
batches of always new shapes, with the peak of the process beside it.
"""

import os
import random
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable

import common
from torch import nn
from train_step import made_up_batch, real_tokens, training_step

from modeling_vanilla import attention_vanilla, layers_vanilla, loss_vanilla, modeling_vanilla
from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.training.device import bound_kernel_caches, keep_freed_memory

STEPS = 10  # of a turn


def use_torchs_dropout() -> None:
    layers_vanilla.Dropout = modeling_vanilla.Dropout = nn.Dropout


def use_the_fused_kernel() -> None:
    attention_vanilla.eager_is_faster = lambda query, key: False


def use_log_softmax() -> None:
    loss_vanilla.softmax_in_one_pass = lambda z, h, w, y: loss_vanilla.softmax(z, y)


SPINS = {"short spins": "300000", "spins": "0"}  # of other variants 3000, as vanilla_command.py sets it
# What is changed before the model is made, and which of the process's two settings are left out.
VARIANTS: dict[str, tuple[list[Callable], set[Callable]]] = {
    "nothing": ([], set()),
    "dropout": ([use_torchs_dropout], set()),
    "attention": ([use_the_fused_kernel], set()),
    "loss": ([use_log_softmax], set()),
    **{name: ([], set()) for name in SPINS},
    "freed memory": ([], {keep_freed_memory}),
    "kernels": ([], {bound_kernel_caches}),
}
VARIANTS["none"] = (
    [use_torchs_dropout, use_the_fused_kernel, use_log_softmax],
    {keep_freed_memory, bound_kernel_caches},
)


def make_turn(name: str, options: Namespace) -> Callable[[], tuple[float, float]]:
    """A function that takes STEPS steps, and returns real tokens a second and the peak memory so far, in GiB."""
    changes, left_out = VARIANTS[name]
    for change in changes:
        change()
    for setting in {keep_freed_memory, bound_kernel_caches} - left_out:
        setting()
    dims = common.DIMS[options.dims]
    step, rng = training_step("ours", dims, not options.float32), random.Random(0)

    def turn() -> tuple[float, float]:
        real, seconds = 0, 0.0
        for _ in range(STEPS):
            longest = rng.randint(8, 40)
            batch = made_up_batch(max(1, options.tokens // longest - rng.randint(0, 8)), longest, dims[-1])
            seconds += common.timed(lambda batch=batch: step(batch))[0]
            real += real_tokens(batch)
        return real / seconds, common.peak_gib()

    return turn


def start(name: str, options: Namespace) -> Callable:
    """The turns of a process of its own, which starts with the variant's OpenMP."""
    run = common.in_own_process(make_turn, name, options)

    def turn() -> object:
        os.environ["GOMP_SPINCOUNT"] = SPINS.get(name, "3000")
        return run()

    return turn


def measure(options: Namespace) -> None:
    print(common.machine())
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    rates, peaks = {}, {}
    try:
        found = common.take_turns({name: start(name, options) for name in VARIANTS}, options.rounds)
    finally:
        for other in others:
            other.kill()
            other.wait()
    for name, measured in found.items():
        rates[name], peaks[name] = zip(*measured, strict=True)
    rows = [
        (
            name,
            common.with_range(found),
            f"{common.median_ratio(rates['nothing'], found):.2f}",
            f"{peaks[name][-1]:.2f}",
        )
        for name, found in rates.items()
    ]
    print(common.table(("without", "tokens/s, median (range)", "with all, times as fast", "GiB"), rows))


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("--dims", choices=common.DIMS, default="tiny", help="of the model")
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch on either side")
    parser.add_argument("--float32", action="store_true", help="32 bits instead of autocast to bfloat16")
    parser.add_argument("--busy", type=int, default=0, help="other processes that are busy")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    run_command(parser, measure)
