"""A run at a glance: loss, learning rate and BLEU over the steps."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from .heat_maps import save_figure


def plot_run(losses: list[float], rates: list[float], validations: list[dict], path: Path) -> None:
    """Draw the curves of a run.

    Training and validation loss have a panel each, as they are not to be compared: only the first is label-smoothed.

    Args:
        losses, rates: the training loss in nats per token, label-smoothed, and the learning rate of each update.
        validations: entries with "step", "loss" (not smoothed) and "bleu".
        path: PNG file to write.
    """
    steps = range(1, len(losses) + 1)
    panels: list[tuple[str, Sequence[int], Sequence[float]]] = [
        ("training loss,\nlabel-smoothed\n(nats per token)", steps, losses),
        ("learning rate", steps, rates),
    ]
    if validations:
        at = [entry["step"] for entry in validations]
        panels += [
            ("validation loss,\nnot smoothed\n(nats per token)", at, [entry["loss"] for entry in validations]),
            ("validation BLEU", at, [entry["bleu"] for entry in validations]),
        ]
    figure = Figure(figsize=(8, 2.5 * len(panels)), layout="constrained")
    for axes, (name, x, y) in zip(figure.subplots(len(panels), 1, sharex=True), panels, strict=True):
        axes.plot(x, y, linewidth=0.8, marker="." if x is not steps or len(x) == 1 else "")
        axes.set_ylabel(name)
    figure.suptitle(f"Training run {path.absolute().parent.name}", parse_math=False)
    axes.set_xlabel("step")
    save_figure(figure, path)
