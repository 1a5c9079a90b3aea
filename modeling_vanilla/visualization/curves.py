"""A run at a glance: loss, learning rate and BLEU over the steps."""

from pathlib import Path

from matplotlib.figure import Figure

from .attention import save_figure


def plot_run(losses: list[float], rates: list[float], validations: list[dict], path: Path) -> None:
    """Draw the curves of a run.

    Args:
        losses, rates: the training loss in nats per token, label-smoothed, and the learning rate of each update.
        validations: entries with "step", "loss" (not smoothed) and "bleu".
        path: PNG file to write.
    """
    steps = range(1, len(losses) + 1)
    panels = 3 if validations else 2
    figure = Figure(figsize=(8, 3 * panels), layout="constrained")
    top, middle, *bottom = figure.subplots(panels, 1, sharex=True)
    top.plot(steps, losses, linewidth=0.6, label="training, label-smoothed")
    top.set_ylabel("loss (nats per token)")
    middle.plot(steps, rates)
    middle.set_ylabel("learning rate")
    for axes in bottom:
        at = [entry["step"] for entry in validations]
        top.plot(at, [entry["loss"] for entry in validations], marker=".", label="validation")
        axes.plot(at, [entry["bleu"] for entry in validations], marker=".")
        axes.set_ylabel("validation BLEU")
    top.legend()
    figure.axes[-1].set_xlabel("step")
    save_figure(figure, path)
