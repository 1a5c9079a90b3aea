"""The command `vanilla`: its list of commands, what all of them have in common, and that pip installs it."""

import importlib
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from helpers import ROOT, call, environment, make_tiny, make_tokenizer, run_python, save_folder

import vanilla_command as vanilla

COMMANDS = {name: importlib.import_module(f"modeling_vanilla.cli.{name}") for name in vanilla.COMMANDS}


def test_the_list_of_commands():
    done = call(vanilla.main)
    assert (done.code, done.errors) == (0, "")
    assert re.findall(r"^  (\w+) +\w", done.output, re.M) == list(vanilla.COMMANDS)


def test_an_unknown_command():
    assert call(vanilla.main, "trian").error == "'trian' is no command; did you mean 'train'? see vanilla --help"


FILES = [(command, option) for command, options in vanilla.READ.items() for option in options]
MISSING = [f"{command} --{option}=missing" for command, option in FILES] + ["train --train-file missing"]


@pytest.mark.parametrize("words", ["--help", "--version", "trian", *MISSING])
def test_what_is_answered_before_anything_heavy_is_imported(words, tmp_path):
    """The table of commands, and that a file is missing."""
    program = "import sys, vanilla_command\ntry: vanilla_command.main()\nfinally: print(*sys.modules)"
    done = run_python("-c", program, *words.split(), cwd=tmp_path)
    assert "vanilla_command" in done.output and not {"torch", "transformers", "numpy"} & set(done.output.split())
    assert "missing" not in words or done.error.endswith(": 'missing' does not exist")


@pytest.mark.parametrize(("command", "option"), FILES)
def test_a_command_has_the_options_that_are_looked_at_first(command, option):
    assert re.search(rf"^  --{option} ", call(vanilla.main, command, "--help").output, re.M)


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_one_to_nowhere(closed, tmp_path):
    """No file that the command opens takes its place."""
    (tmp_path / "pairs.tsv").write_text("a dog\tein Hund\n", encoding="utf-8")
    words = f"-m modeling_vanilla check --train_file pairs.tsv --output_dir clean {closed}"
    done = run_python("-c", f"import os; os.execvp('sh', ['sh', '-c', '{sys.executable} {words}'])", cwd=tmp_path)
    assert (done.code, "Traceback" in done.errors) == (0, False)
    assert (tmp_path / "clean" / "train.de").read_text(encoding="utf-8") == "ein Hund\n"


@pytest.mark.parametrize(("told", "spins"), [({}, "3000"), ({"OMP_WAIT_POLICY": "active"}, "30000000000")])
def test_threads_wait_asleep_unless_told_otherwise(monkeypatch, tmp_path, told, spins):
    """GNU's OpenMP, which torch brings, tells how long a waiting thread spins: by its own default 300000 times."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):  # this process has set its own
        monkeypatch.delenv(name, raising=False)
    program = "import sys, vanilla_command; vanilla_command.main()"
    done = run_python("-c", program, "check", "--help", cwd=tmp_path, OMP_DISPLAY_ENV="verbose", **told)
    assert set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.errors)) == {spins}


def test_a_reader_that_goes_away_ends_a_command_quietly(tmp_path):
    """As `head -1` does; not even what is still in the buffer is missed."""
    (tmp_path / "pairs.jsonl").write_text('{"en": "a dog", "de": "ein Hund"}\n', encoding="utf-8")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "modeling_vanilla", "check", "--train_file", "pairs.jsonl", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_missing_package_is_named_with_the_extra_that_has_it(tmp_path):
    script = "import sys; sys.modules['sacrebleu'] = None\nfrom vanilla_command import main; main()"
    done = run_python("-c", script, "train", "--help", cwd=tmp_path)
    assert done.error == 'vanilla train needs sacrebleu: pip install "modeling-vanilla[train]"'
    assert "Traceback" in run_python("-c", script, "train", "--debug", cwd=tmp_path).errors
    assert vanilla.how_to_install("gradio") == 'pip install "modeling-vanilla[demo]"'


@pytest.mark.parametrize("name", COMMANDS)
def test_help_keeps_the_lines_of_its_examples(name):
    done = call(vanilla.main, name, "--help")
    assert (done.code, done.errors) == (0, "") and done.output.startswith(f"usage: vanilla {name} ")
    examples = [line for line in COMMANDS[name].__doc__.splitlines() if line.startswith("    ")]
    assert any(f"vanilla {name}" in line for line in examples)
    assert set(examples) <= set(done.output.splitlines())
    assert "(default: None)" not in done.output
    options = re.findall(r"^  --(\S+)", done.output, re.M)
    assert len(options) == len(set(options)) and not any("-" in option for option in options)


# Installed in a folder where there is nothing else

LOCATE = """
from importlib.resources import files
import modeling_vanilla
for name in ("py.typed", "hub/model_card.md", "visualization/heat_maps.html"):
    assert files("modeling_vanilla").joinpath(name).is_file(), name
print(modeling_vanilla.__file__)
"""


@pytest.mark.slow
def test_an_installed_package_gives_the_command(tmp_path):
    def run(*command, cwd=tmp_path, stdin=""):
        variables = {**environment(tmp_path), "PYTHONPATH": ""}
        how = {"input": stdin, "stdout": subprocess.PIPE, "text": True, "check": True, "timeout": 300}
        return subprocess.run([*map(str, command)], cwd=cwd, env=variables, **how).stdout

    run("git", "clone", "--quiet", ROOT, tmp_path / "source")
    build = "from setuptools import build_meta; build_meta.build_wheel('../dist')"
    run(sys.executable, "-c", build, cwd=tmp_path / "source")
    (wheel,) = (tmp_path / "dist").iterdir()
    venv.create(tmp_path / "venv", with_pip=True)
    python, vanilla = (tmp_path / "venv" / "bin" / name for name in ("python", "vanilla"))
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "others.pth").write_text(sysconfig.get_path("purelib"))  # the libraries of the tests, behind its own
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    assert Path(run(python, "-c", LOCATE).strip()).parent == own / "modeling_vanilla"
    tokenizer = make_tokenizer(["a dog runs"])
    model = save_folder(tmp_path / "model", make_tiny(len(tokenizer)), tokenizer)
    assert run(vanilla, "translate", model, stdin="a dog\n").count("\n") == 1
    assert "usage: vanilla train" in run(python, "-m", "modeling_vanilla", "train", "--help")
