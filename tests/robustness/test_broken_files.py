"""Every file that a command reads, broken in many ways: one line names it, and nothing is written."""

from functools import partial
from pathlib import Path

import pytest
from helpers import change_json, change_weights
from trial import PROGRAMS, READERS, check


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def becomes(content):
    return lambda path: path.write_bytes(content)


def a_folder(path):
    path.unlink()
    path.mkdir()


def matrix(change):
    """A fault in a matrix of the weights."""

    def spoil(tensors):
        name = next(name for name in sorted(tensors) if tensors[name].dim() == 2)
        change(tensors, name)

    return partial(change_weights, change=spoil)


WAYS = {
    "gone": Path.unlink,
    "cut": cut,
    "a folder": a_folder,
    "empty": becomes(b""),
    "not UTF-8": becomes(b'{"a": "\xff\xfe"}\n'),
    "a list": becomes(b"[]"),
    "nested": becomes(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "no model": partial(change_json, model=...),
    "infinite": matrix(lambda tensors, name: tensors[name].view(-1)[-1].fill_(float("inf"))),
    "one missing": matrix(lambda tensors, name: tensors.pop(name)),
    "turned": matrix(lambda tensors, name: tensors.update({name: tensors[name].T.contiguous()})),
    "too short": becomes(b"a\n"),
    "UTF-16": becomes("a\nb\nc\n".encode("utf-16")),
}
DAMAGE = ("gone", "cut", "a folder", "empty", "not UTF-8")
JSON = (*DAMAGE, "a list", "nested")
WEIGHTS = ("gone", "cut", "a folder", "empty", "infinite", "one missing", "turned")
# Of a model folder. What its fields and weights may be, test_bad_input.py and test_loading_fuzz.py try.
MODEL = {
    "config.json": JSON,
    "model.safetensors": WEIGHTS,
    "generation_config.json": ("cut", "empty", "not UTF-8", "a list", "nested"),  # it need not be there
    "tokenizer.json": (*JSON, "no model"),
    "tokenizer_config.json": JSON,
}
CASES = [
    (program, folder, file, way)
    for program, folder in {**READERS, "train --tokenizer": "model"}.items()
    for file, ways in MODEL.items()
    for way in ways
    if (program, file) != ("score", "generation_config.json")  # which scoring does not read
    and (program != "train --tokenizer" or file.startswith("tokenizer"))
]


@pytest.mark.parametrize(("program", "place", "file", "way"), CASES)
def test_a_broken_model_folder_is_named(trial, folder, program, place, file, way):
    WAYS[way](folder / place / file)
    check(trial.run(PROGRAMS[program].split(), folder), place)


PAIRS = (*DAMAGE, "a list")
TEXT = ("gone", "a folder", "not UTF-8", "UTF-16")
FILES = {
    "check": {"train.jsonl": PAIRS},
    "train": {"train.jsonl": PAIRS, "validation.jsonl": PAIRS, "test.jsonl": PAIRS},
    "finetune": {"train.jsonl": PAIRS},
    "translate": {"source.txt": TEXT},
    "score": {"source.txt": TEXT, "target.txt": (*TEXT, "too short")},
    "push": {"run/results.json": ("cut", "empty", "a list", "nested")},  # it need not be there
    "train --resume": {"run/run.json": JSON},
    # The weight that is missing would be final_logits_bias, which MarianMT takes for zeros.
    "convert marian": {
        "marian/config.json": JSON,
        "marian/tokenizer.json": JSON,
        "marian/model.safetensors": WEIGHTS[:4],
    },
    "convert fsmt": {"fsmt/config.json": JSON, "fsmt/vocab-src.json": DAMAGE, "fsmt/model.safetensors": WEIGHTS},
    "convert fairseq": {
        "fairseq/model.pt": DAMAGE[:4],
        "fairseq/dict.en.txt": DAMAGE,
        "fairseq/bpecodes": ("gone", "a folder"),
    },
}


@pytest.mark.parametrize(
    ("program", "file", "way"),
    [(program, file, way) for program, files in FILES.items() for file, ways in files.items() for way in ways],
)
def test_a_broken_file_is_named(trial, folder, program, file, way):
    WAYS[way](folder / file)
    # The line names the file, or what it is a part of.
    check(trial.run(PROGRAMS[program].split(), folder), Path(file).stem, f"{Path(file).parent}: ")
