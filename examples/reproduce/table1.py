"""Table 1 of the paper, measured: the cost of a layer, its sequential operations, and its longest path.

    python examples/reproduce/table1.py --output_dir runs/table1
    python examples/reproduce/table1.py --output_dir runs/table1 --lengths 256 512 1024 2048 4096 --widths 256 512 1024

Each layer maps n vectors of width d to as many: one sequence, forward and backward, in 32-bit floats on the CPU. As in
the paper, attention is counted without its projections. Leaves in --output_dir: table1.md and table1.json.

Cost: one of n, d, k and r varies at a time, the others have the middle value of their lists; exponents are fitted by
least squares on the logarithms. Time is processor time, of the fastest round; memory is the most bytes of tensors held
at once, above the layer and its input.

Sequential operations: the longest chain of operations that depend on each other in the graph that autograd records.
Path: a gradient is sent back from the last position, through one step after another, until it arrives at the first. A
step is what all positions compute at once: a layer, or one time step of the recurrent layer.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from common import markdown_table, write_results
from measure import costs_of, fitted_exponent
from restricted_attention import restricted_attention
from torch import nn

from modeling_vanilla.attention_vanilla import eager_attention
from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.progress import progress_bar

D_K = 64  # width of a head; there are d / d_k heads
KERNELS, WINDOWS = (3, 7, 15), (16, 64, 256)  # k, r
PATH_LENGTHS = (16, 32, 64, 128)  # n of the sequential operations and the paths


class Size(NamedTuple):
    """n positions of width d, kernels of width k, neighbourhoods of r positions, heads of width d_k."""

    n: int
    d: int
    k: int
    r: int
    d_k: int = D_K


class Attention(nn.Module):
    """Multi-head attention without its projections: x (1, n, d) is queries, keys and values, d_k of it a head."""

    def __init__(self, attend: Callable[[torch.Tensor], torch.Tensor], d_k: int):
        """attend: (1, H, n, d_k) -> (1, H, n, d_k)"""
        super().__init__()
        self.attend, self.d_k = attend, d_k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (-1, self.d_k)).transpose(1, 2)
        return self.attend(heads).transpose(1, 2).flatten(2)


# The layers. A stack of them may have another one at each depth, from 0.


def self_attention(size: Size, depth: int = 0) -> nn.Module:
    """Eq. 1 written out, as the package has it."""
    eager = partial(eager_attention, nn.Identity(), attention_mask=None, scaling=size.d_k**-0.5)
    return Attention(lambda x: eager(x, x, x)[0].transpose(1, 2), size.d_k)


def restricted(size: Size, depth: int = 0) -> nn.Module:
    return Attention(lambda x: restricted_attention(x, x, x, size.r), size.d_k)


class Recurrent(nn.LSTM):
    def __init__(self, size: Size):
        super().__init__(size.d, size.d, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[0]


class RecurrentStep(nn.LSTM):
    """One time step at every position at once: x is the input, and the state of the previous position."""

    def __init__(self, size: Size, depth: int = 0):
        super().__init__(size.d, size.d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
        return super().forward(x, (state, state))[0]  # here (1, n, d) is (time, batch, d)


class Convolution(nn.Conv1d):
    """Position t sees t and the k - 1 positions before it, k^depth apart, as in ByteNet's decoder.

    A kernel centred on the position costs the same, but a stack of dilated ones does not connect the ends of a short
    sequence: the path between them would leave it.
    """

    def __init__(self, size: Size, depth: int = 0):
        super().__init__(size.d, size.d, size.k, dilation=size.k**depth)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.dilation[0] * (self.kernel_size[0] - 1)
        return super().forward(nn.functional.pad(x.transpose(1, 2), (before, 0))).transpose(1, 2)


class Row(NamedTuple):
    """A row of Table 1: a layer, whose cost is measured, the step of its path, and the paper's three columns."""

    layer: Callable[[Size], nn.Module]
    step: Callable[[Size, int], nn.Module]
    complexity: str
    sequential: str
    path: str


ROWS = {
    "self-attention": Row(self_attention, self_attention, "O(n^2 d)", "O(1)", "O(1)"),
    "recurrent (LSTM)": Row(Recurrent, RecurrentStep, "O(n d^2)", "O(n)", "O(n)"),
    "convolutional": Row(Convolution, Convolution, "O(k n d^2)", "O(1)", "O(log_k n)"),
    "self-attention, restricted": Row(restricted, restricted, "O(r n d)", "O(1)", "O(n/r)"),
}


