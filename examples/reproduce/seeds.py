"""Mean and standard deviation of each number in the results.json of several runs, such as those of three seeds.

python examples/reproduce/seeds.py runs/pre0 runs/pre1 runs/pre2
"""

from argparse import Namespace
from pathlib import Path
from statistics import mean, stdev

from common import markdown_table

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_json


def numbers_of(run: Path) -> dict[str, float]:
    results = read_json(run / "results.json")
    results |= {f"validation {name}": value for name, value in results.get("validation", {}).items()}
    return {name: value for name, value in results.items() if isinstance(value, int | float)}


def show(options: Namespace) -> None:
    found, rows = [numbers_of(run) for run in options.runs], []
    for name in found[0]:
        if all(name in one for one in found):
            values = [one[name] for one in found]
            rows.append([name, *(f"{value:.6g}" for value in (*values, mean(values), stdev(values)))])
    print(markdown_table(["", *map(str, options.runs), "mean", "standard deviation"], rows))


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run; at least two")
    run_command(parser, show)
