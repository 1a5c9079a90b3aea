"""Files and folders that are broken, or bring code: one line names what is wrong, nothing is run, nothing written."""

import json
import os
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import change_json, change_weights
from safetensors.torch import load_file, save_file
from trial import PROGRAMS, READERS, check, run, run_process

# Every file that a command reads, broken in many ways


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def becomes(content):
    return lambda path: path.write_bytes(content)


def a_folder(path):
    path.unlink()
    path.mkdir()


def without_a_matrix(tensors):
    del tensors[next(name for name in sorted(tensors) if tensors[name].dim() == 2)]


WAYS = {
    "gone": Path.unlink,
    "cut": cut,
    "a folder": a_folder,
    "empty": becomes(b""),
    "not UTF-8": becomes(b'{"a": "\xff\xfe"}\n'),
    "a list": becomes(b"[]"),
    "nested": becomes(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "one missing": partial(change_weights, change=without_a_matrix),
    "too short": becomes(b"a\n"),
}
DAMAGE = ("gone", "cut", "a folder", "empty", "not UTF-8")
JSON = (*DAMAGE, "a list", "nested")
WEIGHTS = ("gone", "cut", "a folder", "one missing")
PAIRS = (*DAMAGE, "a list")
TEXT = ("gone", "a folder", "not UTF-8")
# What fields and weights may be, test_bad_input.py and test_interop_importers.py try.
FILES = {
    "check": {"train.jsonl": PAIRS},
    "train": {"train.jsonl": PAIRS, "validation.jsonl": ("gone", "cut"), "test.jsonl": ("gone", "cut")},
    "translate": {
        "source.txt": TEXT,
        "model/config.json": JSON,
        "model/model.safetensors": WEIGHTS,
        "model/generation_config.json": ("cut", "nested"),  # it need not be there
        "model/tokenizer.json": JSON,
        "model/tokenizer_config.json": JSON,
    },
    "score": {"source.txt": TEXT, "target.txt": (*TEXT, "too short")},
    "average": {f"run/checkpoint-4/{name}": ("gone", "cut") for name in ("config.json", "model.safetensors")},
    "push": {"run/results.json": ("cut", "a list", "nested"), "run/model/model.safetensors": ("gone", "cut")},
    "train --tokenizer": {"model/tokenizer.json": JSON},
    "train --resume": {"run/run.json": JSON},
    "convert marian": {"marian/config.json": JSON, "marian/tokenizer.json": JSON, "marian/model.safetensors": ("cut",)},
    "convert fsmt": {"fsmt/config.json": JSON, "fsmt/vocab-src.json": DAMAGE, "fsmt/model.safetensors": WEIGHTS},
    "convert fairseq": {"fairseq/model.pt": DAMAGE[:4], "fairseq/dict.en.txt": DAMAGE, "fairseq/bpecodes": ("gone",)},
}
CASES = [(program, file, way) for program, files in FILES.items() for file, ways in files.items() for way in ways]


@pytest.mark.parametrize(("program", "file", "way"), CASES)
def test_a_broken_file_is_named(folder, program, file, way):
    WAYS[way](folder / file)
    path = Path(file)
    check(PROGRAMS[program], folder, path.name.split(".")[0], path.parent.name or path.name)


# Folders that bring code of their own, given to every command with "y" on its standard input

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


CLASSES = {"AutoConfig": "own.Config", "AutoModel": "own.Model", "AutoModelForSeq2SeqLM": "own.Model"}


def tokenizer(folder):
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text() if path.exists() else "{}")
    change_json(path, tokenizer_class="Words", auto_map={"AutoTokenizer": ["own.Words", "own.Words"]})


def search(folder):
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE)
    (folder / "generation_config.json").write_text(json.dumps({"custom_generate": str(folder)}))


def sharded(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "pytorch_model.bin")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save({"model": Command()}, folder / "pytorch_model.bin")


def adapter(folder):
    save_file({"a": torch.zeros(1)}, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(folder), "auto_mapping": {"parent_library": "own"}}
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "auto_map": {"AutoModel": "own.Model"}}))


def config(**fields):
    return lambda folder: change_json(folder / "config.json", **fields)


TRAPS = {
    "config": config(model_type="foreign", auto_map=CLASSES),
    "config of our type": config(model_type="vanilla", auto_map=CLASSES),
    "config of a known type": config(model_type="bert", auto_map=CLASSES),
    "config of another folder": config(model_type="foreign", auto_map={"AutoConfig": "../evil--own.Config"}),
    "pipeline": config(custom_pipelines={"translation": {"impl": "own.Model", "pt": ["AutoModel"]}}),
    "pickle": lambda folder: (folder / "model.safetensors").write_bytes(pickle.dumps(Command())),
    **{trap.__name__: trap for trap in (tokenizer, search, sharded, adapter)},
}
FOLDERS = READERS | {"convert marian": "marian", "convert fsmt": "fsmt", "train --resume": "run/checkpoint-4"}
del FOLDERS["export onnx"]  # a sound folder takes half a minute, and is loaded as for CTranslate2


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("program", FOLDERS)
def test_no_code_of_a_folder_is_run(folder, program, trap):
    """Where nothing else of it is wrong, the command may do its work."""
    path = folder / FOLDERS[program]
    for file in (path / "own.py", path / "__init__.py"):
        file.write_text(CODE)
    TRAPS[trap](path)
    done = run(PROGRAMS[program], stdin=b"y\n" * 100)
    assert not list(folder.rglob(MARK))
    assert "[y/N]" not in done.output + done.errors
    assert done.code == 0 or done.error


@pytest.mark.parametrize("file", ["model.pt", "dict.en.txt"])
def test_a_pickle_of_fairseq_runs_no_code(folder, file):
    (folder / "fairseq" / file).write_bytes(pickle.dumps({"args": Command(), "model": {}}))
    assert run(PROGRAMS["convert fairseq"]).error
    assert not list(folder.rglob(MARK))


@pytest.mark.parametrize("program", ["translate", "train --model", "convert fsmt"])
def test_no_module_of_the_working_folder_is_imported(folder, program):
    """By the names of what libraries import."""
    for name in ("json", "torch", "sentencepiece", "tiktoken", "sacremoses", "modeling_vanilla", "configuration"):
        for place in (folder, folder / FOLDERS[program]):
            (place / f"{name}.py").write_text(CODE)
    assert run_process(PROGRAMS[program], folder).succeeded
    assert not list(folder.rglob(MARK))


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
