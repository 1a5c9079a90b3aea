"""The rooms of the package import one way, as CONTRIBUTING.md draws them; so do the flat files."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "modeling_vanilla"
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> tuple[str, ...]:
    """("training", "trainer") for modeling_vanilla/training/trainer.py; a package's __init__ is the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def room_of(module: tuple[str, ...]) -> str:
    if len(module) == 1 and module[0].endswith("_vanilla"):
        return "flat files"
    return module[0] if module else "package"


MODULES = {module_of(path): path for path in FILES}


def imports_of(path: Path) -> set[tuple[str, ...]]:
    """The modules of this package that a file imports, wherever in it."""
    package = path.relative_to(PACKAGE).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + tuple(filter(None, (node.module or "").split(".")))
            found |= {one if (one := (*base, name.name)) in MODULES else base for name in node.names}
        else:
            named = [node.module] if isinstance(node, ast.ImportFrom) else [
                name.name for name in getattr(node, "names", []) if isinstance(node, ast.Import)
            ]  # fmt: skip
            assert not any(re.match(r"modeling_vanilla\b", name) for name in named), f"{path}: an absolute import"
    return found


def drawing(title: str) -> list[tuple[str, set[str]]]:
    """The block of CONTRIBUTING.md below a title: each line a room and, behind an arrow, the rooms that it imports."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = text.split(title, 1)[1].split("```text\n", 1)[1].split("```", 1)[0]
    lines = [line.partition("->") for line in block.splitlines()]
    return [(name.strip(), {one.strip() for one in rest.split(",")} - {""}) for name, _, rest in lines]


def test_the_rooms_import_as_drawn():
    found = {room_of(module): set() for module in MODULES if module}
    for module, path in MODULES.items():
        if module:
            found[room_of(module)] |= {room_of(other) for other in imports_of(path)}
    found = {room: imported - {room} for room, imported in found.items() if room != "__main__"}
    rooms = drawing("Imports between the rooms")
    assert dict(rooms) == found
    order = [room for room, _ in rooms]
    for room, imported in rooms:
        assert imported <= set(order[order.index(room) + 1 :]), f"{room} imports upwards"


def test_the_flat_files_import_as_drawn():
    flat = {module[0]: path for module, path in MODULES.items() if room_of(module) == "flat files"}
    found = {name: {module[0] for module in imports_of(path)} for name, path in flat.items()}
    files = drawing("Imports between the flat files")
    assert {name + "_vanilla": {one + "_vanilla" for one in imported} for name, imported in files} == found
    order = [name for name, _ in files]
    for name, imported in files:
        assert imported <= set(order[order.index(name) + 1 :]), f"{name} imports upwards"


def test_no_circle_of_modules():
    graph = {module: imports_of(path) for module, path in MODULES.items()}
    done: set[tuple[str, ...]] = set()

    def visit(module: tuple[str, ...], above: tuple) -> None:
        assert module not in above, f"circle: {above[above.index(module) :]}"
        if module not in done:
            for other in graph.get(module, ()):
                # A package's __init__ gathers its modules' names; it comes after them.
                if other != module[:-1]:
                    visit(other, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())
