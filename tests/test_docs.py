"""The documents: every block of code runs, every link leads somewhere, the site has every name and every option.

The blocks of a page run one after the other in a folder of their own, with a small corpus and a small model in it:
Python in one namespace, as in a notebook, and of a shell's lines those that can.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import (
    ROOT,
    as_lines,
    as_options,
    call,
    environment,
    make_marian,
    make_tiny,
    make_tokenizer,
    run_python,
    save_folder,
)
from toy_corpus import toy_corpus, write_corpus

from modeling_vanilla import __version__
from modeling_vanilla.__main__ import main as vanilla
from vanilla_command import COMMANDS

BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILES = [*(ROOT / name for name in ("README.md", "README.ko.md", "RESULTS.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
RECORDS = {page for page in PAGES if page.startswith(("RESULTS", "docs/results/", "docs/notebook/"))}  # of what was run
# Run with another: the notebooks with the site, README's own blocks in README.md, what serves with what exports.
CHANGE = "docs/howto/change.md"
ELSEWHERE = {"docs/paper.md", "docs/paper.ko.md", "README.ko.md", "docs/howto/export.md", "docs/howto/serve.md", CHANGE}
FAST = {"docs/howto/lora.md", "docs/low_bleu.md"}  # the others train, export or start processes
# What cannot run in a test: it takes minutes or these tests, changes the environment, needs eight GPUs, Slurm, the Hub,
# or a model of FSMT or fairseq (tests/importers.py makes one).
NOT_RUN = ["make ", "examples/quickstart.py", "python3.11 -m venv", "pip install", "--preset base"]
NOT_RUN += ["vanilla push", "hf upload", 'model="you/your-model"', 'from_pretrained("you/your-model")']
NOT_RUN += ["--from fsmt", "--from fairseq", "--executor slurm"]
# Before the commands that the shell finds: a script that generates does little of it.
PROGRAMS = {
    "vanilla": f'#!/bin/sh\nexec {sys.executable} -m modeling_vanilla "$@"\n',
    "python": f"""#!/bin/sh
case "$1" in *toy_corpus*) set -- "$@" --validation 8 --test 8 ;; esac
exec {sys.executable} "$@"
""",
}


# What a training on a page has in place of its own updates: five checkpoints, one every ten.
SMALL = {"max_steps": 50, "tokens_per_update": 500, "tokens_per_batch": 500}

if find_spec("mecab_ko") is None:
    NOT_RUN += ["ko-mecab"]
# Each Latin letter as a syllable of Hangul: docs/howto/korean.md's corpus is the toy corpus in another script.
HANGUL = {letter: 0xAC00 + letter for letter in range(ord("A"), ord("z") + 1)}


def runs(code: str) -> bool:
    return not any(part in code for part in NOT_RUN)


@pytest.fixture
def place(tmp_path, monkeypatch, own_cache) -> Path:
    """A folder with the files that the pages speak of, as the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "bin").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o700)
    corpus = toy_corpus(800, 8, 8)
    write_corpus(corpus, tmp_path)
    for name, split in {"raw": "train", "train": "train", "valid": "validation", "test": "test"}.items():
        for language, texts in zip(("en", "de"), zip(*corpus[split], strict=True), strict=True):
            (tmp_path / f"{name}.{language}").write_bytes(as_lines(texts))
    shutil.copy("raw.en", "TED2020.en-ko.en")
    Path("TED2020.en-ko.ko").write_text(Path("raw.de").read_text(encoding="utf-8").translate(HANGUL), encoding="utf-8")
    tokenizer = make_tokenizer(text for pair in corpus["train"][:100] for text in pair)
    for run in ("quickstart", "mine", "seed0", "seed1"):
        save_folder(tmp_path / "runs" / run / "model", make_tiny(len(tokenizer)), tokenizer)
    save_folder(tmp_path / "path/to/opus-mt-en-de", make_marian(scale_embedding=True), tokenizer)
    return tmp_path


def run_page(page: str, place: Path) -> None:
    if "--output_dir runs/mine\n" in PAGES[page]:  # it trains the model itself
        (place / "runs/mine").rename(place / "untrained")
    names = {}
    for language, code in BLOCK.findall(PAGES[page]):
        if language == "python" and runs(code):
            exec(compile(code.replace("TrainingOptions(", f"TrainingOptions(**{SMALL}, "), page, "exec"), names)
        elif language == "bash":
            for line in filter(runs, code.replace("\\\n", " ").splitlines()):
                run_line(line, place)


