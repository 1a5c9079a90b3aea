"""How a training step's cost grows: tokens a second and memory over sentence length, tokens a batch and d_model.

    python benchmarks/scaling.py --output_dir runs/scaling

One of the three varies, the others stay at 32 tokens a sentence, 2048 tokens a batch and d_model 256, with 2 + 2
layers, heads of 64 numbers, d_ff four times d_model and a vocabulary of 8000. Made-up batches, forward, backward and
fused Adam, each size in a process of its own, the median of three rounds; processor time, so that one thread's figure
counts: OMP_NUM_THREADS=1. Beside each figure stand the floating point operations a second, by 3 a parameter and token
of either side (the embeddings once, as the projection; without attention's own products), and the memory at the peak
above the model and the libraries. Table and plot are scaling.md and scaling.png.
"""

import statistics
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

from common import in_own_process, machine, peak_gib, save, table, take_turns, timed
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


def measure(length: int, tokens: int, d_model: int, bf16: bool) -> tuple[float, float, float]:
    """Real tokens a second, both sides, GFLOP a second, and GiB."""
    dims = (d_model, LAYERS, max(1, d_model // 64), 4 * d_model, VOCABULARY)
    step, held = training_step("ours", dims, bf16), peak_gib()
    batch = made_up_batch(tokens // length, length, VOCABULARY)
    turns = take_turns({"ours": partial(timed, partial(step, batch), time.process_time)}, rounds=3)
    rate = real_tokens(batch) / statistics.median(seconds for seconds, _ in turns["ours"])
    return rate, rate * training_operations(dims) / 1e9, peak_gib() - held


def plot(measured: dict[str, list[tuple[int, float, float]]]) -> Figure:
    figure = Figure(figsize=(11, 6), layout="constrained")
    for column, (axis, points) in zip(figure.subplots(2, len(measured)).T, measured.items(), strict=True):
        values, *measures = zip(*points, strict=True)
        for axes, found, name in zip(column, measures, ("tokens a second", "GiB"), strict=True):
            axes.semilogx(values, found, "o-")
            axes.set(xlabel=axis, ylabel=name, ylim=(0, 1.1 * max(found)))
            axes.set_xticks(values, list(map(str, values)))
            axes.minorticks_off()
            axes.grid(alpha=0.3)
    return figure


def scale(options: Namespace) -> None:
    measured, rows = {axis: [] for axis in AXES}, []
    for axis, values in AXES.items():
        for value in values:
            sizes = {**MIDDLE, axis: value}
            rate, work, memory = in_own_process(partial, measure, *sizes.values(), options.bf16)()
            measured[axis].append((value, rate, memory))
            rows.append((axis, value, f"{rate:.0f}", f"{work:.0f}", f"{memory:.2f}"))
            print(*rows[-1], sep="\t", flush=True)
    title = f"{'bf16' if options.bf16 else 'fp32'}, {machine()}"
    text = table(("", "", "tokens/s", "GFLOP/s", "GiB"), rows)
    save(options.output_dir / "scaling", title, text, plot(measured))


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("--output_dir", type=Path, required=True, help="a folder for scaling.md and scaling.png")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    run_command(parser, scale)
