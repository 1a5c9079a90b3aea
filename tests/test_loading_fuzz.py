"""Model folders and checkpoints damaged at random: a model or one error, soon and in little memory."""

import json
import resource
import signal
from pathlib import Path

import pytest
import torch
from helpers import fork, make_tiny, make_tokenizer, save_folder
from importers import make_weights, save
from transformers.utils import logging

from modeling_vanilla.inference import load_translator
from modeling_vanilla.interop import from_fairseq

hypothesis = pytest.importorskip("hypothesis")
st = pytest.importorskip("hypothesis.strategies")
pytestmark = pytest.mark.slow
LOADERS = {".pt": from_fairseq, **dict.fromkeys((".json", ".safetensors"), lambda path: load_translator([path.parent]))}
JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
SECONDS, BYTES = 30, 2**31  # the most that loading may take beyond what the test itself has
ODD = [None, True, -1, 0, 3, 2.5, 10**9, 10**12, 10**30, float("nan"), float("inf")]
ODD += ["", "4", "gelu", [], [[]], {}, {"a": 1}]
DEEP = "[" * 10**5


def places(value, path=()):
    """The path of each value in what JSON gives; of long lists and dictionaries only the first."""
    yield path
    if isinstance(value, dict | list):
        for key in list(value if isinstance(value, dict) else range(len(value)))[:30]:
            yield from places(value[key], (*path, key))


def replaced(content: bytes, path: tuple, odd) -> bytes:
    whole = inner = {"": json.loads(content)}
    for key in ("", *path)[:-1]:
        inner = inner[key]
    inner[("", *path)[-1]] = odd
    return json.dumps(whole[""]).replace(json.dumps(DEEP), DEEP + DEEP.replace("[", "]")).encode()


def contents(name: str, content: bytes):
    """A strategy for what the file becomes: bytes changed, cut off and inserted, and values of JSON replaced."""

    def changed(changes) -> bytes:
        result = bytearray(content)
        for place, removed, inserted in changes:
            result[place : place + removed] = inserted
        return bytes(result)

    # Most changes near the start, where safetensors has its header.
    place = st.integers(0, len(content)) | st.integers(0, min(len(content), 3000))
    change = st.tuples(place, st.integers(0, 4), st.binary(max_size=8) | st.sampled_from([b'"', b"{", b"9" * 20, b"-"]))
    ways = [
        st.lists(change, min_size=1, max_size=4).map(changed),
        st.integers(0, len(content)).map(lambda n: content[:n]),
    ]
    if name in JSON_FILES:
        paths = st.sampled_from([*places(json.loads(content))])
        ways.append(st.tuples(paths, st.sampled_from([*ODD, DEEP])).map(lambda drawn: replaced(content, *drawn)))
    return st.one_of(ways)


def load_damaged(folder, name: str) -> None:
    logging.disable_progress_bar()
    whole = (folder / name).read_bytes()
    memory = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (memory + BYTES, memory + BYTES))

    settings = {"deadline": None, "database": None, "suppress_health_check": list(hypothesis.HealthCheck)}

    @hypothesis.settings(max_examples=2000 if name.endswith(".pt") else 250, derandomize=True, **settings)
    @hypothesis.given(contents(name, whole))
    def check(content):
        (folder / name).write_bytes(content)
        signal.alarm(SECONDS)  # which ends the process
        try:
            LOADERS[(folder / name).suffix](folder / name)
        except (ValueError, OSError) as error:
            assert str(error).startswith(str(folder / name)) if name.endswith(".pt") else str(error)
        signal.alarm(0)

    check()


@pytest.mark.parametrize("name", [*JSON_FILES, "model.safetensors", "fairseq.pt", "fairseq_of_2019.pt"])
def test_what_is_damaged_is_a_model_or_an_error(tmp_path, name):
    folder = save_folder(tmp_path / "model", make_tiny(), make_tokenizer(["a dog", "a cat"]))
    save(folder / "fairseq.pt", make_weights())
    old = {"args": {}, "model": make_weights()}
    torch.save(old, folder / "fairseq_of_2019.pt", _use_new_zipfile_serialization=False)
    assert fork(lambda: load_damaged(folder, name)) == 0, (folder / name).read_bytes()[:500]
