"""What the paper says in formulas and footnotes, as pictures and numbers.

    python examples/reproduce/figures.py --output_dir runs/reproduce/figures

Leaves in --output_dir, and the numbers behind all of them in figures.json:

schedule.png         5.3: the learning rate over the steps, for several d_model and warmup_steps
label_smoothing.png  5.4: the distribution to be learned, and the loss over the probability of the right token
positions.png        3.5: the table of sinusoids, and the dot products of PE(pos) with PE(pos + k)
scaling.png          3.2.1: the variance of q.k over d_k, and how it flattens the softmax's gradient
additive.png         3.2.1: additive against dot-product attention: time, memory, and what training makes of each

The last is measured on the CPU, in processor time; `retrieval` describes the task that is trained.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from matplotlib.figure import Figure
from measure import best_seconds, fitted_exponent, peak_bytes
from torch import nn
from tqdm.auto import tqdm
from transformers import HfArgumentParser

from modeling_vanilla.io import one_line_errors, write_json
from modeling_vanilla.layers_vanilla import SinusoidalPositions
from modeling_vanilla.loss_vanilla import smoothed_cross_entropy
from modeling_vanilla.training.memory import keep_freed_memory
from modeling_vanilla.training.optimization import learning_rate
from modeling_vanilla.visualization.attention import save_figure


@dataclass
class Options:
    output_dir: str = field(default="runs/reproduce/figures", metadata={"help": "folder to write to"})
    d_k: list[int] = field(
        default_factory=lambda: [4, 16, 64, 256], metadata={"help": "widths of a head, of scaling and training"}
    )
    lengths: list[int] = field(
        default_factory=lambda: [64, 128, 256, 512], metadata={"help": "n, of the time and memory of attention"}
    )
    train_steps: int = field(default=200, metadata={"help": "updates of the task that is learned"})
    train_seeds: int = field(default=2, metadata={"help": "runs of each, of which the mean is drawn"})
    rounds: int = field(default=3, metadata={"help": "of the timing, of which the fastest counts"})
    seed: int = field(default=0, metadata={"help": "of everything drawn by chance"})

    def __post_init__(self):
        for name in ("d_k", "lengths"):
            values = getattr(self, name)
            if len(set(values)) < 2:
                raise ValueError(f"{name}: an exponent needs two different sizes, not {values}")
            setattr(self, name, sorted(set(values)))
        for name in ("d_k", "lengths", "train_steps", "train_seeds", "rounds"):
            value = getattr(self, name)
            least = min(value) if isinstance(value, list) else value
            if least < 1:
                raise ValueError(f"{name} must be at least 1, not {least}")


def schedule() -> tuple[Figure, dict]:
    """Section 5.3, Eq. 3: d_model moves the whole curve, warmup_steps the peak along it."""
    steps = range(1, 20001, 20)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    numbers = []
    settings = [(512, 4000), (1024, 4000), (256, 4000), (512, 2000), (512, 8000)]
    for d_model, warmup_steps in settings:
        rates = [learning_rate(step, d_model, warmup_steps) for step in steps]
        axes.plot(steps, rates, label=f"d_model {d_model}, warmup_steps {warmup_steps}")
        peak = max(range(1, 20001), key=lambda step: learning_rate(step, d_model, warmup_steps))
        numbers.append(
            {
                "d_model": d_model,
                "warmup_steps": warmup_steps,
                "peak_step": peak,
                "peak_rate": learning_rate(peak, d_model, warmup_steps),
            }
        )
    axes.set(xlabel="step", ylabel="learning rate", title="Learning rate (5.3)")
    axes.legend()
    return figure, {"curves": numbers}


def target_distribution(vocab_size: int, label: int, epsilon: float) -> torch.Tensor:
    """What the loss of section 5.4 asks the model to give, (V,): the only one whose loss has no gradient.

    Read off the package's loss: its gradient in the logits is softmax(logits) - target.
    """
    logits = torch.zeros(1, vocab_size, dtype=torch.double, requires_grad=True)
    smoothed_cross_entropy(logits, torch.tensor([label]), epsilon).backward()
    return 1 / vocab_size - logits.grad[0]


def smoothed_loss(p: torch.Tensor, vocab_size: int, epsilon: float) -> torch.Tensor:
    """The loss, in nats, of models that give the right token p (N,) and every other one the same share of the rest."""
    logits = torch.log((1 - p) / (vocab_size - 1))[:, None].repeat(1, vocab_size)
    logits[:, 0] = p.log()
    label = torch.tensor([0])
    return torch.stack([smoothed_cross_entropy(row[None], label, epsilon) for row in logits])


def label_smoothing() -> tuple[Figure, dict]:
    """Section 5.4: part of the probability goes to all tokens evenly, and certainty costs more than it gains."""
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    vocab_size, numbers = 10, []
    # Closer and closer to 0 and 1, where the loss without smoothing has its end and the others turn up.
    p = torch.sigmoid(torch.linspace(-4, 9, 261, dtype=torch.double))
    for number, epsilon in enumerate((0.0, 0.1, 0.2)):
        target = target_distribution(vocab_size, 3, epsilon)
        left.bar(
            [token + 0.27 * (number - 1) for token in range(vocab_size)], target, width=0.25, label=f"eps {epsilon}"
        )
        losses = smoothed_loss(p, 1000, epsilon)
        right.plot(p.logit(), losses, label=f"eps {epsilon}")
        best = int(losses.argmin())
        numbers.append(
            {"epsilon": epsilon, "target_of_the_label": target[3].item(), "target_of_the_others": target[0].item()}
        )
        if epsilon:  # without, the loss only falls
            right.plot(p.logit()[best], losses[best], "k.", markersize=8)
            numbers[-1] |= {"lowest_loss": losses[best].item(), "at_probability": p[best].item()}
    left.set(title="Target distribution, vocabulary of 10, label 3 (5.4)", xlabel="token", ylabel="probability")
    right.set(title="Loss, vocabulary of 1000 (dot: the lowest)", ylabel="loss (nats)")
    right.set(xlabel="probability of the right token, the others equally likely")
    shown = [0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999]
    right.set_xticks([math.log(x / (1 - x)) for x in shown], [str(x) for x in shown])
    for axis in (left, right):
        axis.legend()
    return figure, {"vocab_size_of_target": vocab_size, "vocab_size_of_loss": 1000, "smoothings": numbers}


def positions() -> tuple[Figure, dict]:
    """Section 3.5: dot products depend on the distance alone, the same wherever it is measured from."""
    d_model, length, reach = 512, 400, 100
    table = SinusoidalPositions(d_model)(torch.arange(length)).double()
    products = table @ table.T
    starts = [100, 200, 299]
    offsets = range(-reach, reach + 1)
    curves = torch.stack([products[start, start - reach : start + reach + 1] for start in starts])
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    picture = left.imshow(table[:100], aspect="auto", cmap="RdBu", vmin=-1, vmax=1)
    figure.colorbar(picture, ax=left)
    left.set(title=f"PE(pos, i), d_model {d_model} (3.5)", xlabel="dimension i", ylabel="position pos")
    for start, curve, style in zip(starts, curves, ("-", "--", ":"), strict=True):
        right.plot(offsets, curve, style, linewidth=4 - starts.index(start), label=f"pos {start}")
    right.set(title="PE(pos) . PE(pos + k): one curve for every pos", xlabel="k", ylabel="dot product")
    right.legend()
    return figure, {
        "d_model": d_model,
        "dot_product_at_0": products[0, 0].item(),
        "dot_product_at_1": products[0, 1].item(),
        "dot_product_at_10": products[0, 10].item(),
        "dot_product_at_100": products[0, 100].item(),
        "largest_difference_between_positions": (curves - curves[0]).abs().max().item(),
    }


def softmax_gradient(scores: torch.Tensor) -> torch.Tensor:
    """Frobenius norm of the Jacobian of softmax, diag(p) - p p^T, of each row of scores (..., n) -> (...)"""
    p = scores.softmax(dim=-1)
    # Squared and summed: the diagonal gives (p - p^2)^2, the rest (p_i p_j)^2.
    squares = p.square()
    return ((p - squares).square().sum(-1) + squares.sum(-1).square() - squares.square().sum(-1)).clamp(min=0).sqrt()


def scaling(options: Options, keys: int = 64, queries: int = 1000) -> tuple[Figure, dict]:
    """Section 3.2.1: components of mean 0 and variance 1 give a q.k of variance d_k, and a softmax without gradient."""
    rows = []
    for d_k in options.d_k:
        q, k = torch.randn(queries, 1, d_k), torch.randn(queries, keys, d_k)
        scores = (q * k).sum(-1)
        row = {"d_k": d_k}
        for name, value in (("unscaled", scores), ("scaled", scores / math.sqrt(d_k))):
            row[name] = {
                "variance": value.var().item(),
                "gradient": softmax_gradient(value.double()).mean().item(),
                "largest_weight": value.softmax(dim=-1).amax(dim=-1).mean().item(),
            }
        rows.append(row)
    figure = Figure(figsize=(13, 4), layout="constrained")
    titles = {
        "variance": "Variance of q.k",
        "gradient": "Gradient of the softmax (mean norm of its Jacobian)",
        "largest_weight": "Largest weight (mean)",
    }
    for axis, (measure, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        for name, label in (("unscaled", "q.k"), ("scaled", "q.k / sqrt(d_k)")):
            axis.plot(options.d_k, [row[name][measure] for row in rows], ".-", label=label)
        axis.set(title=title, xlabel="d_k", xscale="log")
        axis.set_xticks(options.d_k, options.d_k)
        axis.set_xticks([], minor=True)
        axis.legend()
        if measure != "largest_weight":
            axis.set_yscale("log")
    exponent = fitted_exponent(options.d_k, [row["unscaled"]["variance"] for row in rows])
    return figure, {"keys": keys, "queries": queries, "variance_grows_as_d_k_to_the": exponent, "rows": rows}


class Head(nn.Module):
    """The compatibility function of one head: learned projections of width d_k, and how they meet.

    kind: "dot-product" q.k, "scaled dot-product" q.k / sqrt(d_k), or "additive" v . tanh(q + k): the feed-forward
    network with one hidden layer that the paper names (Bahdanau et al. 2014), its first matrix in two parts.
    """

    def __init__(self, kind: str, d_model: int, d_k: int):
        super().__init__()
        self.kind = kind
        self.w_q, self.w_k = (nn.Linear(d_model, d_k, bias=False) for _ in range(2))
        # Inputs with components of mean 0 and variance 1 give such q and k, as 3.2.1 takes them.
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


KINDS = ("scaled dot-product", "dot-product", "additive")


def attention_costs(options: Options, d_k: int = 64) -> list[dict]:
    """Seconds and bytes of n queries over n keys and values, forward and backward."""
    points = [(kind, n) for kind in ("scaled dot-product", "additive") for n in options.lengths]
    rows = []
    for kind, n in tqdm(points, desc="additive, costs", unit=" points"):
        head = Head(kind, d_k, d_k)
        x = torch.randn(1, n, d_k, requires_grad=True)

        def compute(head=head, x=x) -> None:
            output = head(x, x).softmax(dim=-1) @ x
            torch.autograd.grad(output.square().sum(), [x, *head.parameters()])

        rows.append(
            {"kind": kind, "n": n, "seconds": best_seconds(compute, options.rounds), "bytes": peak_bytes(compute)}
        )
    return rows


def retrieval(kind: str, d_k: int, steps: int, seed: int) -> dict:
    """Train one head to give back the value of the key that the query is a noisy copy of.

    16 keys and values of 16 dimensions, whatever d_k is, so that the task stays the same. The loss is the squared error
    of the value given back, so that every gradient comes through the softmax.

    Returns:
        "gradient": norm of the loss's gradient in the scores, before the first update; "accuracy": share of 2000 new
        queries whose own key has the largest weight; "error": their squared error, about 1 for a guess.
    """
    torch.manual_seed(seed)
    keys, width, batch, noise = 16, 16, 64, 0.3
    head = Head(kind, width, d_k)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2, betas=(0.9, 0.98), eps=1e-9)

    def attempt(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Scores (count, keys), which key was wanted (count,), and the mean squared error."""
        key, value = (torch.randn(count, keys, width) for _ in range(2))
        wanted, rows = torch.randint(keys, (count,)), torch.arange(count)
        query = key[rows, wanted] + noise * torch.randn(count, width)
        scores = head(query[:, None], key)[:, 0]
        given = torch.einsum("bs,bsd->bd", scores.softmax(dim=-1), value)
        return scores, wanted, (given - value[rows, wanted]).square().mean()

    scores, _, loss = attempt(2000)
    (gradient,) = torch.autograd.grad(loss, scores)
    for _ in range(steps):
        optimizer.zero_grad()
        attempt(batch)[-1].backward()
        optimizer.step()
    with torch.no_grad():
        scores, wanted, error = attempt(2000)
    return {
        "gradient": gradient.norm().item(),
        "accuracy": (scores.argmax(dim=-1) == wanted).float().mean().item(),
        "error": error.item(),
    }


