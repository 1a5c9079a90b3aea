"""Statements of the paper's text, as pictures and numbers.

    python examples/reproduce/figures.py --output_dir runs/figures

Leaves in --output_dir figures.json, with the numbers of all pictures, and:

scaling.png   3.2.1: the variance of q.k and the gradient of the softmax over d_k
additive.png  3.2.1: additive and dot-product attention: time, memory, and the result of training

Time and memory are measured on the CPU, in processor time; `retrieval` describes the task of the training.
"""

import math
from pathlib import Path
from statistics import fmean

import torch
from common import plot_lines, write_results
from matplotlib.figure import Figure
from measure import UNITS, costs_of, fitted_exponent
from torch import nn

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.progress import progress_bar

D_K = (4, 16, 64, 256)  # widths of a head, for the scaling and the training
LENGTHS = (64, 128, 256, 512)  # n, for time and memory of attention
STEPS, SEEDS = 200, range(2)  # of each training, of which the mean is drawn
ROUNDS = 3  # measurements of a time, of which the fastest counts
KINDS = {"scaled dot-product": "C0", "dot-product": "C1", "additive": "C2"}  # the colour of each


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
        ("gradient", "Gradient of the softmax (mean norm of its Jacobian)", "log"),
        ("largest_weight", "Largest weight (mean)", "linear"),
    )
    for axis, (measure, title, scale) in zip(figure.subplots(1, 3), panels, strict=True):
        labels = {"unscaled": "q.k", "scaled": "q.k / sqrt(d_k)"}
        lines = {label: [row[name][measure] for row in rows] for name, label in labels.items()}
        plot_lines(axis, "d_k", D_K, lines, ["C0", "C1"])
        axis.set(title=title, yscale=scale)
    exponent = fitted_exponent(D_K, [row["unscaled"]["variance"] for row in rows])
    return figure, {"keys": keys, "queries": queries, "variance_grows_as_d_k_to_the": exponent, "rows": rows}


