"""Folders that bring code of their own, given to every command with "y" on its standard input: none of it is run."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from helpers import change_json
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from trial import PROGRAMS, READERS

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


def modules(folder):
    """Names that libraries import, in the working directory too."""
    for name in ("json", "torch", "sentencepiece", "tiktoken", "sacremoses", "modeling_vanilla", "configuration"):
        for place in (folder, Path(".")):
            (place / f"{name}.py").write_text(CODE)


TRAPS = {"config": config("foreign"), "config of our type": config("vanilla"), "config of a known type": config("bert")}
TRAPS |= {"config without a type": config(None), "weights of torch": weights("pytorch_model.bin")}
for trap in (tokenizer, tokenizer_by_config, elsewhere, search, pipeline, pickled, sharded, adapter, modules):
    TRAPS[trap.__name__] = trap
FOLDERS = READERS | {"train --tokenizer": "model", "convert marian": "marian", "convert fsmt": "fsmt"}
FOLDERS |= dict.fromkeys(("average --last", "train --resume"), "run/checkpoint-4")
CASES = [(program, trap) for program in FOLDERS for trap in TRAPS]
# A folder in which nothing is broken takes half a minute to export; CTranslate2's export loads it in the same way.
CASES = [case for case in CASES if case[0] != "export onnx" or case[1] in ("config", "tokenizer", "pickled")]


@pytest.mark.parametrize("case", CASES, ids=" - ".join)
def test_no_code_of_a_folder_is_run(trial, folder, case, monkeypatch):
    """Where nothing else of it is wrong, the command may do its work."""
    program, trap = case
    monkeypatch.chdir(folder)
    path = folder / FOLDERS[program]
    if trap == "search" and not (path / "generation_config.json").exists():
        (path / "generation_config.json").write_text("{}")
    for file in (path / "own.py", path / "__init__.py"):
        file.write_text(CODE)
    TRAPS[trap](path)
    done = trial.run(PROGRAMS[program].split(), folder, stdin=b"y\n" * 100)
    assert not list(folder.rglob(MARK))
    assert "[y/N]" not in done.output + done.errors
    assert done.code in (0, 2)
    if done.code == 2:  # libraries may warn of the folder before
        assert done.said[-1].startswith("error: ") and "Traceback" not in done.errors, done.errors[-2000:]


def test_a_checkpoint_of_the_fine_tuning_runs_no_code(trial, folder):
    words = PROGRAMS["finetune"].split()
    assert trial.run(words, folder).code == 0
    pickles = [file for file in (folder / "new/checkpoint-4").iterdir() if file.suffix in (".pt", ".pth", ".bin")]
    assert {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"} <= {file.name for file in pickles}
    for file in pickles:
        file.write_bytes(pickle.dumps(Command()))
    words[words.index("--max_steps") + 1] = "6"
    done = trial.run([*words, "--resume"], folder, stdin=b"y\n" * 100)
    assert not list(folder.rglob(MARK))
    assert done.code == 2 and done.said[-1].startswith("error: resume: ") and "Traceback" not in done.errors


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("file", ["model.pt", "dict.en.txt", "bpecodes"])
def test_a_pickle_of_fairseq_runs_no_code(trial, folder, file, protocol):
    (folder / "fairseq" / file).write_bytes(pickle.dumps({"args": Command(), "model": {}}, protocol))
    done = trial.run(PROGRAMS["convert fairseq"].split(), folder)
    assert not list(folder.rglob(MARK))
    assert done.code == 2 and len(done.said) == 1, done.errors[-2000:]


class Network:
    """Leaves a mark when this process asks the network, which Hugging Face's libraries are free to do."""

    def __call__(self, event, arguments):
        constants.HF_HUB_OFFLINE = False
        if event in ("socket.getaddrinfo", "socket.connect"):
            Path(MARK).touch()


LOCAL = [program for program in (*FOLDERS, "convert fairseq", "train") if program not in ("push", "export onnx")]


@pytest.mark.parametrize("program", LOCAL)
def test_no_network_is_asked_unless_something_there_is_named(trial, folder, program):
    done = trial.run(PROGRAMS[program].split(), folder, hooks=[Network()])
    assert done.code == 0, done.errors[-2000:]
    assert not list(folder.rglob(MARK))


def test_the_mark_is_made_where_the_network_is_asked(trial, folder):
    trial.run(PROGRAMS["push"].split(), folder, hooks=[Network()])
    assert (folder / MARK).exists()


def test_the_mark_is_made_where_code_is_run(folder, monkeypatch):
    """What the other tests look for would be there."""
    monkeypatch.chdir(folder)
    pickle.loads(pickle.dumps(Command()))
    assert Path(MARK).exists()
    Path(MARK).unlink()
    exec(CODE, {})
    assert Path(MARK).exists()
