"""The documents: every block of code runs, every link leads somewhere, the site has every name and every option.

The blocks of a page run one after the other in a folder of their own, with a small corpus and a small model in it:
Python in one namespace, as in a notebook, and of a shell's lines those that can.
"""

import os
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from helpers import ROOT, as_lines, call, environment, make_marian, make_tiny, make_tokenizer, run_python, save_folder
from toy_corpus import toy_corpus, write_corpus

from modeling_vanilla.__main__ import main as vanilla
from modeling_vanilla.inference import load_translator, translate
from modeling_vanilla.training import TrainingOptions
from vanilla_command import COMMANDS

BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (
        *(ROOT / name for name in ("README.md", "README.ko.md", "RESULTS.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    )
}
RECORDS = {page for page in PAGES if page.startswith(("RESULTS", "docs/results/", "docs/notebook/"))}  # of what was run
# Run with another: the notebooks with the site, README's own blocks in README.md, what serves with what exports.
ELSEWHERE = {"docs/paper.md", "docs/paper.ko.md", "README.ko.md", "docs/howto/export.md", "docs/howto/serve.md"}
FAST = {"docs/howto/lora.md", "docs/low_bleu.md"}  # the others train, export or start processes
REFERENCE = {"model", "inference", "training", "interop", "visualization", "demo", "hub"}  # pages made from the code
# What cannot run in a test, and why.
NOT_RUN = {
    "make ": "runs these tests, or for minutes",
    "python3.11 -m venv": "makes an environment",
    "examples/quickstart.py": "trains for minutes (make quickstart, and test_examples.py a little of it)",
    "pip install": "changes the environment",
    "--preset base": "needs eight GPUs",
    "vanilla push": "needs the Hub (test_push_to_hub.py stands in for it)",
    "hf upload": "needs the Hub",
    "--from fsmt": "needs a model of FSMT (tests/importers.py makes one)",
    "--from fairseq": "needs a model of fairseq (tests/importers.py makes one)",
    'model="you/your-model"': "needs the Hub (test_push_to_hub.py stands in for it)",
    'from_pretrained("you/your-model")': "needs the Hub",
}
# Before the commands that the shell finds: a script that trains or generates does little of it.
PROGRAMS = {
    "vanilla": f'#!/bin/sh\nexec {sys.executable} -m modeling_vanilla "$@"\n',
    "python": f"""#!/bin/sh
case "$1" in
*finetune*) set -- "$@" --max_steps 2 ;;
*toy_corpus*) set -- "$@" --validation 8 --test 8 ;;
esac
exec {sys.executable} "$@"
""",
}


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the code of each block."""
    return BLOCK.findall(PAGES[page])


def runs(code: str) -> bool:
    return not any(part in code for part in NOT_RUN)


@pytest.fixture
def place(tmp_path, monkeypatch, own_cache) -> Path:
    """A folder with the files that the pages speak of, as the working directory; training there stops after 50 steps.

    50 steps are five checkpoints, one every ten.
    """
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
    tokenizer = make_tokenizer(text for pair in corpus["train"][:100] for text in pair)
    for run in ("quickstart", "mine", "seed0", "seed1"):
        save_folder(tmp_path / "runs" / run / "model", make_tiny(len(tokenizer)), tokenizer)
    save_folder(tmp_path / "path/to/opus-mt-en-de", make_marian(scale_embedding=True), tokenizer)
    check = TrainingOptions.__post_init__

    def small(self):
        self.max_steps = min(self.max_steps or 50, 50)
        self.tokens_per_update = self.tokens_per_batch = min(500, self.tokens_per_update or 500)
        check(self)

    monkeypatch.setattr(TrainingOptions, "__post_init__", small)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_page(page: str, place: Path) -> dict:
    """Run the blocks of a page. Returns the names that its Python has defined."""
    if "--output_dir runs/mine\n" in PAGES[page]:  # it trains the model itself
        (place / "runs/mine").rename(place / "untrained")
    names = {}
    for language, code in blocks(page):
        if language == "python" and runs(code):
            exec(compile(code, page, "exec"), names)
        elif language == "bash":
            for line in filter(runs, code.replace("\\\n", " ").splitlines()):
                run_line(line, place)
    return names


def run_line(line: str, place: Path) -> None:
    """Run a line of a shell, a `vanilla` that stands alone in this process."""
    command, *arguments = shlex.split(line, comments=True) or [""]
    if command == "vanilla" and not {"|", "<", ">"} & set(arguments):
        done = call(vanilla, *arguments)
        assert done.code == 0, f"{line}\n{done.errors}"
        return
    path = os.pathsep.join((str(place / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    # npm's onnxruntime-node brings its CPU library itself; without this word it also downloads the one for CUDA
    variables = environment(place, PATH=path, ONNXRUNTIME_NODE_INSTALL="skip")
    done = subprocess.run(["bash", "-c", line], cwd=place, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


ALONE = [page for page in sorted(PAGES.keys() - ELSEWHERE - RECORDS) if any(runs(code) for _, code in blocks(page))]


@pytest.mark.parametrize("page", [pytest.param(page, marks=[] if page in FAST else pytest.mark.slow) for page in ALONE])
def test_the_blocks_of_a_page_run(page, place):
    run_page(page, place)


@pytest.mark.slow
def test_what_is_exported_is_served(place):
    run_page("docs/howto/export.md", place)
    names = run_page("docs/howto/serve.md", place)
    model, tokenizer = load_translator([place / "runs/mine/model"])
    sentences = ["A dog runs.", "His dirty cities are as clean as our tower."]
    greedy = translate(model, tokenizer, sentences, num_beams=1, max_extra_tokens=50)
    exported = (names["model"], names["tokenizer"])
    assert translate(*exported, sentences, num_beams=1, max_extra_tokens=50) == greedy
    answers = names["handler"]({"inputs": sentences, "parameters": {"num_beams": 1, "max_extra_tokens": 50}})
    assert answers == [{"translation_text": text} for text in greedy]


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


@pytest.mark.parametrize(
    "program",
    [pytest.param(name, marks=[] if name.startswith("vanilla") else pytest.mark.slow) for name in sorted(CALLED)],
)
def test_a_command_has_the_options_that_the_results_give_it(program, tmp_path):
    if program.startswith("vanilla"):
        done = call(vanilla, program.split()[1], "--help")
    else:
        done = run_python(ROOT / program, "--help", cwd=tmp_path)
    assert done.code == 0, done.errors
    assert CALLED[program] <= set(re.findall(r"--\w+", done.output))


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(r"^```\w*\n.*?^```", id="the same code"),
        pytest.param(r"^#+(?= )", id="as many headings of each level"),
        pytest.param(r"^(?:\||- )|\|$", id="as many rows and items"),
        pytest.param(r"`(--\w+|vanilla [^`]+|make \w+)`", id="the same commands and options"),
        pytest.param(r"\d+\.\d+(?: ± \d\.\d+)?", id="the same figures"),
    ],
)
def test_the_korean_readme_keeps_step_with_the_english_one(part):
    english, korean = (
        re.findall(part, PAGES[page], re.MULTILINE | re.DOTALL) for page in ("README.md", "README.ko.md")
    )
    assert english and sorted(korean) == sorted(english)


@pytest.mark.parametrize("page", [*PAGES, "examples/reproduce/README.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_links_is_there(page):
    """A page of the site links no file beside it: mkdocs would not find it."""
    made = {f"docs/reference/{name}.md" for name in {"commands", *REFERENCE}}
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    paths = [os.path.normpath(Path(page).parent / link) for link in links]
    assert [path for path in paths if path not in made and not (ROOT / path).exists()] == []
    assert not page.startswith("docs/") or all(path.startswith("docs/") for path in paths)


def test_the_map_has_every_file_of_the_package():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = {path for path in (ROOT / "modeling_vanilla").rglob("*.py") if path.parent.name != "cli"}
    assert [path for path in sorted(files) if path.name[0] != "_" and path.name not in text] == []


@pytest.mark.parametrize("name", ["paper", "paper.ko"])
def test_the_notebook_is_that_of_the_page(name):
    import nbformat
    import paper

    written = nbformat.read(ROOT / f"examples/notebooks/{name}.ipynb", as_version=4)
    assert written == paper.notebook(name), "python docs/paper.py writes it anew"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` does: it fails at a broken link, and at a cell of the notebook that fails."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


@pytest.mark.slow
def test_the_site_has_every_public_name_and_every_option(site):
    import reference

    assert set(reference.PAGES) == REFERENCE
    for page, (_, modules) in reference.PAGES.items():
        text = (site / f"reference/{page}.html").read_text(encoding="utf-8")
        names = [name for module in modules for name in reference.public_names(module)]
        assert names and [name for name in names if f'id="{name}"' not in text] == []
    sections = (site / "reference/commands.html").read_text(encoding="utf-8").split("<h2 ")
    for command in COMMANDS:
        (section,) = (text for text in sections if text.startswith(f'id="vanilla-{command}"'))
        options = re.findall(r"^  (--\w+)", call(vanilla, command, "--help").output, re.MULTILINE)
        assert options and [option for option in options if f"<code>{option}</code>" not in section] == []


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site):
    page = r"""<(?:script|img|iframe|link|source)[^>]+(?:src|href)=["']?(?:https?:)?//"""
    sheet = r"""(url\(|@import)\s*["']?(https?:)?//"""
    for ending, loaded in (("html", page), ("css", sheet)):
        for file in site.rglob(f"*.{ending}"):
            assert not re.search(loaded, file.read_text(encoding="utf-8")), file


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper", "paper.ko"])
def test_the_paper_is_shown_with_its_pictures_and_its_formulas(site, name):
    text = (site / f"{name}.html").read_text(encoding="utf-8")
    assert "arithmatex" not in text and text.count("<math") > 10
    pictures = re.findall(r'src="(pictures/[^"]+)"', text)
    assert len(pictures) >= 15 and all((site / picture).stat().st_size > 1000 for picture in pictures)
