"""Table 1 of the paper, measured: the cost of a layer, its sequential operations, and its longest path.

    python examples/reproduce/table1.py --output_dir runs/table1
    python examples/reproduce/table1.py --output_dir runs/table1 --lengths 256 512 1024 2048 4096 --widths 256 512 1024

Each layer maps n vectors of width d to as many: one sequence, forward and backward, in 32-bit floats on the CPU. As in
the paper, attention is counted without its projections. Leaves in --output_dir: table1.md, table1.json, costs.png and
paths.png.

Cost: one of n, d, k and r varies at a time, the others have the middle value of their lists; exponents are fitted by
least squares on the logarithms. Time is processor time, of the fastest round; memory is the most bytes of tensors held
at once, above the layer and its input.

Sequential operations: the longest chain of operations that depend on each other in the graph that autograd records.
Path: a gradient is sent back from the last position, through one step after another, until it arrives at the first. A
step is what all positions compute at once: a layer, or one time step of the recurrent layer.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from common import check_least, markdown_table, plot_lines, run_script, sort_sizes
from matplotlib.figure import Figure
from measure import costs_of, fitted_exponent
from restricted_attention import restricted_attention
from torch import nn
from transformers.hf_argparser import HfArg

from modeling_vanilla.attention_vanilla import eager_attention
from modeling_vanilla.progress import progress_bar


@dataclass
class Options:
    output_dir: str = HfArg(default="runs/table1", help="folder to write to")
    lengths: list[int] = HfArg(default_factory=lambda: [128, 256, 512, 1024, 2048], help="n")
    widths: list[int] = HfArg(default_factory=lambda: [128, 256, 512], help="d, multiples of d_k")
    kernels: list[int] = HfArg(default_factory=lambda: [3, 7, 15], help="k")
    windows: list[int] = HfArg(default_factory=lambda: [16, 64, 256], help="r")
    d_k: int = HfArg(default=64, help="width of a head; there are d / d_k heads")
    path_lengths: list[int] = HfArg(
        default_factory=lambda: [16, 32, 64, 128], help="n of the sequential operations and the paths"
    )
    rounds: int = HfArg(default=3, help="measurements of a time, of which the fastest counts")
    seed: int = HfArg(default=0, help="of inputs and weights")

    def __post_init__(self):
        # A window of 1 and a kernel of 1 see no other position.
        least = {"lengths": 1, "widths": 1, "kernels": 2, "windows": 2, "d_k": 1, "path_lengths": 2, "rounds": 1}
        check_least(self, least)
        sort_sizes(self, "lengths", "widths", "kernels", "windows", "path_lengths")
        for width in self.widths:
            if width % self.d_k:
                raise ValueError(f"widths: {width} is no multiple of d_k {self.d_k}")
        # A window wider than the sequence would cost more than O(r n d).
        for window, length in ((self.windows[-1], middle(self.lengths)), (middle(self.windows), self.lengths[0])):
            if window > length:
                raise ValueError(f"windows: {window} is wider than the {length} positions it meets")


class Size(NamedTuple):
    """n positions of width d, kernels of width k, neighbourhoods of r positions, heads of width d_k."""

    n: int
    d: int
    k: int
    r: int
    d_k: int


class Attention(nn.Module):
    """Multi-head attention without its projections: x (1, n, d) is queries, keys and values, d_k of it a head."""

    def __init__(self, attend: Callable[[torch.Tensor], torch.Tensor], d_k: int):
        """attend: (1, H, n, d_k) -> (1, H, n, d_k)"""
        super().__init__()
        self.attend, self.d_k = attend, d_k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (-1, self.d_k)).transpose(1, 2)
        return self.attend(heads).transpose(1, 2).flatten(2)


def self_attention(size: Size) -> nn.Module:
    """Eq. 1 written out, as the package has it."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        return eager_attention(nn.Identity(), x, x, x, None, scaling=size.d_k**-0.5)[0].transpose(1, 2)

    return Attention(attend, size.d_k)


