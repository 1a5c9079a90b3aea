"""BLEU and chrF on validation data by the minutes of training: runs of this package beside those of a peer.

    python benchmarks/draw_bleu.py bleu.png runs/mine runs/peer30 runs/peer60

A run is an output folder of `vanilla train`, whose validations its last checkpoint has, or of seq2seq_trainer.py. Each
is a line, with a point for each validation. Writes the picture and prints the points.
"""

from argparse import Namespace
from pathlib import Path

import common
from matplotlib.figure import Figure

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_json
from modeling_vanilla.visualization.heat_maps import save_figure

SCORES = {"bleu": "BLEU", "chrf": "chrF"}


def read_points(run: Path) -> list[dict]:
    """The minutes, tokens of both sides and scores of a run's validations."""
    if (run / "validation.json").exists():
        return [
            {"minutes": entry["seconds"] / 60, "tokens": entry["tokens"]}
            | {name: entry[f"eval_{name}"] for name in SCORES}
            for entry in read_json(run / "validation.json")["validations"]
        ]
    checkpoints = [read_json(path) for path in run.glob("checkpoint-*/progress.json")]
    if not checkpoints:
        raise ValueError(f"runs: {run} has neither validation.json nor a checkpoint")
    last = max(checkpoints, key=lambda progress: progress["step"])
    totals = {"minutes": last["seconds"] / 60, "tokens": last["tokens"]}  # all updates cost the same
    return [
        {name: total * entry["step"] / last["step"] for name, total in totals.items()}
        | {name: entry[name] for name in SCORES}
        for entry in last["validations"]
    ]


def draw(options: Namespace) -> None:
    if options.picture.exists():
        raise ValueError(f"picture: {options.picture} exists; choose another name")
    figure, rows = Figure(figsize=(8, 6), layout="constrained"), []
    panels = figure.subplots(len(SCORES), 1, sharex=True)
    for run in options.runs:
        points = read_points(run)
        minutes = [point["minutes"] for point in points]
        for axes, name in zip(panels, SCORES, strict=True):
            axes.plot(minutes, [point[name] for point in points], marker=".", label=run.name)
        rows += [
            (run.name, *(f"{point[name]:.1f}" for name in ("minutes", *SCORES)), f"{point['tokens'] / 1e6:.1f}M")
            for point in points
        ]
    for axes, name in zip(panels, SCORES.values(), strict=True):
        axes.set_ylabel(f"validation {name}")
        axes.grid(alpha=0.3)
    panels[0].legend()
    panels[-1].set_xlabel("minutes of training")
    save_figure(figure, options.picture)
    print(common.table(("run", "minutes", *SCORES.values(), "tokens"), rows))


def main() -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("picture", type=Path, help="PNG file to write, a new one")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    run_command(parser, draw)


if __name__ == "__main__":
    main()