def run_line(line: str, place: Path, **variables: str) -> None:
    """Run a line of a shell, a `vanilla` that stands alone in this process."""
    command, *arguments = shlex.split(line, comments=True) or [""]
    if command == "vanilla" and not {"|", "<", ">"} & set(arguments):
        assert call(vanilla, *arguments, *(as_options(SMALL) if arguments[0] == "train" else ())).succeeded
        return
    path = os.pathsep.join((str(place / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    # npm's onnxruntime-node brings its CPU library itself; without this word it also downloads the one for CUDA
    variables = environment(place, PATH=path, ONNXRUNTIME_NODE_INSTALL="skip", **variables)
    done = subprocess.run(["bash", "-c", line], cwd=place, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


CODE = {page: [code for _, code in BLOCK.findall(PAGES[page])] for page in PAGES}
ALONE = [page for page in sorted(PAGES.keys() - ELSEWHERE - RECORDS) if any(map(runs, CODE[page]))]
SERVED = ("docs/howto/export.md", "docs/howto/serve.md")  # what serves runs with what exports
RUN = [pytest.param(pages, marks=[] if pages[0] in FAST else pytest.mark.slow) for pages in [SERVED, *zip(ALONE)]]


@pytest.mark.parametrize("pages", RUN, ids=" ".join)
def test_the_blocks_of_a_page_run(pages, place):
    for page in pages:
        run_page(page, place)


KINDS = ("diff", "bash", "python", "text")
CHANGES = [re.findall(rf"^```{kind}\n(.*?)^```", PAGES[CHANGE], re.MULTILINE | re.DOTALL) for kind in KINDS]


@pytest.mark.slow
@pytest.mark.parametrize(("diff", "commands", "code", "error"), zip(*CHANGES, strict=True), ids=["pre_ln", "rotary"])
def test_a_change_applies_passes_its_tests_and_is_refused_by_exporters(diff, commands, code, error, tmp_path):
    """Each in a copy of this tree."""
    for name in ("modeling_vanilla", "tests", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / re.search(r"\w+\.diff", commands)[0]).write_text(diff, encoding="utf-8")
    for line in commands.splitlines():
        run_line(line, tmp_path, PYTHONPATH=str(tmp_path))
    assert run_python("-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path)).errors.endswith(f"\n{error}")


PROGRAM = re.compile(r"((?:(?<!_)|(?<=-m modeling_))vanilla [a-z]+|(?:examples|benchmarks)/\S+\.py)([^#|;&]*)")


def commands() -> dict[str, set[str]]:
    """What the README and the records call, a command of vanilla or a script, with the options that they give it."""
    called = defaultdict(set)
    for page in sorted({"README.md", "examples/reproduce/README.md", *RECORDS}):
        text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
        lines = [line for _, code in BLOCK.findall(text) for line in code.splitlines()]
        lines += re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
        for line in lines:
            for program, rest in re.findall(r"((?<!_)vanilla [a-z]+|(?:examples|benchmarks)/\S+\.py)([^#|;&]*)", line):
                called[program] |= set(re.findall(r"--\w+", rest))
    return called


CALLED = commands()
SCRIPTS = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(CALLED) if name.endswith(".py")]


@pytest.mark.parametrize("program", [*(name for name in sorted(CALLED) if not name.endswith(".py")), *SCRIPTS])
def test_a_command_has_the_options_that_the_results_give_it(program, tmp_path):
    in_process = program.startswith("vanilla")
    done = call(vanilla, program[8:], "--help") if in_process else run_python(ROOT / program, "--help", cwd=tmp_path)
    assert CALLED[program] <= set(re.findall(r"--\w+", done.succeeded.output))


IN_STEP = {
    "code": r"^```\w*\n.*?^```",
    "headings of each level": r"^#+(?= )",
    "rows and items": r"^(?:\||- )|\|$",
    "commands and options": r"`(--\w+|vanilla [^`]+|make \w+)`",
    "figures": r"\d+\.\d+(?: ± \d\.\d+)?",
}


@pytest.mark.parametrize("part", IN_STEP.values(), ids=IN_STEP)
def test_the_korean_readme_keeps_step_with_the_english_one(part):
    english, korean = (re.findall(part, PAGES[page], re.M | re.S) for page in ("README.md", "README.ko.md"))
    assert english and sorted(korean) == sorted(english)


@pytest.mark.parametrize("page", [*PAGES, "examples/reproduce/README.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_links_is_there(page):
    """A page of the site links no file beside it: mkdocs would not find it. The pages of the code are made."""
    import lines
    import reference

    made = {f"docs/reference/{name}.md" for name in ("commands", *reference.PAGES)}
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", lines.for_site(text, page) if page.startswith("docs/") else text)
    paths = [os.path.normpath(Path(page).parent / link) for link in links]
    assert [path for path in paths if path not in made and not (ROOT / path).exists()] == []
    assert not page.startswith("docs/") or all(path.startswith("docs/") for path in paths)


def test_the_links_to_code_lead_to_its_lines():
    import lines

    for path in lines.PAGES:
        text = path.read_text(encoding="utf-8")
        assert text == lines.linked(text), "python docs/lines.py writes them anew"
    table = PAGES["docs/design.md"].split("## Where each sentence", 1)[1].split("\n\n")[1].splitlines()[2:]
    assert len(table) > 40 and [row for row in table if not lines.LINK.search(row)] == []


def test_the_version_and_whether_it_is_released_are_the_same_everywhere():
    citation, changelog = ((ROOT / name).read_text(encoding="utf-8") for name in ("CITATION.cff", "CHANGELOG.md"))
    version, state = re.search(r"^## (\S+), (.+)$", changelog, re.MULTILINE).groups()
    assert version == __version__ and f"\nversion: {version}\n" in citation
    assert f"version = {{{version}}}" in PAGES["README.md"]
    released = state != "unreleased"
    assert ("date-released" in citation) == released
    for page in ("README.md", "docs/index.md"):
        assert f"Version {version}" in PAGES[page] and ("not released yet" in PAGES[page]) != released


def test_the_map_has_every_file_of_the_package():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = {path for path in (ROOT / "modeling_vanilla").rglob("*.py") if path.parent.name != "cli"}
    assert [path for path in sorted(files) if path.name[0] != "_" and path.name not in text] == []


@pytest.mark.parametrize("name", ["paper", "paper.ko"])
def test_the_notebook_is_that_of_the_page_and_has_its_outputs(name):
    import nbformat
    import paper

    text = paper.NOTEBOOKS[name].read_text(encoding="utf-8")
    outputs = paper.stored_outputs(name)
    assert nbformat.reads(text, as_version=4) == paper.notebook(name, outputs), "python docs/paper.py writes it anew"
    assert sum(map(bool, outputs)) > 30
    assert len(text) < 1_000_000 and str(ROOT) not in text and "site-packages" not in text


@pytest.mark.slow
def test_the_outputs_in_the_notebooks_are_those_of_the_code():
    """Pictures are left out, and so are printed figures, one or several: they depend on the processor."""
    import paper

    def texts(outputs):
        shown = [output.get("data", {}).get("text/markdown") for output in outputs if "text" not in output]
        # A kernel on a busy core may send what is printed in several parts.
        printed = "".join(output.text for output in outputs if "text" in output)
        return [*shown, re.sub(r"(-?\d\S* *)+", "#", printed)]

    executed = [texts(outputs) for outputs in paper.execute()]
    for name in paper.NOTEBOOKS:
        stored = [texts(outputs) for outputs in paper.stored_outputs(name)]
        assert executed == stored, "python docs/paper.py writes them anew"


@pytest.mark.slow
def test_the_site_has_every_public_name_and_every_option(tmp_path):
    """Built as `make docs` does: it fails at a broken link."""
    import reference
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    for page, (_, modules) in reference.PAGES.items():
        text = (tmp_path / f"reference/{page}.html").read_text(encoding="utf-8")
        names = [name for module in modules for name in reference.public_names(module)]
        assert names and [name for name in names if f'id="{name}"' not in text] == []
    sections = (tmp_path / "reference/commands.html").read_text(encoding="utf-8").split("<h2 ")
    for command in COMMANDS:
        (section,) = (text for text in sections if text.startswith(f'id="vanilla-{command}"'))
        options = re.findall(r"^  (--\w+)", call(vanilla, command, "--help").output, re.MULTILINE)
        assert options and [option for option in options if f"<code>{option}</code>" not in section] == []
