"""The parts of the package import one way, as CONTRIBUTING.md draws them; so do the flat files."""

import ast
import re
from pathlib import Path

from helpers import ROOT

PACKAGE = ROOT / "modeling_vanilla"
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> tuple[str, ...]:
    """("training", "trainer") for modeling_vanilla/training/trainer.py; a package's __init__ is the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def part_of(module: tuple[str, ...]) -> str:
    if len(module) == 1 and module[0].endswith("_vanilla"):
        return "flat files"
    return module[0] if module else "package"


MODULES = {module_of(path): path for path in FILES}


def imports_of(path: Path) -> set[tuple[str, ...]]:
    """The modules of this package that a file imports, wherever in it."""
    package = path.relative_to(PACKAGE).parts[:-1]
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + tuple(filter(None, (node.module or "").split(".")))
            imported |= {(*base, name.name) if (*base, name.name) in MODULES else base for name in node.names}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None), *(name.name for name in node.names)]
            assert not any(re.match(r"modeling_vanilla\b", name or "") for name in names), f"{path}: absolute import"
    return imported


def drawing(title: str) -> list[tuple[str, set[str]]]:
    """The block of CONTRIBUTING.md below a title: each line a part and, behind an arrow, the parts that it imports."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = text.split(title, 1)[1].split("```text\n", 1)[1].split("```", 1)[0]
    lines = [line.partition("->") for line in block.splitlines()]
    return [(name.strip(), {*map(str.strip, rest.split(","))} - {""}) for name, _, rest in lines]


def assert_downwards(drawn: list[tuple[str, set[str]]]) -> None:
    """Each line imports only what stands below it."""
    order = [name for name, _ in drawn]
    for number, (name, imported) in enumerate(drawn, start=1):
        assert imported <= set(order[number:]), f"{name} imports upwards"


def test_the_parts_import_as_drawn():
    found = {part_of(module): set() for module in MODULES if module}
    for module, path in MODULES.items():
        if module:
            found[part_of(module)] |= {part_of(other) for other in imports_of(path)}
    drawn = drawing("Imports between the parts")
    assert dict(drawn) == {part: imported - {part} for part, imported in found.items() if part != "__main__"}
    assert_downwards(drawn)


def test_the_flat_files_import_as_drawn():
    flat = {module[0]: path for module, path in MODULES.items() if part_of(module) == "flat files"}
    drawn = drawing("Imports between the flat files")
    expected = {name.removesuffix("_vanilla"): imports_of(path) for name, path in flat.items()}
    assert {name: {(f"{other}_vanilla",) for other in imported} for name, imported in drawn} == expected
    assert_downwards(drawn)


def test_the_private_names_are_those_of_the_code():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Private names", 1)[1].split("\n## ", 1)[0]
    code = "".join(path.read_text(encoding="utf-8") for path in FILES)
    assert [name for name in re.findall(r"\b_[a-z]\w+", text) if name not in code] == []
