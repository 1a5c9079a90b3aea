"""Every file that a command reads, broken in many ways: one line names it, and nothing is written."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from helpers import change_json, change_weights
from trial import PROGRAMS, READERS, check

NESTED = 100_000


# Ways to break any file


def gone(path):
    path.unlink()


def becomes(content):
    def write(path):
        path.write_bytes(content)

    return write


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def folder_instead(path):
    path.unlink()
    path.mkdir()


def closed(path):
    """A link that leads nowhere; what root may not read either."""
    path.unlink()
    path.symlink_to("nowhere")


DAMAGE = {"gone": gone, "cut": cut, "a folder": folder_instead, "a dead link": closed}
DAMAGE |= {"empty": becomes(b""), "not UTF-8": becomes(b'{"a": "\xff\xfe"}')}
JSON = {"a list": becomes(b"[]"), "nested": becomes(b'{"a":' * NESTED + b"1" + b"}" * NESTED)}


# Of a model folder. What its fields and weights may be, test_bad_input.py and test_loading_fuzz.py try.


def fields(**changes):
    return partial(change_json, **changes)


def matrix(change):
    """A fault in a matrix of the weights."""

    def spoil(tensors):
        name = next(name for name in sorted(tensors) if tensors[name].dim() == 2)
        change(tensors, name)

    return partial(change_weights, change=spoil)


WEIGHTS = {
    **{name: damage for name, damage in DAMAGE.items() if name != "not UTF-8"},
    "infinite": matrix(lambda tensors, name: tensors[name].view(-1)[-1].fill_(float("inf"))),
    "one missing": matrix(lambda tensors, name: tensors.pop(name)),
    "turned": matrix(lambda tensors, name: tensors.update({name: tensors[name].T.contiguous()})),
}
MODEL = {
    "config.json": {**DAMAGE, **JSON, "huge": fields(d_model=10**12)},
    "model.safetensors": WEIGHTS,
    # Without generation_config.json a model has the configuration of its class.
    "generation_config.json": {name: DAMAGE[name] for name in ("empty", "cut", "not UTF-8")} | JSON,
    "tokenizer.json": {**DAMAGE, **JSON, "no model": fields(model=...)},
    "tokenizer_config.json": {name: DAMAGE[name] for name in DAMAGE if name != "a dead link"} | JSON,
}
CASES = [
    (program, f"{folder}/{file}", name)
    for program, folder in READERS.items()
    for file, ways in MODEL.items()
    if (program, file) != ("score", "generation_config.json")  # which scoring does not read
    for name in ways
]
CASES += [("train --tokenizer", f"model/{file}", name) for file in list(MODEL)[-2:] for name in MODEL[file]]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_broken_model_folder_is_named(trial, folder, case):
    program, path, name = case
    MODEL[Path(path).name][name](folder / path)
    check(trial.run(PROGRAMS[program].split(), folder), str(Path(path).parent))


# Data


PAIRS = {
    **DAMAGE,
    "a .gz that is none": lambda path: shutil.move(path, path.with_name(path.name + ".gz")),
    "no JSON": becomes(b"dog\n"),
}
TEXT = {**{name: DAMAGE[name] for name in ("gone", "a folder", "a dead link")}, "Latin-1": becomes(b"a\nf\xfcr\nb\n")}
TEXT |= {"too short": becomes(b"a\n"), "UTF-16": becomes("a\nb\nc\n".encode("utf-16"))}
DATA = {
    ("check", "train.jsonl"): PAIRS,
    ("train", "train.jsonl"): PAIRS,
    ("train", "validation.jsonl"): PAIRS,
    ("train", "test.jsonl"): PAIRS,
    ("finetune", "train.jsonl"): PAIRS,
    ("finetune", "validation.jsonl"): PAIRS,
    ("translate", "source.txt"): {name: way for name, way in TEXT.items() if name != "too short"},
    ("score", "source.txt"): {name: way for name, way in TEXT.items() if name != "too short"},  # of the target, it says
    ("score", "target.txt"): TEXT,
    # A model without results beside it is published without scores.
    ("push", "run/results.json"): {name: way for name, way in DAMAGE.items() if name not in TEXT}
    | JSON
    | {"other": fields(parameters=1), "less": fields(settings=...)},
    ("train --resume", "run/run.json"): DAMAGE | JSON | {"less": fields(data=...), "other": fields(training_data="x")},
    **{("convert marian", f"marian/{file}"): DAMAGE | JSON for file in ("config.json", "tokenizer.json")},
    # The weight that is missing would be final_logits_bias, which MarianMT takes for zeros.
    ("convert marian", "marian/model.safetensors"): {name: WEIGHTS[name] for name in WEIGHTS if name != "one missing"},
    ("convert fsmt", "fsmt/model.safetensors"): WEIGHTS,
    **{("convert fsmt", f"fsmt/{file}"): DAMAGE | JSON for file in ("config.json", "vocab-src.json", "vocab-tgt.json")},
    ("convert fsmt", "fsmt/merges.txt"): {name: DAMAGE[name] for name in ("gone", "not UTF-8", "a folder")},
    ("convert fairseq", "fairseq/model.pt"): {name: way for name, way in DAMAGE.items() if name != "not UTF-8"},
    ("convert fairseq", "fairseq/dict.en.txt"): DAMAGE,
    ("convert fairseq", "fairseq/bpecodes"): {
        name: way for name, way in DAMAGE.items() if name not in ("cut", "empty")
    },
}
DATA_CASES = [(program, file, name) for (program, file), ways in DATA.items() for name in ways]


@pytest.mark.parametrize("case", DATA_CASES, ids="-".join)
def test_a_broken_file_is_named(trial, folder, case):
    program, file, name = case
    if program == "train --resume":  # it may go on in the folder of the run, where a good run.json lets it
        (folder / "run" / "results.json").touch()
    words = PROGRAMS[program].split()
    DATA[program, file][name](folder / file)
    if name == "a .gz that is none":
        words = [word + ".gz" if word == file else word for word in words]
    check(trial.run(words, folder), Path(file).name.split(".")[0])
