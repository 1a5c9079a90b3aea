"""Table 2: BLEU and training FLOPs of the paper's systems and of runs of this package.

    python examples/reproduce/table2.py --runs runs/mine runs/other --output_dir runs/table2

Each run is an output folder of `vanilla train` with a test set. Its cost is given twice: counted by formula, and
as the paper estimates it, training time x devices x sustained FLOPS (--sustained_tflops 9.5 for a P100; by default
this machine's, measured). Leaves table2.md and table2.json.
"""

from pathlib import Path

import torch
from common import PAPER, markdown_table, write_results

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import read_json
from modeling_vanilla.inference.translator import usable_device
from modeling_vanilla.training.device import KINDS, product_flops

FIGURES = ("de", "fr", "flops_de", "flops_fr")  # of the paper's systems; None where it has none
SYSTEMS = {system: [printed.get(name) for name in FIGURES] for system, printed in PAPER["table2"].items()}


def read_run(folder: Path, sustained_tflops: float | None) -> dict:
    """The figures of a run.

    Args:
        sustained_tflops: of one device of the run; None to measure this machine's.

    Raises:
        ValueError: if the folder holds no finished run with scores on a test set; the message names the file.
    """
    path = folder / "results.json"
    try:
        results = read_json(path)
        data, device, kind = results["settings"]["data"], results["device"], results["precision"]
        figures = {
            "run": folder.name,
            "languages": f"{data['source_lang']}-{data['target_lang']}",
            "test_sentences": results["test_sentences"],
            "BLEU": results["bleu"],
            "compound_split_BLEU": results["bleu_compound_split"],
            "counted_flops": results["flops"],
        }
        device_seconds = results["train_seconds"] * results["processes"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"runs: {path} is no result of a training with test data") from error
    rate = (sustained_tflops or 0) * 1e12
    rate = rate or product_flops(usable_device(device), KINDS.get(kind, torch.float32))
    return figures | {"table_2_flops": device_seconds * rate}


def as_markdown(runs: list[dict]) -> str:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    paper = [[name, *map(number, figures, ("g", "g", ".1e", ".1e"))] for name, figures in SYSTEMS.items()]
    forms = {"BLEU": ".2f", "compound_split_BLEU": ".2f", "counted_flops": ".2e", "table_2_flops": ".2e"}
    rows = [[format(value, forms.get(name, "")) for name, value in run.items()] for run in runs]
    head = ["run", "languages", "test sentences", "sacreBLEU", "compound-split BLEU"]
    parts = [
        "# Table 2\n",
        "The paper's systems: tokenised BLEU on newstest2014, FLOPs = training time x devices x sustained FLOPS.\n",
        markdown_table(("system", "BLEU en-de", "en-fr", "FLOPs en-de", "en-fr"), paper),
        "Runs of this package, on their own test sets: not comparable with the above, nor with each other unless the "
        "test set is the same.\n",
        markdown_table([*head, "FLOPs counted", "FLOPs by time x FLOPS"], rows),
    ]
    return "\n".join(parts)


def reproduce(folders: list[Path], output_dir: Path, sustained_tflops: float | None = None) -> None:
    """Write table and numbers of these runs to a folder, and print the table."""
    runs = [read_run(folder, sustained_tflops) for folder in folders]
    table = as_markdown(runs)
    write_results(output_dir, "table2", {"paper": SYSTEMS, "runs": runs}, table)
    print(table)


def main() -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="output folders of `vanilla train`")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder to write to")
    parser.add_argument("--sustained_tflops", type=float, help="what one device of the runs sustains")
    run_command(parser, lambda options: reproduce(options.runs, options.output_dir, options.sustained_tflops))


if __name__ == "__main__":
    main()
