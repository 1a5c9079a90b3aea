"""Statements of the paper's text, as pictures and numbers.

    python examples/reproduce/figures.py --output_dir runs/figures

Leaves in --output_dir figures.json, with the numbers of all pictures, and:

scaling.png   3.2.1: the variance of q.k and the gradient of the softmax over d_k
additive.png  3.2.1: time and memory of additive and of dot-product attention over n, on the CPU, in processor time
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measure import costs_of, fitted_exponent

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import write_json
from modeling_vanilla.progress import progress_bar
from modeling_vanilla.visualization.heat_maps import save_figure

D_K = (4, 16, 64, 256)  # widths of a head, for the scaling
LENGTHS = (64, 128, 256, 512)  # n, for time and memory
ROUNDS = 3  # measurements of a time, of which the fastest counts
UNITS = {"seconds": ("time (ms)", 1e-3), "bytes": ("memory (MiB)", 2**20)}


def plot_lines(axis: Axes, name: str, sizes: Sequence[int], lines: dict[str, Sequence[float]]) -> None:
    """Draw lines over sizes, which get a logarithmic axis of that name, with a tick at each."""
    for label, values in lines.items():
        axis.plot(sizes, values, ".-", label=label)
    axis.set(xlabel=name, xscale="log")
    axis.set_xticks(sizes, sizes)
    axis.set_xticks([], minor=True)
    axis.legend(fontsize=7)


def softmax_gradient(scores: torch.Tensor) -> torch.Tensor:
    """Frobenius norm of the Jacobian of softmax, diag(p) - p p^T, of each row of scores (..., n) -> (...)"""
    p = scores.softmax(dim=-1)
    # Squared and summed: the diagonal gives (p - p^2)^2, the rest (p_i p_j)^2.
    squares = p.square()
    return ((p - squares).square().sum(-1) + squares.sum(-1).square() - squares.square().sum(-1)).clamp(min=0).sqrt()


def scaling(keys: int = 64, queries: int = 1000) -> tuple[Figure, dict]:
    """Section 3.2.1: components of mean 0 and variance 1 give q.k a variance of d_k, and softmax small gradients."""
    rows = []
    for d_k in D_K:
        q, k = torch.randn(queries, 1, d_k), torch.randn(queries, keys, d_k)
        scores, row = (q * k).sum(-1), {"d_k": d_k}
        for name, value in (("unscaled", scores), ("scaled", scores / math.sqrt(d_k))):
            row[name] = {
                "variance": value.var().item(),
                "gradient": softmax_gradient(value.double()).mean().item(),
                "largest_weight": value.softmax(dim=-1).amax(dim=-1).mean().item(),
            }
        rows.append(row)
    figure = Figure(figsize=(13, 4), layout="constrained")
    panels = (
        ("variance", "Variance of q.k", "log"),
        ("gradient", "Norm of the softmax's Jacobian (mean)", "log"),
        ("largest_weight", "Largest weight (mean)", "linear"),
    )
    for axis, (measure, title, scale) in zip(figure.subplots(1, 3), panels, strict=True):
        labels = {"unscaled": "q.k", "scaled": "q.k / sqrt(d_k)"}
        lines = {label: [row[name][measure] for row in rows] for name, label in labels.items()}
        plot_lines(axis, "d_k", D_K, lines)
        axis.set(title=title, yscale=scale)
    exponent = fitted_exponent(D_K, [row["unscaled"]["variance"] for row in rows])
    return figure, {"keys": keys, "queries": queries, "variance_grows_as_d_k_to_the": exponent, "rows": rows}


def additive_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """v . tanh(q + k): the feed-forward network with one hidden layer that the paper names (Bahdanau et al. 2014).

    q (T, d_k), k (S, d_k), already projected, v (d_k,) -> (T, S)
    """
    return torch.tanh(q[:, None] + k) @ v


def scaled_dot_products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return q @ k.T / math.sqrt(q.shape[-1])


KINDS = {"scaled dot-product": scaled_dot_products, "additive": additive_scores}


def attention_cost(scores: Callable, n: int, d_k: int = 64) -> dict[str, float]:
    """Seconds and bytes of attention with n queries, keys and values, forward and backward."""
    q, k, values = (torch.randn(n, d_k, requires_grad=True) for _ in range(3))
    v = torch.randn(d_k)
    return costs_of(
        lambda: torch.autograd.grad((scores(q, k, v).softmax(dim=-1) @ values).square().sum(), [q, k, values]), ROUNDS
    )


def additive() -> tuple[Figure, dict]:
    """Section 3.2.1: time and memory of both kinds of attention over n, with the exponents of n."""
    figure, costs, exponents = Figure(figsize=(9, 4), layout="constrained"), {}, {}
    axes = figure.subplots(1, 2)
    for kind, scores in KINDS.items():
        costs[kind] = [attention_cost(scores, n) for n in progress_bar(LENGTHS, desc=kind, unit=" lengths")]
        for axis, (measure, (unit, size)) in zip(axes, UNITS.items(), strict=True):
            values = [cost[measure] / size for cost in costs[kind]]
            exponent = exponents[f"{kind}, {measure}"] = fitted_exponent(LENGTHS, values)
            plot_lines(axis, "n", LENGTHS, {f"{kind}: n^{exponent:.2f}": values})
            axis.set(title=unit, yscale="log")
    return figure, {"lengths": LENGTHS, "costs": costs, "exponents": exponents}


def reproduce(output_dir: Path) -> None:
    torch.manual_seed(0)
    numbers: dict = {"torch": torch.__version__}
    output_dir.mkdir(parents=True, exist_ok=True)
    for draw in (scaling, additive):
        figure, numbers[draw.__name__] = draw()
        save_figure(figure, output_dir / f"{draw.__name__}.png")
    write_json(output_dir / "figures.json", numbers)


def main() -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/figures"), help="folder to write to")
    run_command(parser, lambda options: reproduce(options.output_dir))


if __name__ == "__main__":
    main()
