"""The paper beside the code, of one source: docs/paper.md, with docs/paper.ko.md as its text in Korean.

    python docs/paper.py    # executes the code, and writes examples/notebooks/paper.ipynb and paper.ko.ipynb anew

The pages of the site show the outputs that are stored in the notebooks.
"""

import base64
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).parents[1]
NOTEBOOKS = {name: ROOT / f"examples/notebooks/{name}.ipynb" for name in ("paper", "paper.ko")}
CODE = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
PLACE = "<!-- code -->\n"  # where a translation has the next block of code
INSTALL = """\
import importlib.util

if importlib.util.find_spec("modeling_vanilla") is None:  # it is not on PyPI: install it from this clone
    %pip install --quiet "../..[train]"
"""


def parts(name: str) -> tuple[list[str], list[str]]:
    """The texts of a page and the blocks of code between them; there is one text more than blocks.

    Raises:
        ValueError: if a translation has another number of blocks.
    """
    source = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    texts, blocks = CODE.split(source)[::2], CODE.findall(source)
    if name != "paper":
        texts = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8").split(PLACE)
        if len(texts) != len(blocks) + 1:
            raise ValueError(f"docs/{name}.md has {len(texts) - 1} places for code, docs/paper.md {len(blocks)} blocks")
    return texts, blocks


def notebook(name: str, outputs: list[list] | None = None):
    """A page as a notebook, with the outputs of its code cells if they are given."""
    texts, blocks = parts(name)
    texts = [text.replace("](results/", "](../../docs/results/") for text in texts]  # links from the notebook's folder
    cells = [new_markdown_cell(texts[0].strip()), new_code_cell(INSTALL.strip())]
    for block, text in zip(blocks, texts[1:], strict=True):
        cells += [new_code_cell(block.strip()), new_markdown_cell(text.strip())]
    cells = [cell for cell in cells if cell.source]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # by default random
    for number, (cell, made) in enumerate(zip(code_cells(cells), outputs or [], strict=outputs is not None), start=1):
        cell.update(execution_count=number, outputs=made)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def code_cells(cells: list) -> list:
    return [cell for cell in cells if cell.cell_type == "code"]


def execute() -> list[list]:
    """Run the code, which is the same in all languages: the outputs of each code cell, without what goes to stderr.

    Raises:
        CellExecutionError: if a cell fails.
    """
    client = NotebookClient(notebook("paper"), timeout=600, resources={"metadata": {"path": str(ROOT)}})
    cells = code_cells(client.execute().cells)
    return [[output for output in cell.outputs if output.get("name") != "stderr"] for cell in cells]


def stored_outputs(name: str) -> list[list]:
    """The outputs of each code cell as the notebook holds them."""
    return [cell.outputs for cell in code_cells(nbformat.read(NOTEBOOKS[name], as_version=4).cells)]


def pages() -> dict[str, str | bytes]:
    """The Markdown of each page, and the pictures on them, by path."""
    outputs = stored_outputs("paper")[1:]
    contents = {}
    for name in NOTEBOOKS:
        texts, blocks = parts(name)
        page = [texts[0]]
        for number, (block, text) in enumerate(zip(blocks, texts[1:], strict=True)):
            # Instead of the call that shows a part of the package: the part.
            code = re.sub(r"^show\(.*\n", "", block, flags=re.MULTILINE).strip()
            page += [f"```python\n{code}\n```\n"] if code else []
            heading = re.findall(r"^#+ (.+)$", "".join(texts[: number + 1]), re.MULTILINE)[-1]
            for index, output in enumerate(outputs[number]):
                picture = f"pictures/paper-{number}-{index}.png"
                page.append(_markdown(output, heading, picture))
                if "image/png" in output.get("data", {}):
                    contents[picture] = base64.b64decode(output.data["image/png"])
            page.append(text)
        contents[f"{name}.md"] = "\n".join(page)
    return contents


def _markdown(output, heading: str, picture: str) -> str:
    """An output of a cell as Markdown."""
    data = output.get("data", {"text/plain": output.get("text")})
    if "image/png" in data:
        return f"![{heading}]({picture})\n"
    return data.get("text/markdown") or "```text\n" + data["text/plain"].rstrip() + "\n```\n"


if __name__ == "__main__":
    outputs = execute()
    for name, path in NOTEBOOKS.items():
        nbformat.write(notebook(name, outputs), path)
