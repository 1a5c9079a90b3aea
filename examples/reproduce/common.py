"""What the scripts of this folder share: running a measurement, checking its sizes, what a run began with, tables."""

import hashlib
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_json, write_json, write_text
from modeling_vanilla.training.cpu_memory import keep_freed_memory
from modeling_vanilla.visualization.attention import save_figure

PAPER = tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))
COLOURS = [f"C{number}" for number in range(10)]  # matplotlib's


def run_script(name: str, options_class: type, description: str, measure: Callable[..., tuple]) -> None:
    """The main() of a script that measures.

    Args:
        name: of the file of numbers, NAME.json.
        options_class: a dataclass with at least output_dir and seed.
        measure: gives the numbers, the pictures by name and the text of NAME.md, "" for none, of these options.
    """
    parser = CommandParser(description, (options_class,))

    def run(given: Namespace) -> None:
        keep_freed_memory()  # or the time to clear new pages would be measured at large sizes
        (options,) = parser.parse_dict(vars(given), allow_extra_keys=True)
        folder = Path(options.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(options.seed)
        numbers, pictures, table = measure(options)
        settings = {"settings": asdict(options), "torch": torch.__version__}
        write_results(folder, name, settings | numbers, pictures, table)

    run_command(parser, run)


def write_results(folder: Path, name: str, numbers: dict, pictures: dict[str, Figure], table: str) -> None:
    """Write NAME.json, each picture by its name, and NAME.md if there is a table."""
    folder.mkdir(parents=True, exist_ok=True)
    if table:
        write_text(folder / f"{name}.md", table)
    for picture, figure in pictures.items():
        save_figure(figure, folder / f"{picture}.png")
    write_json(folder / f"{name}.json", numbers)


def check_least(options: object, least: dict[str, int]) -> None:
    """Raise ValueError if an option, or an element of a list, is below its least value, given by name."""
    for name, bound in least.items():
        value = getattr(options, name)
        for number in value if isinstance(value, list) else [value]:
            if number < bound:
                raise ValueError(f"{name} must be at least {bound}, not {number}")


def sort_sizes(options: object, *names: str) -> None:
    """Sort the lists of sizes of these names, each size once.

    Raises:
        ValueError: if a list has fewer than two different sizes.
    """
    for name in names:
        sizes = sorted(set(getattr(options, name)))
        if len(sizes) < 2:
            raise ValueError(f"{name}: an exponent needs two different sizes, not {getattr(options, name)}")
        setattr(options, name, sizes)


def digest(texts: Iterable[str]) -> str:
    """A short hash of texts, by which a run knows its data again."""
    result = hashlib.sha256()
    for text in texts:
        result.update(text.encode())
    return result.hexdigest()[:16]


def check_settings(path: Path, settings: dict, complaint: str) -> None:
    """Raise ValueError if the settings that a run began with, in the file at `path`, are others."""
    before = read_json(path)
    for name, now in settings.items():
        if before.get(name) != now:
            raise ValueError(f"{complaint} {name} {before.get(name)}, not {now}")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The rows below the head, in Markdown, with a newline at the end."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def plot_lines(
    axis: Axes, name: str, sizes: Sequence[int], lines: dict[str, Sequence[float]], colours: Sequence[str] = COLOURS
) -> None:
    """Draw lines over sizes, which get a logarithmic axis of that name, with a tick at each."""
    for (label, values), colour in zip(lines.items(), colours, strict=False):
        axis.plot(sizes, values, ".-", label=label, color=colour)
    axis.set(xlabel=name, xscale="log")
    axis.set_xticks(sizes, sizes)
    axis.set_xticks([], minor=True)
    axis.legend(fontsize=7)
