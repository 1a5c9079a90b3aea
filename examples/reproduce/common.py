"""What the scripts of this folder share: the paper's figures, and tables."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from modeling_vanilla.files import write_json, write_text

PAPER = tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))


def write_results(folder: Path, name: str, numbers: dict, table: str) -> None:
    """Write NAME.md and NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.md", table)
    write_json(folder / f"{name}.json", numbers)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The rows below the head, in Markdown, with a newline at the end."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"