def additive(options: Options) -> tuple[Figure, dict]:
    """Section 3.2.1: additive and dot-product attention, and what the latter is without its scaling as d_k grows."""
    costs = attention_costs(options)
    runs = [
        (kind, d_k, options.seed + number)
        for kind in KINDS
        for d_k in options.d_k
        for number in range(options.train_seeds)
    ]
    trained = [
        {"kind": kind, "d_k": d_k, "seed": seed, **retrieval(kind, d_k, options.train_steps, seed)}
        for kind, d_k, seed in tqdm(runs, desc="additive, training", unit=" runs")
    ]
    figure = Figure(figsize=(16, 4), layout="constrained")
    time_axis, memory_axis, *of_training = figure.subplots(1, 5)
    exponents = {}
    for axis, measure, unit, title in (
        (time_axis, "seconds", 1e-3, "Time (ms)"),
        (memory_axis, "bytes", 2**20, "Memory (MiB)"),
    ):
        for kind in ("scaled dot-product", "additive"):
            values = [cost[measure] for cost in costs if cost["kind"] == kind]
            exponent = fitted_exponent(options.lengths, values)
            exponents[f"{kind}, {measure}"] = exponent
            axis.loglog(
                options.lengths,
                [value / unit for value in values],
                ".-",
                label=f"{kind}: n^{exponent:.2f}",
                color=f"C{KINDS.index(kind)}",
            )
        axis.set(title=title, xlabel="n")
        axis.set_xticks(options.lengths, options.lengths)
    for axis, measure, title in zip(
        of_training,
        ("gradient", "error", "accuracy"),
        ("Gradient in the scores at the start", "Error after training", "Accuracy after training"),
        strict=True,
    ):
        for number, kind in enumerate(KINDS):
            of_kind = [run for run in trained if run["kind"] == kind]
            means = [
                sum(run[measure] for run in of_kind if run["d_k"] == d_k) / options.train_seeds for d_k in options.d_k
            ]
            axis.plot(options.d_k, means, ".-", color=f"C{number}", label=kind)
            axis.plot(
                [run["d_k"] for run in of_kind], [run[measure] for run in of_kind], ".", color=f"C{number}", alpha=0.3
            )
        axis.set(title=title, xlabel="d_k", xscale="log")
        axis.set_xticks(options.d_k, options.d_k)
    for axis in of_training[:2]:
        axis.set_yscale("log")
    for axis in figure.axes:
        axis.set_xticks([], minor=True)
        axis.legend(fontsize=7)
    return figure, {"costs": costs, "cost_exponents": exponents, "training": trained}


def main() -> None:
    parser = HfArgumentParser(Options, description=__doc__)
    with one_line_errors():
        keep_freed_memory()  # or clearing new pages is what the large sizes measure
        (options,) = parser.parse_args_into_dataclasses()
        reproduce(options)


def reproduce(options: Options) -> dict:
    """Draw all, and write the pictures and their numbers. Returns what figures.json holds."""
    folder = Path(options.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    drawings: dict[str, Callable[[], tuple[Figure, dict]]] = {
        "schedule": schedule,
        "label_smoothing": label_smoothing,
        "positions": positions,
        "scaling": lambda: scaling(options),
        "additive": lambda: additive(options),
    }
    results = {"settings": asdict(options), "torch": torch.__version__}
    for name, draw in drawings.items():
        figure, results[name] = draw()
        save_figure(figure, folder / f"{name}.png")
    write_json(folder / "figures.json", results)
    return results


if __name__ == "__main__":
    main()
