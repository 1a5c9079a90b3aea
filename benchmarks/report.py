"""What the benchmarks share: the machine that a figure belongs to, and a table and a plot of what was measured."""

import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import torch


def machine(device: str = "cpu", threads: int | None = None) -> str:
    """The chip, threads and versions that a figure belongs to."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.machine()
    return f"{name}, threads: {threads or torch.get_num_threads()}, torch {torch.__version__}"


def with_range(measured: Sequence[float], digits: int = 0) -> str:
    """Median, least and most."""
    numbers = (statistics.median(measured), min(measured), max(measured))
    median, least, most = (f"{number:.{digits}f}" for number in numbers)
    return f"{median} ({least} to {most})"


def write_table(path: Path, title: str, columns: Sequence[str], rows: Sequence[Sequence], note: str = "") -> None:
    """A table in Markdown below its title; the first column has no name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [title, "", *("| " + " | ".join(map(str, row)) + " |" for row in (["", *columns], *rows))]
    lines.insert(3, "|---" * (len(columns) + 1) + "|")
    path.write_text("\n".join(lines + ["", note] * bool(note)) + "\n", encoding="utf-8")


def draw_bars(path: Path, title: str, bars: dict[str, float], unit: str) -> None:
    """A bar for each system, the first on top."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 1 + len(bars) / 2), layout="constrained")
    drawn = axes.barh(list(bars), list(bars.values()))
    axes.bar_label(drawn, fmt="%.0f", padding=3)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.set(xlabel=unit)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=150)
