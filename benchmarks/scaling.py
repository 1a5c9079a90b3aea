"""How a training step's cost grows: tokens a second over sentence length, tokens a batch and d_model.

    python benchmarks/scaling.py --output_dir runs/scaling

One of the three varies, the others stay at 32 tokens a sentence, 2048 tokens a batch and d_model 256, with 2 + 2
layers, heads of 64 numbers, d_ff four times d_model and a vocabulary of 8000. Made-up batches, forward, backward and
fused Adam; processor time, so that one thread's figure counts: OMP_NUM_THREADS=1. Beside each figure stands the
floating point operations a second, by 6 a parameter and token (the embeddings once, as the projection). Table and plot
are scaling.md and scaling.png.
"""

import argparse
import statistics
import time
from pathlib import Path

import matplotlib
import torch
from report import machine, write_table
from train_step import made_up_batch, ours

AXES = {
    "sentence length": (8, 16, 32, 64, 128, 256, 512),
    "tokens a batch": (1024, 2048, 4096, 8192, 16384),
    "d_model": (128, 256, 512, 1024),
}
MIDDLE = {"sentence length": 32, "tokens a batch": 2048, "d_model": 256}
LAYERS, VOCABULARY = 2, 8000


def measure(length: int, tokens: int, d_model: int, bf16: bool, rounds: int) -> tuple[float, float]:
    """Real tokens a second, both sides, and GFLOP a second."""
    torch.manual_seed(0)
    model, loss_of = ours(d_model, LAYERS, max(1, d_model // 64), 4 * d_model, VOCABULARY)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    batch = made_up_batch(tokens // length, length, VOCABULARY)
    real = int((batch[0] != 0).sum() + (batch[2] != 0).sum())
    seconds = []
    for _ in range(rounds + 1):
        start = time.process_time()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        seconds.append(time.process_time() - start)
    second = statistics.median(seconds[1:])  # the first sets up memory and libraries
    # Half of the tokens pass through either stack; the projection is of target tokens only.
    operations = 6 * sum(parameter.numel() for parameter in model.parameters()) * real / 2
    return real / second, operations / second / 1e9


def write_report(folder: Path, kind: str, measured: dict[str, list[tuple[int, float, float]]]) -> None:
    title = f"{kind}, {machine()}"
    rows = [(axis, x, f"{rate:.0f}", f"{work:.0f}") for axis, rows in measured.items() for x, rate, work in rows]
    write_table(folder / "scaling.md", title, ("", "tokens/s", "GFLOP/s"), rows)
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, plots = pyplot.subplots(1, len(measured), figsize=(11, 3.5), layout="constrained")
    for axes, (axis, rows) in zip(plots, measured.items(), strict=True):
        axes.semilogx([row[0] for row in rows], [row[1] for row in rows], "o-")
        axes.set(xlabel=axis, ylabel="tokens a second", ylim=(0, 1.1 * max(row[1] for row in rows)))
        axes.set_xticks([row[0] for row in rows], [str(row[0]) for row in rows], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.suptitle(title, fontsize=9)
    figure.savefig(folder / "scaling.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    arguments = parser.parse_args()
    measured = {axis: [] for axis in AXES}
    for axis, values in AXES.items():
        for value in values:
            length, tokens, d_model = {**MIDDLE, axis: value}.values()
            rate, work = measure(length, tokens, d_model, arguments.bf16, arguments.rounds)
            measured[axis].append((value, rate, work))
            print(f"{axis:16s} {value:6d} {rate:9.0f} tokens/s {work:6.0f} GFLOP/s", flush=True)
    write_report(arguments.output_dir, "bf16" if arguments.bf16 else "fp32", measured)


if __name__ == "__main__":
    main()
