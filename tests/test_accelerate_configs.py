"""examples/accelerate: accelerate launches what each file's name says, and processes train as one does, on CPUs."""

import re
import shlex
import subprocess
import sys
import time

import helpers
import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType
from helpers import ROOT, SAME_ANYWHERE, as_options, assert_same_weights, environment, read_json, tree, write_toy_corpus
from safetensors.torch import load_file
from transformers import HfArgumentParser

from modeling_vanilla.training import DataOptions, ModelOptions, TrainingOptions
from modeling_vanilla.training.checkpoints import checkpoint_step, newest_checkpoint

FOLDER = ROOT / "examples" / "accelerate"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_takes_the_file_and_its_command_and_starts_what_the_name_says(path):
    """2x8_gpus: 2 machines, 16 processes."""
    config = load_config_from_file(str(path))  # raises for a key that it does not know
    assert (config.distributed_type, config.mixed_precision) == (DistributedType.MULTI_GPU, "bf16")
    text = path.read_text(encoding="utf-8").replace("\\\n#", "")
    (command,) = re.findall(r"^# +accelerate launch (.*) \.\.\.$", text, re.MULTILINE)
    arguments = launch_command_parser().parse_args(shlex.split(command))
    assert ROOT / arguments.config_file == path
    train, *options = arguments.training_script_args
    assert (arguments.module, arguments.training_script, train) == (True, "modeling_vanilla", "train")
    options += ["--output_dir", "unused"]
    parser = HfArgumentParser((DataOptions, TrainingOptions, ModelOptions))
    parser.parse_args_into_dataclasses(options)  # exits for an option that there is not
    machines, each = re.match(r"(?:(\d+)x)?(\d+)_gpu", path.stem).groups(default="1")
    assert (config.num_machines, config.num_processes) == (int(machines), int(machines) * int(each))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("accelerate")


@pytest.fixture(scope="module")
def start(folder):
    """Start `accelerate launch FLAGS -m modeling_vanilla train`."""
    data = write_toy_corpus(folder, train=120, validation=6, test=6)

    def start(run, *flags, **settings):
        script = ["-m", "modeling_vanilla", "train"]
        script += as_options({**data, **SAME_ANYWHERE, **settings, "output_dir": run})
        flags = ["--mixed_precision", "no", *flags]
        command = [sys.executable, "-m", "accelerate.commands.launch", *map(str, [*flags, *script])]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        variables = environment(folder, ACCELERATE_USE_CPU="true")
        return subprocess.Popen(command, env=variables, cwd=folder, **streams)

    return start


def output_of(*started):
    """What the first of some processes says until all have ended well."""
    try:
        outputs = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.terminate()
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors
    return "".join(outputs[0])


@pytest.mark.slow
def test_two_machines_train_as_one_process_resumed_too(folder, start):
    """Two launchers on this machine, of one process each, that find each other by address and port."""
    run, one = folder / "machines", folder / "one"
    output_of(start(one, "--num_processes", 1, "--cpu"))
    second, third = (load_file(one / f"checkpoint-{step}" / "model.safetensors") for step in (2, 3))
    assert max(float((third[name] - second[name]).abs().max()) for name in third) > 1e-3
    flags = ["--config_file", FOLDER / "2x8_gpus.yaml", "--num_processes", 2, "--main_process_ip", "127.0.0.1"]
    for settings in ({"max_steps": 2}, {"resume": True}):
        port = ["--main_process_port", helpers.free_port()]
        said = output_of(*(start(run, *flags, *port, "--machine_rank", rank, **settings) for rank in (0, 1)))
    assert said.count("step 3: validation loss") == 1  # not once for each process
    results = [read_json(each / "results.json") for each in (run, one)]
    assert results[0]["processes"] == 2
    assert all(results[0][name] == pytest.approx(results[1][name]) for name in ("bleu", "chrf", "test_sentences"))
    ends = [read_json(each / "checkpoint-3" / "progress.json") for each in (run, one)]
    assert all(ends[0][name] == ends[1][name] for name in ("tokens", "positions"))
    losses = [end["losses"] + [entry["loss"] for entry in end["validations"]] for end in ends]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert_same_weights(run / "checkpoint-3", one / "checkpoint-3", "optimizer", atol=1e-6)
    for part in ("checkpoint-3", "model"):
        assert_same_weights(run / part, one / part, atol=1e-5)
        assert {*tree(run / part)} == {*tree(one / part)}


@pytest.mark.slow
def test_a_signal_ends_every_process_with_a_checkpoint(folder, start):
    """SIGTERM to the launcher, which passes it on."""
    run = folder / "signal"
    launcher = start(run, "--config_file", FOLDER / "8_gpus.yaml", "--num_processes", 2, max_steps=100_000)
    while not (run / "best").exists() and launcher.poll() is None:
        time.sleep(0.1)
    launcher.terminate()
    errors, step = launcher.communicate(timeout=60)[1], checkpoint_step(newest_checkpoint(run))
    assert f"SIGTERM: stopped after update {step} of {run}" in errors
    assert len(read_json(run / f"checkpoint-{step}" / "progress.json")["losses"]) == step >= 2