class Head(nn.Module):
    """The compatibility function of one head on learned projections of width d_k.

    kind: "dot-product" q.k, "scaled dot-product" q.k / sqrt(d_k), or "additive" v . tanh(q + k): the feed-forward
    network with one hidden layer that the paper names (Bahdanau et al. 2014), its first matrix in two parts.
    """

    def __init__(self, kind: str, d_model: int, d_k: int):
        super().__init__()
        self.kind = kind
        self.w_q, self.w_k = (nn.Linear(d_model, d_k, bias=False) for _ in range(2))
        # Components of q and k have mean 0 and variance 1 as those of the inputs do, which 3.2.1 assumes.
        for projection in (self.w_q, self.w_k):
            nn.init.normal_(projection.weight, std=d_model**-0.5)
        self.v = nn.Parameter(torch.randn(d_k) * d_k**-0.5) if kind == "additive" else None

    def forward(self, x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """x (B, T, D), keys (B, S, D) -> scores before the softmax (B, T, S)"""
        q, k = self.w_q(x), self.w_k(keys)
        if self.kind == "additive":
            return torch.tanh(q[:, :, None] + k[:, None]) @ self.v
        scale = q.shape[-1] ** -0.5 if self.kind == "scaled dot-product" else 1.0
        return q @ k.transpose(1, 2) * scale


def attention_cost(kind: str, n: int, d_k: int = 64) -> dict:
    """Seconds and bytes of attention with n queries, keys and values, forward and backward."""
    x, head = torch.randn(1, n, d_k, requires_grad=True), Head(kind, d_k, d_k)

    def compute() -> None:
        output = head(x, x).softmax(dim=-1) @ x
        torch.autograd.grad(output.square().sum(), [x, *head.parameters()])

    return {"kind": kind, "n": n, **costs_of(compute, ROUNDS)}


def retrieval(kind: str, d_k: int, steps: int, seed: int) -> dict:
    """Train one head to return the value of the key of which the query is a noisy copy.

    There are 16 keys and values of 16 dimensions, whatever d_k is, so the task is the same for every d_k. The loss is
    the squared error of the returned value, so every gradient passes through the softmax.

    Returns:
        "gradient": norm of the loss's gradient with respect to the scores, before the first update; "error": the
        squared error on 2000 new queries, about 1 for a guess.
    """
    torch.manual_seed(seed)
    keys, width, batch, noise = 16, 16, 64, 0.3
    head = Head(kind, width, d_k)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2, betas=(0.9, 0.98), eps=1e-9)

    def attempt(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores (count, keys), and the mean squared error."""
        key, value = (torch.randn(count, keys, width) for _ in range(2))
        target, rows = torch.randint(keys, (count,)), torch.arange(count)
        query = key[rows, target] + noise * torch.randn(count, width)
        scores = head(query[:, None], key)[:, 0]
        given = torch.einsum("bs,bsd->bd", scores.softmax(dim=-1), value)
        return scores, (given - value[rows, target]).square().mean()

    scores, loss = attempt(2000)
    (gradient,) = torch.autograd.grad(loss, scores)
    for _ in range(steps):
        optimizer.zero_grad()
        attempt(batch)[1].backward()
        optimizer.step()
    return {"gradient": gradient.norm().item(), "error": attempt(2000)[1].item()}


def additive() -> tuple[Figure, dict]:
    """Section 3.2.1: additive and dot-product attention, and the effect of the scaling as d_k grows.

    Time and memory over n, with the exponents of n; and of each training over d_k the mean of the seeds as a line, each
    run as a dot.
    """
    compared = [(kind, n) for kind in ("scaled dot-product", "additive") for n in LENGTHS]
    costs = [attention_cost(*pair) for pair in progress_bar(compared, desc="additive, costs", unit=" points")]
    runs = [(kind, d_k, seed) for kind in KINDS for d_k in D_K for seed in SEEDS]
    trained = [
        {"kind": kind, "d_k": d_k, "seed": seed, **retrieval(kind, d_k, STEPS, seed)}
        for kind, d_k, seed in progress_bar(runs, desc="additive, training", unit=" runs")
    ]
    figure, exponents = Figure(figsize=(14, 4), layout="constrained"), {}
    axes = figure.subplots(1, 4)
    for axis, (measure, (unit, size)) in zip(axes[:2], UNITS.items(), strict=True):
        for kind in ("scaled dot-product", "additive"):
            values = [cost[measure] / size for cost in costs if cost["kind"] == kind]
            exponent = exponents[f"{kind}, {measure}"] = fitted_exponent(LENGTHS, values)
            plot_lines(axis, "n", LENGTHS, {f"{kind}: n^{exponent:.2f}": values}, [KINDS[kind]])
        axis.set(title=unit.capitalize(), yscale="log")
    panels = {
        "gradient": ("Gradient in the scores at the start", "log"),
        "error": ("Error after training", "log"),
    }
    for axis, (measure, (title, scale)) in zip(axes[2:], panels.items(), strict=True):
        for kind, colour in KINDS.items():
            of_kind = [[run[measure] for run in trained if (run["kind"], run["d_k"]) == (kind, d_k)] for d_k in D_K]
            axis.plot(D_K, of_kind, ".", color=colour, alpha=0.3)
            plot_lines(axis, "d_k", D_K, {kind: list(map(fmean, of_kind))}, [colour])
        axis.set(title=title, yscale=scale)
    return figure, {"costs": costs, "cost_exponents": exponents, "training": trained}


def reproduce(output_dir: Path) -> None:
    torch.manual_seed(0)
    drawn = {draw.__name__: draw() for draw in (scaling, additive)}
    numbers = {"torch": torch.__version__, **{name: found for name, (_, found) in drawn.items()}}
    write_results(output_dir, "figures", numbers, {name: figure for name, (figure, _) in drawn.items()})


def main() -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/figures"), help="folder to write to")
    run_command(parser, lambda options: reproduce(options.output_dir))


if __name__ == "__main__":
    main()
