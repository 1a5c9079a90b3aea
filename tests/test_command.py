"""The command `vanilla`: its list of commands, and what all of them have in common."""

import importlib
import json
import re

import pytest
from helpers import ROOT, call, run_python

from modeling_vanilla import __main__ as vanilla

COMMANDS = {name: importlib.import_module(f"modeling_vanilla.cli.{name}") for name in vanilla.COMMANDS}


def run(*arguments):
    return call(vanilla.main, *arguments)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_the_list_of_commands(arguments):
    done = run(*arguments)
    assert (done.code, done.errors) == (0, "")
    assert re.findall(r"^  (\w+) +\w", done.output, re.M) == list(vanilla.COMMANDS)
    rooms = {path.stem for path in (ROOT / "modeling_vanilla" / "cli").glob("*.py")}
    assert rooms == {"__init__", "parser", *vanilla.COMMANDS}


def test_an_unknown_command():
    assert run("translat") == (2, "", "error: 'translat' is no command; see vanilla --help\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_keeps_the_lines_of_its_examples(name):
    done = run(name, "--help")
    assert (done.code, done.errors) == (0, "")
    assert done.output.startswith(f"usage: vanilla {name} ")
    examples = [line for line in COMMANDS[name].__doc__.splitlines() if line.startswith("    ")]
    assert any(f"vanilla {name} " in line for line in examples)
    assert set(examples) <= set(done.output.splitlines())
    assert "--debug" in done.output and "(default: None)" not in done.output


@pytest.mark.parametrize("name", COMMANDS)
def test_bad_usage_is_one_line(name):
    done = run(name, "--none")
    assert (done.code, done.output) == (2, "")
    assert re.fullmatch(r"error: .*(required|unrecognized arguments): .*; see --help\n", done.errors)


BAD = {
    "train": ["--output_dir", "new", "--max_steps", "0"],
    "translate": ["none", "--input", "none"],
    "average": ["none", "new"],
    "convert": ["--from", "marian", "none", "used"],
    "export": ["--to", "onnx", "none", "new", "--quantization", "int8"],
    "attention": ["none", "--sentence", " "],
    "push": ["none", "a-model"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_bad_input_is_one_line_and_debug_shows_where(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "used").touch()
    done = run(name, *BAD[name])
    assert (done.code, done.output, done.errors) == (2, "", f"error: {done.error}\n")
    debugged = run(name, *BAD[name], "--debug")
    assert debugged.code == 2
    assert debugged.errors.startswith("Traceback") and debugged.errors.endswith(done.errors)
    assert [path.name for path in tmp_path.iterdir()] == ["used"]


def test_python_runs_the_package(tmp_path):
    done = run_python("-m", "modeling_vanilla", "average", "none", "new", cwd=tmp_path)
    assert done == (2, "", "error: none: no checkpoint, as it has no model.safetensors\n")


@pytest.mark.slow
def test_accelerate_launches_the_training(tmp_path):
    """Two processes on CPUs; the checkpoint becomes a model, which translates."""
    pairs = [{"translation": {"en": f"a dog sees {n} cats", "de": f"ein Hund sieht {n} Katzen"}} for n in range(60)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    (tmp_path / "in").write_text("a dog sees 7 cats\n", encoding="utf-8")
    flags = "--multi_gpu --main_process_port 0 --num_processes 2 --num_machines 1 --mixed_precision no"
    sizes = "--vocab_size 290 --d_model 16 --encoder_layers 1 --decoder_layers 1 --max_steps 2 --warmup_steps 2"
    batches = "--tokens_per_update 400 --tokens_per_batch 200 --average_checkpoints 1 --output_dir run"
    launch = f"-m accelerate.commands.launch {flags} -m modeling_vanilla"
    train = f"train --train_file train.jsonl --preset tiny {sizes} {batches}"
    done = run_python(*launch.split(), *train.split(), cwd=tmp_path, ACCELERATE_USE_CPU="true")
    assert done.code == 0, done.errors
    assert json.loads(done.output[done.output.index("{\n") :])["processes"] == 2
    for arguments in ("average run averaged --last 1", "translate averaged --input in --output out"):
        done = run_python("-m", "modeling_vanilla", *arguments.split(), cwd=tmp_path)
        assert done.code == 0, done.errors
    assert (tmp_path / "out").read_text(encoding="utf-8").count("\n") == 1
