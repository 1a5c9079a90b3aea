"""Every table and figure of the paper at smoke scale, on two cores in under ten minutes, as one report.

    python examples/reproduce/report.py --output_dir runs/reproduce

Runs the scripts of this folder one after the other, on a synthetic corpus and synthetic trees, and leaves report.md
with their tables and pictures. The figures show that every script works, and say nothing about the paper's. Run again,
it continues after the last script that was finished.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.files import check_unused, write_text
from modeling_vanilla.progress import progress_bar

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent
TRAINING = """
    --encoder_layers 2 --decoder_layers 2 --dropout 0.1 --vocab_size 1000 --max_steps 800
    --tokens_per_update 2500 --tokens_per_batch 2500 --warmup_steps 200 --learning_rate_scale 0.5
    --validate_steps 400 --checkpoint_steps 200 --average_checkpoints 1
"""


def pieces(output: Path) -> list[tuple[str, list]]:
    """The folders of the report in order, each with the arguments of Python that fill it."""
    train, validation, test = (str(output / "corpus" / f"{split}.jsonl") for split in ("train", "validation", "test"))
    data = ["--train_file", train, "--validation_file", validation]
    sentence = "The old farmer sees a small dog."
    run = output / "translation"
    return [
        ("corpus", [EXAMPLES / "toy_corpus.py", "--train", 5000, "--validation", 100, "--test", 100]),
        ("table1", [HERE / "table1.py"]),
        ("translation", ["-m", "modeling_vanilla", "train", *data, "--test_file", test, *TRAINING.split()]),
        ("table2", [HERE / "table2.py", "--runs", run]),
        ("table3", [HERE / "table3.py", *data, "--scale", HERE / "scales" / "smoke.json"]),
        ("table4", [HERE / "table4.py", "--scale", "smoke"]),
        ("figures", [HERE / "figures.py"]),
        ("attention", ["-m", "modeling_vanilla", "attention", run / "model", "--sentence", sentence]),
    ]


def run_piece(folder: Path, command: list) -> None:
    """Run a command with a new folder as --output_dir, and write its output to FOLDER.log.

    Raises:
        ValueError: if it fails, with its last line; or if the folder is not one that an interrupted run has left.
    """
    log = folder.with_name(folder.name + ".log")
    if log.exists():
        shutil.rmtree(folder, ignore_errors=True)
    else:
        check_unused("output_dir", folder)
    arguments = [sys.executable, *map(str, command), "--output_dir", str(folder)]
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(arguments, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    if done.returncode:
        last = (log.read_text(encoding="utf-8").strip() or "no output").splitlines()[-1]
        raise ValueError(f"{folder.name} ended with exit code {done.returncode}: {last} (see {log})")


def section(folder: Path) -> str:
    """The tables of a folder, with their headings one level lower, and its pictures and pages; "" without any."""
    tables = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))]
    pictures = [f"![{path.stem}]({folder.name}/{path.name})" for path in sorted(folder.glob("*.png"))]
    pages = [f"[{path.name}]({folder.name}/{path.name})" for path in sorted(folder.glob("*.html"))]
    lines = ["#" + line if line.startswith("#") else line for table in tables for line in table.splitlines()]
    lines += ["", *pictures, "", *pages]
    return "\n".join(lines).strip()


def report(output: Path) -> Path:
    """Run what is missing and write report.md. Returns its path."""
    output.mkdir(parents=True, exist_ok=True)
    parts = ["# The paper's tables and figures, at smoke scale", "", "By `make reproduce`, on a synthetic corpus.", ""]
    for name, command in progress_bar(pieces(output), desc="pieces"):
        folder, done = output / name, output / f"{name}.done"
        if not done.exists():
            run_piece(folder, command)
            done.touch()
        if text := section(folder):
            parts += [f"# {name}", "", text, ""]
    write_text(output / "report.md", "\n".join(parts))
    return output / "report.md"


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/reproduce"), help="folder of the report")
    run_command(parser, lambda options: print(report(options.output_dir.resolve())))
