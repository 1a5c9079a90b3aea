"""What the scripts of this folder share: the paper's figures, tables, pictures, and writing them."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from modeling_vanilla.files import write_json, write_text
from modeling_vanilla.visualization.attention import save_figure

PAPER = tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))


def write_results(folder: Path, name: str, numbers: dict, pictures: dict[str, Figure], table: str = "") -> None:
    """Write NAME.json, each picture by its name, and NAME.md if there is a table."""
    folder.mkdir(parents=True, exist_ok=True)
    if table:
        write_text(folder / f"{name}.md", table)
    for picture, figure in pictures.items():
        save_figure(figure, folder / f"{picture}.png")
    write_json(folder / f"{name}.json", numbers)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The rows below the head, in Markdown, with a newline at the end."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def plot_lines(axis: Axes, name: str, sizes: Sequence[int], lines: dict[str, Sequence[float]], colours: Sequence[str]):
    """Draw lines over sizes, which get a logarithmic axis of that name, with a tick at each."""
    for (label, values), colour in zip(lines.items(), colours, strict=True):
        axis.plot(sizes, values, ".-", label=label, color=colour)
    axis.set(xlabel=name, xscale="log")
    axis.set_xticks(sizes, sizes)
    axis.set_xticks([], minor=True)
    axis.legend(fontsize=7)
