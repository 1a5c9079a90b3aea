"""The command `vanilla`: its list of commands, and what all of them have in common."""

import importlib
import os
import re
import subprocess
import sys

import pytest
from helpers import call, environment, run_python

import vanilla_command as vanilla

COMMANDS = {name: importlib.import_module(f"modeling_vanilla.cli.{name}") for name in vanilla.COMMANDS}


def run(*arguments):
    return call(vanilla.main, *arguments)


def test_the_list_of_commands():
    done = run()
    assert (done.code, done.errors) == (0, "")
    assert re.findall(r"^  (\w+) +\w", done.output, re.M) == list(vanilla.COMMANDS)


@pytest.mark.parametrize(("word", "hint"), [("trian", "did you mean 'train'? "), ("\udcff", "")])
def test_an_unknown_command(word, hint):
    assert run(word) == (2, "", f"error: {word!a} is no command; {hint}see vanilla --help\n")


@pytest.mark.parametrize("words", ["--help", "--version", "trian"])
def test_what_the_table_answers_imports_nothing_heavy(words, tmp_path):
    program = "import sys, vanilla_command\ntry: vanilla_command.main()\nfinally: print(*sys.modules)"
    done = run_python("-c", program, words, cwd=tmp_path)
    assert "vanilla_command" in done.output and not {"torch", "transformers", "numpy"} & set(done.output.split())


def test_a_reader_that_goes_away_ends_a_command_quietly(tmp_path):
    """As `head -1` does; not even what is still in the buffer is missed."""
    (tmp_path / "pairs.jsonl").write_text('{"en": "a dog", "de": "ein Hund"}\n', encoding="utf-8")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "modeling_vanilla", "check", "--train_file", "pairs.jsonl", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(("command", "package", "extra"), [("train", "sacrebleu", "train"), ("demo", "gradio", "demo")])
def test_a_missing_package_is_named_with_the_extra_that_has_it(tmp_path, command, package, extra):
    script = f"import sys; sys.modules['{package}'] = None\nfrom vanilla_command import main; main()"
    done = run_python("-c", script, command, "--help", cwd=tmp_path)
    assert done.error == f'vanilla {command} needs {package}: pip install "modeling-vanilla[{extra}]"'
    assert "Traceback" in run_python("-c", script, command, "--debug", cwd=tmp_path).errors


@pytest.mark.parametrize("name", COMMANDS)
def test_help_keeps_the_lines_of_its_examples(name):
    done = run(name, "--help")
    assert (done.code, done.errors) == (0, "")
    assert done.output.startswith(f"usage: vanilla {name} ")
    examples = [line for line in COMMANDS[name].__doc__.splitlines() if line.startswith("    ")]
    assert any(f"vanilla {name}" in line for line in examples)
    assert set(examples) <= set(done.output.splitlines())
    assert "(default: None)" not in done.output
    options = re.findall(r"^  --(\S+)", done.output, re.M)
    assert len(options) == len(set(options)) and not any("-" in option for option in options)
