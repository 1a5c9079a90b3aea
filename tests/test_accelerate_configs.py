"""examples/accelerate: accelerate launches what each file's name says, and on CPUs each trains as one process does."""

import re
import shlex
import subprocess
import sys
import time

import helpers
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType
from helpers import ROOT, SAME_ANYWHERE, as_options, assert_same_weights, environment, read_json, tree, write_toy_corpus
from safetensors.torch import load_file
from transformers import HfArgumentParser

from modeling_vanilla.training import DataOptions, TrainingOptions, TranslationOptions
from modeling_vanilla.training.checkpoints import checkpoint_step, newest_checkpoint

FOLDER = ROOT / "examples" / "accelerate"
FILES = sorted(FOLDER.glob("*.yaml"))
SHARDED = FOLDER / "2x8_gpus_fsdp.yaml"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_takes_the_file_and_its_command_and_starts_what_the_name_says(path):
    """2x8_gpus_ddp: 2 machines, 16 processes."""
    config = load_config_from_file(str(path))  # raises for a key that it does not know, but not within fsdp_config
    assert set(config.fsdp_config) <= {action.dest for action in launch_command_parser()._actions}
    kinds = {"1_gpu": DistributedType.NO, "2x8_gpus_fsdp": DistributedType.FSDP}
    assert config.distributed_type == kinds.get(path.stem, DistributedType.MULTI_GPU)
    assert (config.mixed_precision, config.use_cpu) == ("bf16", False)
    text = path.read_text(encoding="utf-8").replace("\\\n#", "")
    (command,) = re.findall(r"^# +accelerate launch (.*) \.\.\.$", text, re.MULTILINE)
    arguments = launch_command_parser().parse_args(shlex.split(command))
    assert ROOT / arguments.config_file == path
    assert (ROOT / arguments.training_script).is_file()
    options = [*arguments.training_script_args, "--output_dir", "unused"]
    parser = HfArgumentParser((DataOptions, TrainingOptions, TranslationOptions))
    parser.parse_args_into_dataclasses(options)  # exits for an option that there is not
    started, *_ = _validate_launch_command(arguments)
    machines, each = re.match(r"(?:(\d+)x)?(\d+)_gpu", path.stem).groups(default="1")
    assert (started.num_machines, started.num_processes) == (int(machines), int(machines) * int(each))
    assert (started.machine_rank, started.main_process_ip) == ((0, "10.0.0.1") if machines != "1" else (0, None))


# Training, on CPUs in place of the GPUs

