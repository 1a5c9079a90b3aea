"""How a training step's cost grows: tokens a second over sentence length, tokens a batch and d_model.

    python benchmarks/scaling.py --output_dir runs/scaling

One of the three varies, the others stay at 32 tokens a sentence, 2048 tokens a batch and d_model 256, with 2 + 2
layers, heads of 64 numbers, d_ff four times d_model and a vocabulary of 8000. Made-up batches, forward, backward and
fused Adam, the median of three rounds; processor time, so that one thread's figure counts: OMP_NUM_THREADS=1. Beside
each figure stands the floating point operations a second, by 3 a parameter and token of either side (the embeddings
once, as the projection; without attention's own products). Table and plot are scaling.md and scaling.png.
"""

import statistics
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

from common import machine, save, table, take_turns, timed
from matplotlib.figure import Figure
from train_step import made_up_batch, real_tokens, training_operations, training_step

from modeling_vanilla.cli.parser import CommandParser, run_command

AXES = {
    "sentence length": (8, 16, 32, 64, 128, 256, 512),
    "tokens a batch": (1024, 2048, 4096, 8192, 16384),
    "d_model": (128, 256, 512, 1024),
}
MIDDLE = {"sentence length": 32, "tokens a batch": 2048, "d_model": 256}
LAYERS, VOCABULARY = 2, 8000


def measure(length: int, tokens: int, d_model: int, bf16: bool) -> tuple[float, float]:
    """Real tokens a second, both sides, and GFLOP a second."""
    dims = (d_model, LAYERS, max(1, d_model // 64), 4 * d_model, VOCABULARY)
    step = training_step("ours", dims, bf16)
    batch = made_up_batch(tokens // length, length, VOCABULARY)
    turns = take_turns({"ours": partial(timed, partial(step, batch), time.process_time)}, rounds=3)
    rate = real_tokens(batch) / statistics.median(seconds for seconds, _ in turns["ours"])
    return rate, rate * training_operations(dims) / 1e9


def plot(measured: dict[str, list[tuple[int, float]]]) -> Figure:
    figure = Figure(figsize=(11, 3.5), layout="constrained")
    for axes, (axis, points) in zip(figure.subplots(1, len(measured)), measured.items(), strict=True):
        values, rates = zip(*points, strict=True)
        axes.semilogx(values, rates, "o-")
        axes.set(xlabel=axis, ylabel="tokens a second", ylim=(0, 1.1 * max(rates)))
        axes.set_xticks(values, list(map(str, values)))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    return figure


def scale(options: Namespace) -> None:
    measured, rows = {axis: [] for axis in AXES}, []
    for axis, values in AXES.items():
        for value in values:
            sizes = {**MIDDLE, axis: value}
            rate, work = measure(*sizes.values(), options.bf16)
            measured[axis].append((value, rate))
            rows.append((axis, value, f"{rate:.0f}", f"{work:.0f}"))
            print(*rows[-1], sep="\t", flush=True)
    title = f"{'bf16' if options.bf16 else 'fp32'}, {machine()}"
    save(options.output_dir / "scaling", title, table(("", "", "tokens/s", "GFLOP/s"), rows), plot(measured))


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("--output_dir", type=Path, required=True, help="a folder for scaling.md and scaling.png")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    run_command(parser, scale)
