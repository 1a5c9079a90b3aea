"""Table 1 of the paper, measured: what a layer costs, what it must do in sequence, and how far its ends are apart.

    python examples/reproduce/table1.py --output_dir runs/reproduce/table1
    python examples/reproduce/table1.py --output_dir runs/reproduce/table1 --scale 2

Each layer maps n vectors of width d to as many, a single sequence, forward and backward, in 32-bit floats on the CPU.
As in the paper the attention is counted without its projections. Leaves in --output_dir: table1.md, table1.json,
costs.png and paths.png.

Cost: one of n, d, k and r varies at a time, the others stay at the middle one of their lists; exponents are fitted by
least squares on the logarithms. Time is processor time, of the best of the rounds; memory is the most bytes of tensors
that were held at once, above the layer and its input.

Sequential operations: the longest chain of operations that wait for each other, counted in the graph that autograd
records. Path: a gradient is sent back from the last position, through one step after the other, until it arrives at
the first; a step is what all positions do at once, which is a layer, but for the recurrent layer one time step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from measure import best_seconds, fitted_exponent, peak_bytes
from restricted_attention import restricted_attention
from torch import nn
from tqdm.auto import tqdm
from transformers import HfArgumentParser

from modeling_vanilla.attention_vanilla import eager_attention
from modeling_vanilla.io import one_line_errors, write_json, write_text
from modeling_vanilla.training.memory import keep_freed_memory
from modeling_vanilla.visualization.attention import save_figure


@dataclass
class Options:
    output_dir: str = field(default="runs/reproduce/table1", metadata={"help": "folder to write to"})
    lengths: list[int] = field(default_factory=lambda: [128, 256, 512, 1024, 2048], metadata={"help": "n"})
    widths: list[int] = field(default_factory=lambda: [128, 256, 512], metadata={"help": "d, multiples of d_k"})
    kernels: list[int] = field(default_factory=lambda: [3, 7, 15], metadata={"help": "k"})
    windows: list[int] = field(default_factory=lambda: [16, 64, 256], metadata={"help": "r"})
    scale: int = field(default=1, metadata={"help": "multiplies lengths and widths: 2 for n to 4096 and d to 1024"})
    d_k: int = field(default=64, metadata={"help": "width of a head; there are d / d_k heads"})
    path_lengths: list[int] = field(
        default_factory=lambda: [16, 32, 64, 128], metadata={"help": "n of the sequential steps and the paths"}
    )
    rounds: int = field(default=3, metadata={"help": "of which the fastest counts"})
    seed: int = field(default=0, metadata={"help": "of inputs and weights"})

    def __post_init__(self):
        for name, least in {"scale": 1, "d_k": 1, "rounds": 1}.items():
            _check(name, getattr(self, name), least)
        # A window of 1 and a kernel of 1 would see no other position.
        for name, least in {"lengths": 1, "widths": 1, "kernels": 2, "windows": 2, "path_lengths": 2}.items():
            values = getattr(self, name)
            for value in values:
                _check(name, value, least)
            if len(set(values)) < 2:
                raise ValueError(f"{name}: an exponent needs two different sizes, not {values}")
            setattr(self, name, sorted(set(values)))
        for width in self.widths:
            if width % self.d_k:
                raise ValueError(f"widths: {width} is no multiple of d_k {self.d_k}")
        # A window that is wider than the sequence would cost more than O(r n d).
        for window, length in (
            (max(self.windows), middle(self.lengths)),
            (middle(self.windows), min(self.lengths)),
        ):
            if window > length * self.scale:
                raise ValueError(f"windows: {window} is wider than the {length * self.scale} positions it meets")


def _check(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


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
    """One time step of every position at once: x is the input there, and the state that the position before is in."""

    def __init__(self, size: Size):
        super().__init__(size.d, size.d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
        return super().forward(x, (state, state))[0]  # (time, batch, d) is here (1, n, d)


class Convolution(nn.Conv1d):
    """Position t sees t and the k - 1 before it, `dilation` apart, as in ByteNet's decoder.

    A kernel around the position would cost the same, but a stack of dilated ones leaves the ends of a short sequence
    unconnected, as the way between them leads out of it.
    """

    def __init__(self, size: Size, dilation: int = 1):
        super().__init__(size.d, size.d, size.k, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.dilation[0] * (self.kernel_size[0] - 1)
        return super().forward(nn.functional.pad(x.transpose(1, 2), (before, 0))).transpose(1, 2)


class Row(NamedTuple):
    """A row of Table 1: the layer, the paper's complexity in words and as exponents, and its sequential operations."""

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
    """What is put one behind the other: step(size, depth) is the one of that depth, from 0. And the paper's length."""

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


