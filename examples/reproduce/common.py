"""What the scripts of this folder share: running a measurement, checking its sizes, Markdown tables, ticks of axes."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from matplotlib.axes import Axes

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import write_json
from modeling_vanilla.training.cpu_memory import keep_freed_memory


def run_script(name: str, options_class: type, description: str, measure: Callable[..., dict]) -> None:
    """The main() of a script that measures.

    Args:
        name: of the file of numbers, NAME.json.
        options_class: a dataclass with at least output_dir and seed.
        measure: measure(options, folder) writes tables and pictures to the folder and returns the numbers.
    """
    parser = CommandParser(description, (options_class,))

    def run(given: Namespace) -> None:
        keep_freed_memory()  # or the time to clear new pages would be measured at large sizes
        (options,) = parser.parse_dict(vars(given), allow_extra_keys=True)
        folder = Path(options.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(options.seed)
        results = {"settings": asdict(options), "torch": torch.__version__, **measure(options, folder)}
        write_json(folder / f"{name}.json", results)

    run_command(parser, run)


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


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The rows below the head, in Markdown, with a newline at the end."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def tick_sizes(axis: Axes, name: str, sizes: Sequence[int]) -> None:
    """A logarithmic x axis with a name and a tick at each size alone."""
    axis.set(xlabel=name, xscale="log")
    axis.set_xticks(sizes, sizes)
    axis.set_xticks([], minor=True)