def fused_attention(size: Size) -> nn.Module:
    """The same by torch's kernel, which never holds the n x n weights."""
    return Attention(lambda x: nn.functional.scaled_dot_product_attention(x, x, x), size.d_k)


def restricted(size: Size) -> nn.Module:
    return Attention(lambda x: restricted_attention(x, x, x, size.r), size.d_k)


class Recurrent(nn.LSTM):
    def __init__(self, size: Size):
        super().__init__(size.d, size.d, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[0]


class RecurrentStep(nn.LSTM):
    """One time step at every position at once: x is the input, and the state of the previous position."""

    def __init__(self, size: Size):
        super().__init__(size.d, size.d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
        return super().forward(x, (state, state))[0]  # here (1, n, d) is (time, batch, d)


class Convolution(nn.Conv1d):
    """Position t sees t and the k - 1 positions before it, `dilation` apart, as in ByteNet's decoder.

    A kernel centred on the position costs the same, but a stack of dilated ones does not connect the ends of a short
    sequence: the path between them would leave it.
    """

    def __init__(self, size: Size, dilation: int = 1):
        super().__init__(size.d, size.d, size.k, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.dilation[0] * (self.kernel_size[0] - 1)
        return super().forward(nn.functional.pad(x.transpose(1, 2), (before, 0))).transpose(1, 2)


class Row(NamedTuple):
    """A row of Table 1: the layer, the paper's complexity, printed and as exponents, and its sequential operations."""

    layer: Callable[[Size], nn.Module]
    complexity: str
    exponents: dict[str, int]
    sequential: str


ROWS = {
    "self-attention": Row(self_attention, "O(n^2 d)", {"n": 2, "d": 1}, "O(1)"),
    "self-attention, fused kernel": Row(fused_attention, "O(n^2 d)", {"n": 2, "d": 1}, "O(1)"),
    "recurrent (LSTM)": Row(Recurrent, "O(n d^2)", {"n": 1, "d": 2}, "O(n)"),
    "convolutional": Row(Convolution, "O(k n d^2)", {"k": 1, "n": 1, "d": 2}, "O(1)"),
    "self-attention, restricted": Row(restricted, "O(r n d)", {"r": 1, "n": 1, "d": 1}, "O(1)"),
}


class PathRow(NamedTuple):
    """The steps of a path: step(size, depth) is the one at that depth, from 0; and the paper's maximum path length."""

    step: Callable[[Size, int], nn.Module]
    length: str
    formula: Callable[[Size], float]


PATHS = {
    "self-attention": PathRow(lambda size, depth: self_attention(size), "O(1)", lambda size: 1),
    "recurrent (LSTM)": PathRow(lambda size, depth: RecurrentStep(size), "O(n)", lambda size: size.n),
    "convolutional": PathRow(lambda size, depth: Convolution(size), "O(n/k)", lambda size: size.n / size.k),
    "convolutional, dilated": PathRow(
        lambda size, depth: Convolution(size, dilation=size.k**depth),
        "O(log_k n)",
        lambda size: math.log(size.n, size.k),
    ),
    "self-attention, restricted": PathRow(lambda size, depth: restricted(size), "O(n/r)", lambda size: size.n / size.r),
}


UNITS = {"seconds": ("ms", 1e-3), "bytes": ("MiB", 2**20)}  # of the measures, as the pictures have them
# One colour for a layer in all pictures.
COLOURS = {name: f"C{number}" for number, name in enumerate(dict.fromkeys([*ROWS, *PATHS]))}


def middle(values: Sequence[int]) -> int:
    return values[len(values) // 2]


def measure_costs(options: Options) -> list[dict]:
    """Every row of ROWS over each variable of its complexity: row, variable, size, seconds and bytes of each point."""
    lists = {"n": options.lengths, "d": options.widths, "k": options.kernels, "r": options.windows}
    base = Size(**{name: middle(values) for name, values in lists.items()}, d_k=options.d_k)
    points = [
        (name, variable, base._replace(**{variable: value}))
        for name, row in ROWS.items()
        for variable in row.exponents
        for value in lists[variable]
    ]
    return [
        {"row": name, "variable": variable, **size._asdict(), **measure_cost(ROWS[name].layer(size), size, options)}
        for name, variable, size in progress_bar(points, desc="costs", unit=" points")
    ]


def measure_cost(layer: nn.Module, size: Size, options: Options) -> dict:
    """Seconds and bytes of one forward and one backward pass."""
    x = torch.randn(1, size.n, size.d, requires_grad=True)
    gradient = torch.randn_like(x)
    variables = [x, *layer.parameters()]

    def compute() -> None:
        torch.autograd.grad(layer(x), variables, gradient)

    return costs_of(compute, options.rounds)


def points_of(costs: list[dict], row: str, variable: str, measure: str) -> tuple[list[int], list[float]]:
    """The sizes of `variable` that a row was measured at, and its "seconds" or "bytes" there."""
    points = [cost for cost in costs if cost["row"] == row and cost["variable"] == variable]
    return [point[variable] for point in points], [point[measure] for point in points]


def fit_exponents(costs: list[dict]) -> dict[str, dict[str, dict[str, float]]]:
    """The exponents of each row, by measure and variable."""
    exponents = {name: {measure: {} for measure in UNITS} for name in ROWS}
    for (name, row), measure in itertools.product(ROWS.items(), UNITS):
        for variable in row.exponents:
            exponents[name][measure][variable] = fitted_exponent(*points_of(costs, name, variable, measure))
    return exponents


def longest_chain(output: torch.Tensor) -> int:
    """The number of operations on the longest path from a leaf to `output` in the graph that autograd recorded."""
    lengths = {None: 0}
    waiting = [output.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [source for source, _ in node.next_functions]
        unknown = [source for source in before if source not in lengths]
        if unknown:
            waiting += unknown
        else:
            lengths[waiting.pop()] = 1 + max((lengths[source] for source in before), default=0)
    return lengths[output.grad_fn]


def arrivals(step: nn.Module, x: torch.Tensor, senders: torch.Tensor) -> torch.Tensor:
    """The positions that a gradient sent from the output positions `senders` arrives at; both (n,), booleans.

    They are the nonzero columns of the Jacobian's rows of `senders`. The gradient sent is random, so that nothing
    cancels out.
    """
    gradient = torch.randn_like(x) * senders[:, None]
    (arrived,) = torch.autograd.grad(step(x), x, gradient)
    return arrived.ne(0).any(dim=-1)[0]


def path_length(row: PathRow, size: Size) -> int:
    """The number of steps after which a gradient from the last position has arrived at the first."""
    x = torch.randn(1, size.n, size.d, dtype=torch.double, requires_grad=True)
    reached = torch.arange(size.n) == size.n - 1
    steps = 0
    while not reached[0]:
        reached = arrivals(row.step(size, steps).double(), x, reached)
        steps += 1
    return steps


def measure_order(options: Options) -> tuple[dict[str, list[int]], dict[str, dict[str, list[float]]]]:
    """At each of path_lengths, the longest chain of each of ROWS, and the "steps" and "formula" of each of PATHS.

    With the smallest kernel and window, so that paths grow within short sequences. In 64-bit floats: an LSTM's gradient
    vanishes early in 32 bits, and oneDNN, which has no 64-bit LSTM, takes its time steps as one operation.
    """
    sizes = [Size(n, options.d_k, options.kernels[0], options.windows[0], options.d_k) for n in options.path_lengths]
    chains = {name: [] for name in ROWS}
    paths = {name: {"steps": [], "formula": []} for name in PATHS}
    for size in progress_bar(sizes, desc="paths", unit=" lengths"):
        for name, row in ROWS.items():
            x = torch.randn(1, size.n, size.d, dtype=torch.double, requires_grad=True)
            chains[name].append(longest_chain(row.layer(size).double()(x)))
        for name, row in PATHS.items():
            paths[name]["steps"].append(path_length(row, size))
            paths[name]["formula"].append(row.formula(size))
    return chains, paths


def plot_costs(costs: list[dict], exponents: dict) -> Figure:
    figure = Figure(figsize=(14, 7), layout="constrained")
    axes = figure.subplots(2, 4, sharex="col", sharey="row")
    for line, (measure, (unit, size)) in zip(axes, UNITS.items(), strict=True):
        for axis, variable in zip(line, "ndkr", strict=True):
            lines, colours = {}, []
            for name, row in ROWS.items():
                if variable in row.exponents:
                    sizes, values = points_of(costs, name, variable, measure)
                    fitted = f"{name}: {variable}^{exponents[name][measure][variable]:.2f}"
                    label = fitted + f" (paper: {row.exponents[variable]})" * (measure == "seconds")
                    lines[label] = [value / size for value in values]
                    colours.append(COLOURS[name])
            plot_lines(axis, variable, sizes, lines, colours)
            axis.set(yscale="log", ylabel=unit)
            axis.label_outer()
            axis.margins(y=0.25)
            axis.grid(alpha=0.3, which="both")
    figure.suptitle("Table 1: one layer, forward and backward; time above, memory below")
    return figure


def plot_paths(lengths: list[int], chains: dict, paths: dict) -> Figure:
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_lines(left, "n", lengths, chains, [COLOURS[name] for name in chains])
    steps = {name: path["steps"] for name, path in paths.items()}
    plot_lines(right, "n", lengths, steps, [COLOURS[name] for name in steps])
    for name, path in paths.items():
        right.plot(lengths, path["formula"], ":", color=COLOURS[name], linewidth=1)
    left.set(title="Longest chain of operations that depend on each other", yscale="log")
    right.set(title="Steps until the ends are connected (dotted: the paper's formula)", yscale="log")
    for axis in (left, right):
        axis.grid(alpha=0.3, which="both")
    return figure


def report(options: Options, results: dict) -> str:
    """table1.md."""
    exponents, chains, paths = results["exponents"], results["chains"], results["paths"]
    lengths = ", ".join(map(str, options.path_lengths))

    def powers(name: str, measure: str) -> str:
        return " ".join(f"{variable}^{exponent:.2f}" for variable, exponent in exponents[name][measure].items())

    def series(values: list[float]) -> str:
        return ", ".join(f"{value:.3g}" for value in values)

    costs = [(name, row.complexity, powers(name, "seconds"), powers(name, "bytes")) for name, row in ROWS.items()]
    orders = [
        (name, row.sequential, series(chain), f"n^{fitted_exponent(options.path_lengths, chain):.2f}")
        for (name, row), chain in zip(ROWS.items(), chains.values(), strict=True)
    ]
    lines = [(name, row.length, *map(series, paths[name].values())) for name, row in PATHS.items()]
    parts = [
        "# Table 1, measured\n",
        "One layer, forward and backward, attention without its projections; exponents fitted to one variable each.\n",
        markdown_table(("layer", "complexity in the paper", "time", "memory"), costs),
        f"Sequential operations at n = {lengths} (k = {options.kernels[0]}, r = {options.windows[0]}).\n",
        markdown_table(("layer", "in the paper", "longest chain of operations", "grows as"), orders),
        "Maximum path length: layers, for the recurrent layer time steps, until the ends are connected.\n",
        markdown_table(("layer", "in the paper", f"counted at n = {lengths}", "the formula there"), lines),
    ]
    return "\n".join(parts)


def reproduce(options: Options) -> tuple[dict, dict[str, Figure], str]:
    """The numbers, the pictures and the table."""
    costs = measure_costs(options)
    exponents = fit_exponents(costs)
    chains, paths = measure_order(options)
    results = {"costs": costs, "exponents": exponents, "chains": chains, "paths": paths}
    pictures = {
        "costs": plot_costs(costs, exponents),
        "paths": plot_paths(options.path_lengths, chains, paths),
    }
    return results, pictures, report(options, results)


def main() -> None:
    run_script("table1", Options, __doc__, reproduce)


if __name__ == "__main__":
    main()