# accelerate takes processes on CPUs for DDP's, whatever it was told; torch shards there as on GPUs.
ON_CPUS = """
import runpy
import sys
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import FSDPModule

prepare = Accelerator.prepare

def prepare_and_tell(self, *objects):
    prepared = prepare(self, *objects)
    print("sharded:", *sorted({type(m).__name__ for m in prepared[0].modules() if isinstance(m, FSDPModule)}))
    return prepared

Accelerator.prepare = prepare_and_tell
state = Accelerator().state
state.fsdp_plugin = FullyShardedDataParallelPlugin()
if state.mixed_precision != "no":
    state.fsdp_plugin.set_mixed_precision(state.mixed_precision)
for shared in (state, PartialState()):
    shared.distributed_type = DistributedType.FSDP
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accelerate")
    (folder / "on_cpus.py").write_text(ON_CPUS, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def start(folder):
    """Start `accelerate launch FLAGS -m modeling_vanilla train`."""
    data = write_toy_corpus(folder, train=120, validation=6, test=6)

    def start(run, flags, sharded=False, **settings):
        script = ["-m", "modeling_vanilla", "train"]
        if sharded:
            script = [folder / "on_cpus.py", ROOT / "examples" / "train_translation.py"]
        script += as_options({**data, **SAME_ANYWHERE, **settings, "output_dir": run})
        command = [sys.executable, "-m", "accelerate.commands.launch", *map(str, [*flags, *script])]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        variables = environment(folder, ACCELERATE_USE_CPU="true")
        return subprocess.Popen(command, env=variables, cwd=folder, **streams)

    return start


@pytest.fixture(scope="module")
def launch(start):
    """Start it once for each list of flags, at the same time: what the first says to its end."""

    def launch(run, *flag_lists, **settings):
        started = [start(run, flags, **settings) for flags in flag_lists]
        try:
            outputs = [process.communicate(timeout=300) for process in started]
        finally:
            for process in started:
                process.terminate()
        for process, (_, errors) in zip(started, outputs, strict=True):
            assert process.returncode == 0, errors
        return "".join(outputs[0])

    return launch


def flags_of(name, *flags, mixed_precision="no"):
    return ["--config_file", FOLDER / f"{name}.yaml", "--mixed_precision", mixed_precision, *flags]


@pytest.fixture(scope="module")
def one_process(folder, launch):
    """Three updates as 1_gpu.yaml trains them, in 32 bits."""
    run = folder / "one"
    launch(run, flags_of("1_gpu", "--cpu"))
    second, third = (load_file(run / f"checkpoint-{step}" / "model.safetensors") for step in (2, 3))
    assert max(float((third[name] - second[name]).abs().max()) for name in third) > 1e-3
    return run


def progress_of(run, step=3):
    return read_json(run / f"checkpoint-{step}" / "progress.json")


def assert_same(run, other, processes):
    """The same losses, scores, weights and moments, and folders that load in the same way."""
    results = [read_json(folder / "results.json") for folder in (run, other)]
    assert results[0]["processes"] == processes
    assert all(results[0][name] == pytest.approx(results[1][name]) for name in ("bleu", "chrf", "test_sentences"))
    ends = progress_of(run), progress_of(other)
    assert ends[0]["losses"] == pytest.approx(ends[1]["losses"], abs=1e-5)
    assert all(ends[0][name] == ends[1][name] for name in ("tokens", "positions"))
    for validation, expected in zip(*(end["validations"] for end in ends), strict=True):
        assert validation["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert (validation["step"], validation["bleu"]) == (expected["step"], pytest.approx(expected["bleu"]))
    assert_same_weights(run / "checkpoint-3", other / "checkpoint-3", "optimizer", atol=1e-6)
    for part in ("checkpoint-3", "model"):
        assert_same_weights(run / part, other / part, atol=1e-5)
        assert {*tree(run / part)} == {*tree(other / part)}


@pytest.mark.slow
def test_two_machines_train_as_one_process(folder, launch, one_process):
    """Two launchers on this machine, of one process each, that find each other by address and port."""
    flags = flags_of("2x8_gpus_ddp", "--num_processes", 2, "--main_process_ip", "127.0.0.1")
    flags += ["--main_process_port", helpers.free_port(), "--machine_rank"]
    said = launch(folder / "machines", [*flags, 0], [*flags, 1])
    assert said.count("step 2: validation loss") == 1  # not once for each process
    assert_same(folder / "machines", one_process, processes=2)


@pytest.mark.slow
def test_a_signal_ends_every_process_with_a_checkpoint(folder, start):
    """SIGTERM to the launcher, which passes it on."""
    run = folder / "signal"
    launcher = start(run, flags_of("8_gpus", "--num_processes", 2), max_steps=100_000)
    while not (run / "best").exists() and launcher.poll() is None:
        time.sleep(0.1)
    launcher.terminate()
    errors, step = launcher.communicate(timeout=60)[1], checkpoint_step(newest_checkpoint(run))
    assert f"SIGTERM: stopped after update {step} of {run}" in errors
    assert len(progress_of(run, step)["losses"]) == step >= 2


TWO_SHARDS = ("--num_machines", 1, "--num_processes", 2)


@pytest.mark.slow
def test_sharded_trains_as_one_process_resumed_too(folder, launch, one_process):
    run, flags = folder / "fsdp", flags_of(SHARDED.stem, *TWO_SHARDS)
    said = launch(run, flags, sharded=True, max_steps=2)
    assert {"FSDPEncoderLayer", "FSDPDecoderLayer"} <= set(re.search("sharded: (.*)", said)[1].split())
    said = launch(run, flags, sharded=True, resume=True)
    assert said.count("step 3: validation loss") == 1
    assert [entry["step"] for entry in progress_of(run)["validations"]] == [2, 3]
    assert_same(run, one_process, processes=2)


@pytest.mark.slow
def test_sharded_in_16_bits_gives_loss_and_gradients_in_32(folder, launch, one_process):
    run = folder / "bf16"
    launch(run, flags_of(SHARDED.stem, *TWO_SHARDS, mixed_precision="bf16"), sharded=True, max_steps=2)
    losses = torch.tensor(progress_of(run, step=2)["losses"])
    torch.testing.assert_close(losses, torch.tensor(progress_of(one_process)["losses"][:2]), rtol=0, atol=2e-2)
    assert not torch.equal(losses, losses.bfloat16().float())
    moments = load_file(run / "checkpoint-1" / "optimizer.safetensors")
    # After one step the first moment is a tenth of the gradient.
    gradient = 10 * torch.cat([value.flatten() for name, value in moments.items() if name.endswith("/exp_avg")])
    rounding = (gradient - gradient.bfloat16().float()).abs()
    assert (rounding > 1e-6 * gradient.abs()).float().mean() > 0.1
