"""Folders that bring code of their own, given to every command with "y" on its standard input: none of it is run."""

import json
import os
import pickle

import pytest
import torch
from helpers import change_json
from safetensors.torch import load_file, save_file
from trial import PROGRAMS, READERS, run, run_process

MARK = "executed"
CODE = f"""
import pathlib
(pathlib.Path.cwd() / "{MARK}").touch()
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
class Config(PretrainedConfig):
    model_type = "foreign"
class Model(PreTrainedModel):
    config_class = Config
class Words(PreTrainedTokenizerFast):
    pass
def generate(*arguments, **settings):
    pass
"""


class Command:
    """What leaves a mark when it is unpickled."""

    def __reduce__(self):
        return os.system, (f"touch {MARK}",)


def config(model_type):
    """The configuration names the code of the folder for itself and for every kind of model."""

    def spoil(folder):
        classes = dict.fromkeys(("AutoModel", "AutoModelForSeq2SeqLM", "AutoModelForCausalLM"), "own.Model")
        change_json(folder / "config.json", model_type=model_type, auto_map={"AutoConfig": "own.Config", **classes})

    return spoil


def tokenizer(folder):
    names = {"AutoTokenizer": ["own.Words", "own.Words"]}
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text() if path.exists() else "{}")
    change_json(path, tokenizer_class="Words", auto_map=names)


def tokenizer_by_config(folder):
    (folder / "tokenizer_config.json").write_text("{}")
    change_json(folder / "config.json", auto_map={"AutoTokenizer": ["own.Words", "own.Words"]}, tokenizer_class="Words")


def elsewhere(folder):
    """The code is that of another folder."""
    change_json(folder / "config.json", model_type="foreign", auto_map={"AutoConfig": "../evil--own.Config"})


def search(folder):
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE)
    change_json(folder / "generation_config.json", custom_generate=str(folder))


def pipeline(folder):
    change_json(folder / "config.json", custom_pipelines={"translation": {"impl": "own.Model", "pt": ["AutoModel"]}})


def weights(name):
    """A pickle in place of the weights."""

    def spoil(folder):
        (folder / "model.safetensors").unlink()
        torch.save({"model": Command()}, folder / name)

    return spoil


def pickled(folder):
    (folder / "model.safetensors").write_bytes(pickle.dumps(Command()))


def sharded(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "part.bin")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save({"model": Command()}, folder / "part.bin")


def adapter(folder):
    save_file({"a": torch.zeros(1)}, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(folder), "auto_mapping": {"parent_library": "own"}}
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "auto_map": {"AutoModel": "own.Model"}}))


TRAPS = {"config": config("foreign"), "config of our type": config("vanilla"), "config of a known type": config("bert")}
TRAPS |= {"config without a type": config(None), "weights of torch": weights("pytorch_model.bin")}
for trap in (tokenizer, tokenizer_by_config, elsewhere, search, pipeline, pickled, sharded, adapter):
    TRAPS[trap.__name__] = trap
FOLDERS = READERS | {"convert marian": "marian", "convert fsmt": "fsmt"}
FOLDERS |= dict.fromkeys(("average --last", "train --resume"), "run/checkpoint-4")
del FOLDERS["export onnx"]  # a sound folder takes half a minute, and is loaded as for CTranslate2


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("program", FOLDERS)
def test_no_code_of_a_folder_is_run(folder, program, trap):
    """Where nothing else of it is wrong, the command may do its work."""
    path = folder / FOLDERS[program]
    if trap == "search" and not (path / "generation_config.json").exists():
        (path / "generation_config.json").write_text("{}")
    for file in (path / "own.py", path / "__init__.py"):
        file.write_text(CODE)
    TRAPS[trap](path)
    done = run(PROGRAMS[program], stdin=b"y\n" * 100)
    assert not list(folder.rglob(MARK))
    assert "[y/N]" not in done.output + done.errors
    assert done.code == 0 or done.error


@pytest.mark.parametrize("program", ["translate", "train --model", "convert fsmt"])
def test_no_module_of_the_working_folder_is_imported(folder, program):
    """By the names of what libraries import."""
    for name in ("json", "torch", "sentencepiece", "tiktoken", "sacremoses", "modeling_vanilla", "configuration"):
        for place in (folder, folder / FOLDERS[program]):
            (place / f"{name}.py").write_text(CODE)
    assert run_process(PROGRAMS[program], folder).succeeded
    assert not list(folder.rglob(MARK))


def test_a_checkpoint_of_the_fine_tuning_runs_no_code(folder):
    assert run(PROGRAMS["finetune"]).succeeded
    pickles = [file for file in (folder / "new/checkpoint-4").iterdir() if file.suffix in (".pt", ".pth", ".bin")]
    assert {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"} <= {file.name for file in pickles}
    for file in pickles:
        file.write_bytes(pickle.dumps(Command()))
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        run(PROGRAMS["finetune"].replace("--max_steps 4", "--max_steps 6"), "--resume", stdin=b"y\n" * 100)
    assert not list(folder.rglob(MARK))


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])  # as text, and in frames of bytes
@pytest.mark.parametrize("file", ["model.pt", "dict.en.txt", "bpecodes"])
def test_a_pickle_of_fairseq_runs_no_code(folder, file, protocol):
    (folder / "fairseq" / file).write_bytes(pickle.dumps({"args": Command(), "model": {}}, protocol))
    done = run(PROGRAMS["convert fairseq"])
    assert not list(folder.rglob(MARK))
    assert (file, protocol) == ("bpecodes", 0) or done.error  # as text, merges that never apply


# Leaves a mark when the process asks the network, which Hugging Face's libraries are made free to do.
NETWORK = f"""
import sys
from pathlib import Path
from huggingface_hub import constants

def mark(event, arguments):
    constants.HF_HUB_OFFLINE = False
    if event in ("socket.getaddrinfo", "socket.connect"):
        Path("{MARK}").touch()

sys.addaudithook(mark)
"""
LOCAL = [program for program in (*FOLDERS, "convert fairseq", "train") if program != "push"]


@pytest.mark.parametrize("program", LOCAL)
def test_no_network_is_asked_unless_something_there_is_named(folder, program):
    assert run_process(PROGRAMS[program], folder, NETWORK).succeeded
    assert not (folder / MARK).exists()


def test_the_marks_that_the_other_tests_look_for_are_made(folder):
    run_process(PROGRAMS["push"], folder, NETWORK)
    assert (folder / MARK).exists()
    for execute in (lambda: pickle.loads(pickle.dumps(Command())), lambda: exec(CODE, {})):
        (folder / MARK).unlink()
        execute()
        assert (folder / MARK).exists()