# One colour for a layer in all pictures.
COLOURS = {name: f"C{number}" for number, name in enumerate(dict.fromkeys([*ROWS, *PATHS]))}


def middle(values: Sequence[int]) -> int:
    return values[len(values) // 2]


def measure_cost(layer: nn.Module, size: Size, rounds: int) -> dict:
    """Seconds and bytes of one forward and one backward pass."""
    x = torch.randn(1, size.n, size.d, requires_grad=True)
    gradient = torch.randn_like(x)
    wanted = [x, *layer.parameters()]

    def compute() -> None:
        torch.autograd.grad(layer(x), wanted, gradient)

    return {"seconds": best_seconds(compute, rounds), "bytes": peak_bytes(compute)}


def measure_costs(options: Options) -> list[dict]:
    """Every row of ROWS over each variable of its complexity: row, variable, size, seconds and bytes of each point."""
    lists = {
        "n": [length * options.scale for length in options.lengths],
        "d": [width * options.scale for width in options.widths],
        "k": options.kernels,
        "r": options.windows,
    }
    base = Size(**{name: middle(values) for name, values in lists.items()}, d_k=options.d_k)
    points = [
        (name, variable, base._replace(**{variable: value}))
        for name, row in ROWS.items()
        for variable in row.exponents
        for value in lists[variable]
    ]
    return [
        {
            "row": name,
            "variable": variable,
            **size._asdict(),
            **measure_cost(ROWS[name].layer(size), size, options.rounds),
        }
        for name, variable, size in tqdm(points, desc="costs", unit=" points")
    ]


def fit(costs: list[dict], row: str, variable: str, measure: str) -> float:
    """The exponent of `variable` in the "seconds" or "bytes" of a row."""
    points = [cost for cost in costs if cost["row"] == row and cost["variable"] == variable]
    return fitted_exponent([point[variable] for point in points], [point[measure] for point in points])


def longest_chain(output: torch.Tensor) -> int:
    """The most operations between a leaf and `output` that wait for each other, in the graph that autograd recorded."""
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
    """The steps, one behind the other, after which a gradient from the last position has arrived at the first."""
    x = torch.randn(1, size.n, size.d, dtype=torch.double, requires_grad=True)
    reached = torch.arange(size.n) == size.n - 1
    steps = 0
    while not reached[0]:
        reached = arrivals(row.step(size, steps).double(), x, reached)
        steps += 1
    return steps


def reach(layer: nn.Module, size: Size) -> int:
    """How many positions before the last one a gradient from it reaches in one layer."""
    x = torch.randn(1, size.n, size.d, dtype=torch.double, requires_grad=True)
    last = torch.arange(size.n) == size.n - 1
    return size.n - 1 - int(arrivals(layer.double(), x, last).int().argmax())


def measure_order(options: Options) -> tuple[dict, dict]:
    """Of each layer, at each of path_lengths: the longest chain and the reach of one layer; the path of each of PATHS.

    With the smallest of kernels and windows, so that short sequences show how the paths grow. In 64-bit floats: an
    LSTM's gradient vanishes early in 32 bits, and its time steps are operations of their own only where oneDNN, which
    has no 64-bit LSTM, does not take them as one.
    """
    sizes = [Size(n, options.d_k, options.kernels[0], options.windows[0], options.d_k) for n in options.path_lengths]
    chains = {name: {"operations": [], "reach": []} for name in ROWS}
    paths = {name: {"steps": [], "formula": []} for name in PATHS}
    for size in tqdm(sizes, desc="paths", unit=" lengths"):
        for name, row in ROWS.items():
            layer = row.layer(size).double()
            x = torch.randn(1, size.n, size.d, dtype=torch.double, requires_grad=True)
            chains[name]["operations"].append(longest_chain(layer(x)))
            chains[name]["reach"].append(reach(layer, size))
        for name, row in PATHS.items():
            paths[name]["steps"].append(path_length(row, size))
            paths[name]["formula"].append(row.formula(size))
    return chains, paths


def plot_costs(costs: list[dict]) -> Figure:
    figure = Figure(figsize=(14, 7), layout="constrained")
    axes = figure.subplots(2, 4, sharex="col", sharey="row")
    for line, (measure, label, unit) in enumerate((("seconds", "ms", 1e-3), ("bytes", "MiB", 2**20))):
        for column, variable in enumerate("ndkr"):
            axis = axes[line][column]
            for name, row in ROWS.items():
                points = [cost for cost in costs if cost["row"] == name and cost["variable"] == variable]
                if points:
                    exponent = fit(costs, name, variable, measure)
                    axis.loglog(
                        [point[variable] for point in points],
                        [point[measure] / unit for point in points],
                        ".-",
                        color=COLOURS[name],
                        label=f"{name}: {variable}^{exponent:.2f}"
                        + (f" (paper: {row.exponents[variable]})" if measure == "seconds" else ""),
                    )
            axis.legend(fontsize=7)
            axis.margins(y=0.25)
            axis.grid(alpha=0.3, which="both")
        axes[line][0].set_ylabel(label)
    for column, variable in enumerate("ndkr"):
        axes[1][column].set_xlabel(variable)
        values = sorted({cost[variable] for cost in costs if cost["variable"] == variable})
        axes[1][column].set_xticks(values, values)
        axes[1][column].set_xticks([], minor=True)
    figure.suptitle("Table 1: one layer, forward and backward; time above, memory below")
    return figure


def plot_paths(lengths: list[int], chains: dict, paths: dict) -> Figure:
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, chain in chains.items():
        left.loglog(lengths, chain["operations"], ".-", color=COLOURS[name], label=name)
    for name, path in paths.items():
        right.loglog(lengths, path["steps"], ".-", color=COLOURS[name], label=name)
        right.loglog(lengths, path["formula"], ":", color=COLOURS[name], linewidth=1)
    left.set_title("Longest chain of operations that wait for each other")
    right.set_title("Steps until the ends are connected (dotted: the paper's formula)")
    for axis in (left, right):
        axis.set_xlabel("n")
        axis.set_xticks(lengths, lengths)
        axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8)
    return figure


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def report(options: Options, results: dict) -> str:
    """table1.md."""
    costs, chains, paths = results["costs"], results["chains"], results["paths"]
    lengths = ", ".join(map(str, options.path_lengths))

    def exponents(name: str, measure: str) -> str:
        return " ".join(f"{variable}^{fit(costs, name, variable, measure):.2f}" for variable in ROWS[name].exponents)

    def series(values: list[float]) -> str:
        return ", ".join(f"{value:.3g}" for value in values)

    kernel, window = options.kernels[0], options.windows[0]
    parts = [
        "# Table 1, measured\n",
        "One layer, forward and backward, attention without its projections; exponents fitted to one variable each.\n",
        table(
            ("layer", "complexity in the paper", "time", "memory"),
            [
                (name, row.complexity, exponents(name, "seconds"), exponents(name, "bytes"))
                for name, row in ROWS.items()
            ],
        ),
        f"Sequential operations and reach, at n = {lengths} (k = {kernel}, r = {window}).\n",
        table(
            (
                "layer",
                "in the paper",
                "longest chain of operations",
                "grows as",
                "positions that one layer reaches back",
            ),
            [
                (
                    name,
                    row.sequential,
                    series(chains[name]["operations"]),
                    f"n^{fitted_exponent(options.path_lengths, chains[name]['operations']):.2f}",
                    series(chains[name]["reach"]),
                )
                for name, row in ROWS.items()
            ],
        ),
        "Maximum path length: layers, for the recurrent layer time steps, until the ends are connected.\n",
        table(
            ("layer", "in the paper", f"counted at n = {lengths}", "the formula there"),
            [
                (name, row.length, series(paths[name]["steps"]), series(paths[name]["formula"]))
                for name, row in PATHS.items()
            ],
        ),
        "Every point:\n",
        table(
            ("layer", "varied", "n", "d", "k", "r", "ms", "MiB"),
            [
                (
                    *(cost[name] for name in ("row", "variable", "n", "d", "k", "r")),
                    f"{1000 * cost['seconds']:.3g}",
                    f"{cost['bytes'] / 2**20:.3g}",
                )
                for cost in costs
            ],
        ),
    ]
    return "\n".join(parts)


def main() -> None:
    parser = HfArgumentParser(Options, description=__doc__)
    with one_line_errors():
        keep_freed_memory()  # or clearing new pages is what the large sizes measure
        (options,) = parser.parse_args_into_dataclasses()
        reproduce(options)


def reproduce(options: Options) -> dict:
    """Measure, and write the four files. Returns what table1.json holds."""
    folder = Path(options.output_dir)
    folder.mkdir(parents=True, exist_ok=True)  # before the measuring, not after it
    torch.manual_seed(options.seed)
    costs = measure_costs(options)
    chains, paths = measure_order(options)
    results = {
        "settings": asdict(options),
        "torch": torch.__version__,
        "costs": costs,
        "exponents": {
            name: {
                measure: {v: fit(costs, name, v, measure) for v in row.exponents} for measure in ("seconds", "bytes")
            }
            for name, row in ROWS.items()
        },
        "chains": chains,
        "paths": paths,
    }
    save_figure(plot_costs(costs), folder / "costs.png")
    save_figure(plot_paths(options.path_lengths, chains, paths), folder / "paths.png")
    write_text(folder / "table1.md", report(options, results))
    write_json(folder / "table1.json", results)
    return results


if __name__ == "__main__":
    main()
