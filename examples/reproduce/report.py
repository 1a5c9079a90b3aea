"""Every table and figure of the paper at smoke scale, on two cores in under ten minutes, as one report.

    python examples/reproduce/report.py --output_dir runs/reproduce

Runs the scripts of this folder one after the other, on an embedded toy corpus and toy trees, and leaves report.md with
their tables and pictures. The figures show that every piece works; they say nothing of the paper's. A piece that is
done already is not run again; one that was interrupted is begun anew.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from tqdm.auto import tqdm

from modeling_vanilla.io import one_line_errors, write_text

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent
TRAINING = {
    "--preset": "tiny",
    "--encoder_layers": 2,
    "--decoder_layers": 2,
    "--dropout": 0.1,
    "--vocab_size": 1000,
    "--max_steps": 1200,
    "--tokens_per_update": 2500,
    "--tokens_per_batch": 2500,
    "--warmup_steps": 200,
    "--learning_rate_scale": 0.5,
    "--mixed_precision": "bf16",
    "--validate_steps": 600,
    "--checkpoint_steps": 300,
    "--average_checkpoints": 1,
}


def pieces(output: Path) -> list[tuple[str, list]]:
    """What is run, in order: (folder, command). A folder is complete when its command has ended well."""
    train, validation, test = (str(output / "corpus" / f"{split}.jsonl") for split in ("train", "validation", "test"))
    data = ["--train_file", train, "--validation_file", validation]
    training = [part for option in TRAINING.items() for part in option]
    sentence = "the old teacher reads a book in the garden ."
    run = output / "translation"
    return [
        ("corpus", [EXAMPLES / "toy_corpus.py", "--train", 5000, "--validation", 100, "--test", 100]),
        ("table1", [HERE / "table1.py"]),
        ("translation", [EXAMPLES / "train_translation.py", *data, "--test_file", test, *training]),
        ("table2", [HERE / "table2.py", "--runs", run]),
        ("table3", [HERE / "table3.py", *data, "--scale", HERE / "scales" / "smoke.json"]),
        ("table4", [HERE / "parsing.py", "--scale", "smoke"]),
        ("figures", [HERE / "figures.py"]),
        ("attention", [EXAMPLES / "visualize_attention.py", run / "model", "--sentence", sentence]),
    ]


def make_way(folder: Path) -> None:
    """Remove what an interrupted piece left.

    Raises:
        ValueError: if the folder holds something that is no such piece's.
    """
    if log_of(folder).exists():
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.exists() and any(folder.iterdir()):
        raise ValueError(f"output_dir: {folder} holds something else; choose another folder")


def log_of(folder: Path) -> Path:
    """What a piece says goes there, beside its folder."""
    return folder.with_name(folder.name + ".log")


def run_piece(command: list, folder: Path) -> None:
    """Run a script, and log what it says.

    Raises:
        ValueError: if it fails, with its last line.
    """
    log = log_of(folder)
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(
            [sys.executable, *map(str, command), "--output_dir", str(folder)],
            stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        ).returncode  # fmt: skip
    if code:
        last = (log.read_text(encoding="utf-8").strip() or "no output").splitlines()[-1]
        raise ValueError(f"{Path(command[0]).name} ended with exit code {code}: {last} (see {log})")


def section(folder: Path) -> str:
    """A piece's tables, with their headings one level down, and its pictures and pages; or nothing."""
    tables = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))]
    pictures = [f"![{path.stem}]({folder.name}/{path.name})" for path in sorted(folder.glob("*.png"))]
    pages = [f"[{path.name}]({folder.name}/{path.name})" for path in sorted(folder.glob("*.html"))]
    lines = ["#" + line if line.startswith("#") else line for table in tables for line in table.splitlines()]
    lines += ["", *pictures, "", *pages]
    return "\n".join(lines).strip()


def report(output: Path) -> Path:
    """Run what is missing and write report.md. Its path."""
    output.mkdir(parents=True, exist_ok=True)
    parts = ["# The paper's tables and figures, at smoke scale", "", "By `make reproduce`, on a made-up corpus.", ""]
    for name, command in tqdm(pieces(output), desc="pieces"):
        folder, done = output / name, output / f"{name}.done"
        if not done.exists():
            make_way(folder)
            run_piece(command, folder)
            done.touch()
        if text := section(folder):
            parts += [f"# {name}", "", text, ""]
    write_text(output / "report.md", "\n".join(parts))
    return output / "report.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/reproduce"), help="default: %(default)s")
    with one_line_errors():
        print(report(parser.parse_args().output_dir.resolve()))


if __name__ == "__main__":
    main()