def middle(values: Sequence[int]) -> int:
    return values[len(values) // 2]


def measure_row(row: Row, lists: dict[str, Sequence[int]], rounds: int) -> dict:
    """Measure a row of ROWS.

    Args:
        lists: the sizes of each variable, "n", "d", "k" and "r".

    Returns:
        "costs", by each variable of the complexity: its sizes, and the seconds and bytes at each. "chain" and "steps":
        the longest chain of operations and the length of the path, at PATH_LENGTHS.
    """
    base, costs = Size(**{name: middle(values) for name, values in lists.items()}), {}
    for variable in filter(row.complexity.__contains__, lists):
        sizes = [base._replace(**{variable: value}) for value in lists[variable]]
        measured = [measure_cost(row.layer(size), size, rounds) for size in sizes]
        curves = {measure: [cost[measure] for cost in measured] for measure in ("seconds", "bytes")}
        costs[variable] = {"sizes": lists[variable], **curves}
    # With the smallest kernel and window, so that paths grow within short sequences.
    short = [Size(n, D_K, KERNELS[0], WINDOWS[0]) for n in PATH_LENGTHS]
    return {
        "costs": costs,
        "chain": [longest_chain(row.layer(size).double()(random_input(size))) for size in short],
        "steps": [path_length(row, size) for size in short],
    }


def measure_cost(layer: nn.Module, size: Size, rounds: int) -> dict:
    """Seconds and bytes of one forward and one backward pass."""
    x = torch.randn(1, size.n, size.d, requires_grad=True)
    variables, gradient = [x, *layer.parameters()], torch.randn_like(x)
    return costs_of(lambda: torch.autograd.grad(layer(x), variables, gradient), rounds)


def longest_chain(output: torch.Tensor) -> int:
    """The number of operations on the longest path from `output` to a leaf in the graph that autograd recorded."""
    length, nodes = 0, {output.grad_fn}
    while nodes:  # all that are so many steps from the output
        nodes = {source for node in nodes for source, _ in node.next_functions if source}
        length += 1
    return length


def arrivals(step: nn.Module, x: torch.Tensor, senders: torch.Tensor) -> torch.Tensor:
    """The positions that a gradient sent from the output positions `senders` arrives at; both (n,), booleans.

    They are the nonzero columns of the Jacobian's rows of `senders`. The gradient sent is random, so that nothing
    cancels out.
    """
    gradient = torch.randn_like(x) * senders[:, None]
    (arrived,) = torch.autograd.grad(step(x), x, gradient)
    return arrived.ne(0).any(dim=-1)[0]


def random_input(size: Size) -> torch.Tensor:
    """An input of 64-bit floats.

    An LSTM's gradient vanishes early in 32 bits, and oneDNN, which has no 64-bit LSTM, takes its time steps as one
    operation.
    """
    return torch.randn(1, size.n, size.d, dtype=torch.double, requires_grad=True)


def path_length(row: Row, size: Size) -> int:
    """The number of steps after which a gradient from the last position has arrived at the first."""
    x, reached, steps = random_input(size), torch.arange(size.n) == size.n - 1, 0
    while not reached[0]:
        reached = arrivals(row.step(size, steps).double(), x, reached)
        steps += 1
    return steps


def as_markdown(measured: dict[str, dict]) -> str:
    """The table of what measure_row gives for each row."""
    rows = []
    for name, row in ROWS.items():
        found = measured[name]
        powers = [
            " ".join(
                f"{variable}^{fitted_exponent(cost['sizes'], cost[measure]):.2f}"
                for variable, cost in found["costs"].items()
            )
            for measure in ("seconds", "bytes")
        ]
        grows = f"n^{fitted_exponent(PATH_LENGTHS, found['chain']):z.2f}"
        steps = ", ".join(map(str, found["steps"]))
        rows.append((name, row.complexity, *powers, row.sequential, grows, row.path, steps))
    head = ("layer", "complexity", "time", "memory", "sequential operations", "longest chain", "path length", "steps")
    lengths = ", ".join(map(str, PATH_LENGTHS))
    return (
        "# Table 1, measured\n\nEach of the paper's columns, and what was measured: exponents of one layer's time and "
        "memory, forward and backward, without attention's projections; the growth of the longest chain of operations "
        f"that wait for each other; the steps (layers, or time steps) until the ends of n = {lengths} are connected "
        f"(k = {KERNELS[0]}, r = {WINDOWS[0]}).\n\n{markdown_table(head, rows)}"
    )


def reproduce(output_dir: Path, lengths: list[int], widths: list[int], rounds: int) -> None:
    """Measure at these n and d, and write table and numbers.

    Raises:
        ValueError: for sizes that cannot be measured, or to which no exponent can be fitted.
    """
    lengths, widths = sorted({*lengths}), sorted({*widths})
    if min(len(lengths), len(widths)) < 2 or any(width % D_K for width in widths):
        raise ValueError(f"lengths and widths: at least two of each, widths in multiples of {D_K}")
    torch.manual_seed(0)
    lists = {"n": lengths, "d": widths, "k": KERNELS, "r": WINDOWS}
    bar = progress_bar(ROWS.items(), desc="Table 1", unit=" layers")
    measured = {name: measure_row(row, lists, rounds) for name, row in bar}
    numbers = {"torch": torch.__version__, "path_lengths": PATH_LENGTHS, "rows": measured}
    write_results(output_dir, "table1", numbers, as_markdown(measured))


def main() -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/table1"), help="folder to write to")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048], help="n")
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256, 512], help=f"d, multiples of {D_K}")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of a time, of which the fastest counts")
    run_command(parser, lambda given: reproduce(given.output_dir, given.lengths, given.widths, given.rounds))


if __name__ == "__main__":
    main()
