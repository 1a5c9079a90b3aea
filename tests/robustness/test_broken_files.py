"""Every file that a command reads, broken in many ways: one line names it, and nothing is written."""

from functools import partial
from pathlib import Path

import pytest
from helpers import change_weights
from trial import PROGRAMS, check


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
# What fields and weights may be, test_bad_input.py, test_loading_fuzz.py and test_interop_importers.py try.
FILES = {
    "check": {"train.jsonl": PAIRS},
    "train": {"train.jsonl": PAIRS, "validation.jsonl": ("gone", "cut"), "test.jsonl": ("gone", "cut")},
    "finetune": {"train.jsonl": PAIRS, "model/config.json": JSON, "model/model.safetensors": WEIGHTS},
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
    "train --model": {"model/config.json": ("gone", "cut"), "model/model.safetensors": ("gone", "cut")},
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
