"""Table 2: BLEU and training FLOPs of the paper's systems and of runs of this package.

    python examples/reproduce/table2.py --runs runs/mine runs/other --output_dir runs/table2

Each run is an output folder of train_translation.py with a test set. Its cost is given twice: counted by formula, and
as the paper estimates it, training time x devices x sustained FLOPS. Leaves table2.md, table2.json and table2.png.
"""

from pathlib import Path

from common import markdown_table
from matplotlib import colormaps
from matplotlib.figure import Figure

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_json, write_json, write_text
from modeling_vanilla.visualization.attention import save_figure

# BLEU on newstest2014 and training FLOPs as printed: en-de, en-fr; None where the paper has none.
PAPER = {
    "ByteNet": (23.75, None, None, None),
    "Deep-Att + PosUnk": (None, 39.2, None, 1.0e20),
    "GNMT + RL": (24.6, 39.92, 2.3e19, 1.4e20),
    "ConvS2S": (25.16, 40.46, 9.6e18, 1.5e20),
    "MoE": (26.03, 40.56, 2.0e19, 1.2e20),
    "Deep-Att + PosUnk, ensemble": (None, 40.4, None, 8.0e20),
    "GNMT + RL, ensemble": (26.30, 41.16, 1.8e20, 1.1e21),
    "ConvS2S, ensemble": (26.36, 41.29, 7.7e19, 1.2e21),
    "Transformer (base)": (27.3, 38.1, 3.3e18, 3.3e18),
    "Transformer (big)": (28.4, 41.8, 2.3e19, 2.3e19),
}


def read_run(folder: Path) -> dict:
    """The figures of a run.

    Raises:
        ValueError: if the folder holds no finished run with scores on a test set; it names the file.
    """
    path = folder / "results.json"
    if not path.is_file():
        raise ValueError(f"runs: {folder} holds no finished run, as it has no results.json")
    try:
        results = read_json(path)
        data = results["settings"]["data"]
        return {
            "run": folder.name,
            "languages": f"{data['source_lang'] or '?'}-{data['target_lang'] or '?'}",
            "test_sentences": results["test_sentences"],
            "BLEU": results["bleu"],
            "compound_split_BLEU": results["bleu_compound_split"],
            "counted_flops": results["cost"]["analytic_flops"],
            "table_2_flops": results["cost"]["table_2_flops"],
        }
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"runs: {path} is no result with scores on a test set and a cost ({error!r})") from error


def as_markdown(runs: list[dict]) -> str:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    paper = [
        (name, number(de, "g"), number(fr, "g"), number(cost_de, ".1e"), number(cost_fr, ".1e"))
        for name, (de, fr, cost_de, cost_fr) in PAPER.items()
    ]
    forms = {"BLEU": ".2f", "compound_split_BLEU": ".2f", "counted_flops": ".2e", "table_2_flops": ".2e"}
    rows = [[format(value, forms.get(name, "")) for name, value in run.items()] for run in runs]
    parts = [
        "# Table 2\n",
        "The paper's systems: tokenised BLEU on newstest2014, FLOPs = training time x devices x sustained FLOPS.\n",
        markdown_table(("system", "BLEU en-de", "en-fr", "FLOPs en-de", "en-fr"), paper),
        "Runs of this package, on their own test sets: not comparable with the above, nor with each other unless the "
        "test set is the same.\n",
        markdown_table(
            (
                *("run", "languages", "test sentences", "sacreBLEU", "compound-split BLEU"),
                *("FLOPs counted", "FLOPs by time x FLOPS"),
            ),
            rows,
        ),
    ]
    return "\n".join(parts)


def plot(runs: list[dict], path: Path) -> None:
    """Draw BLEU over FLOPs: the paper's systems for each language pair, and the runs by both estimates."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    pairs = {"en-de": (0, 2, "o"), "en-fr": (1, 3, "s")}
    for (name, row), color in zip(PAPER.items(), colormaps["tab10"].colors, strict=True):
        points = [(row[cost], row[bleu], marker) for bleu, cost, marker in pairs.values() if row[bleu] and row[cost]]
        for x, y, marker in points:
            axes.scatter(x, y, color=color, marker=marker)
        if points:
            axes.scatter([], [], color=color, label=name)
    for pair, (_, _, marker) in pairs.items():
        axes.scatter([], [], color="lightgrey", marker=marker, label=f"paper, {pair}")
    for name, label, marker in (("counted_flops", "counted", "x"), ("table_2_flops", "time x FLOPS", "+")):
        xs, ys = [run[name] for run in runs], [run["compound_split_BLEU"] for run in runs]
        axes.scatter(xs, ys, color="black", marker=marker, label=f"here, {label}")
    for run in runs:
        place = run["table_2_flops"], run["compound_split_BLEU"]  # the paper's BLEU is compound-split, too
        axes.annotate(run["run"], place, xytext=(4, 3), textcoords="offset points")
    axes.set(xscale="log", xlabel="training FLOPs", title="Table 2")
    axes.set_ylabel("compound-split BLEU (each on its own test set)")
    figure.legend(loc="outside right upper", fontsize=8)
    save_figure(figure, path)


def main() -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="output folders of train_translation.py")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder to write to")
    run_command(parser, lambda options: reproduce(options.runs, options.output_dir))


def reproduce(folders: list[Path], output_dir: Path) -> None:
    """Write table, numbers and picture of these runs to a folder, and print the table."""
    runs = [read_run(folder) for folder in folders]
    output_dir.mkdir(parents=True, exist_ok=True)
    table = as_markdown(runs)
    write_text(output_dir / "table2.md", table)
    write_json(output_dir / "table2.json", {"paper": PAPER, "runs": runs})
    plot(runs, output_dir / "table2.png")
    print(table)


if __name__ == "__main__":
    main()
