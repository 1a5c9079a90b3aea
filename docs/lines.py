"""The lines of code that a page links, found by the name that is the text of the link.

python docs/lines.py    # writes them anew
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / page for page in ("design.md", "howto/change.md")]
# [`AddNorm`](../modeling_vanilla/layers_vanilla.py#L59-L68)
LINK = re.compile(r"\[`([^`]+)`\]\(((?:\.\./)+)([\w/]+\.py)(?:#L(\d+)-L\d+)?\)")


def lines_of(file: str, name: str) -> str:
    """The first and the last line of a class, function, field or key: 'AddNorm.forward', 'PRESETS["big"]'."""
    node = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for part in re.findall(r"[\w-]+", name):
        found = [child for own, child in _children(node) if own == part]
        if not found:
            raise ValueError(f"{file} has no {name}")
        node = found[0]
    return f"#L{node.lineno}-L{node.end_lineno}"


def _children(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """What a module, a class or an assigned dictionary defines, by name."""
    value = getattr(node, "value", None)
    if isinstance(value, ast.Dict):
        return [(key.value, item) for key, item in zip(value.keys, value.values, strict=True) if key]
    targets = {ast.Assign: lambda child: child.targets[0], ast.AnnAssign: lambda child: child.target}
    named = [(targets.get(type(child), lambda child: child)(child), child) for child in getattr(node, "body", [])]
    return [(getattr(target, "name", getattr(target, "id", "")), child) for target, child in named]


def linked(text: str) -> str:
    """A page with the lines of today in its links."""
    return LINK.sub(lambda match: f"[`{match[1]}`]({match[2]}{match[3]}{lines_of(match[3], match[1])})", text)


def pages() -> dict[str, str]:
    """A page of the site for each file that is linked, with an anchor for each line."""
    files = {match[3] for page in PAGES for match in LINK.finditer(page.read_text(encoding="utf-8"))}
    head, fence = "---\nsearch: {exclude: true}\n---\n", '````{.python linenums="1"}'
    code = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
    return {f"code/{file}.md": f"{head}# {file}\n\n{fence}\n{text}````\n" for file, text in code.items()}


def for_site(text: str, page: str) -> str:
    """A page with links to those pages; mkdocs would look for their anchors in vain, so they are HTML."""
    top = "../" * page.count("/")
    return LINK.sub(rf'<a href="{top}code/\3.html#__codelineno-0-\4">`\1`</a>', text)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(linked(path.read_text(encoding="utf-8")), encoding="utf-8")
