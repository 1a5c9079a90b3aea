"""Checkpoints: whole or not at all, without pickle, averaged as section 6.1 has it."""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from helpers import make_tokenizer, tree
from safetensors.numpy import load_file, save_file

from modeling_vanilla.training import checkpoints
from modeling_vanilla.training.checkpoints import (
    Progress,
    average_checkpoints,
    list_checkpoints,
    load_optimizer,
    load_progress,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from modeling_vanilla.training.optimization import adam


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(["a dog sees a cat"], vocab_size=264)


@pytest.fixture
def trained(make_model):
    """An accelerator, a model and its optimizer after two steps."""
    accelerator = Accelerator(cpu=True)
    model = make_model(vocab_size=264).train()
    model, optimizer = accelerator.prepare(model, adam(model))
    for _ in range(2):
        take_step(model, optimizer)
    return accelerator, model, optimizer


def take_step(model, optimizer):
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    model(input_ids=torch.tensor([[5, 6, 2]]), labels=torch.tensor([[7, 8, 2]])).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_checkpoint_has_all_there_is_to_resume_and_no_pickle(tmp_path, trained, tokenizer):
    progress = Progress(step=2, losses=[2.5, 2.25])
    folder = save_checkpoint(tmp_path, *trained, tokenizer, progress, scheduled=True)
    assert folder == tmp_path / "checkpoint-2"
    assert load_progress(folder) == progress
    files = {name: content for name, content in tree(folder).items() if content is not None}
    assert {"model.safetensors", "optimizer.safetensors", "progress.json", "tokenizer.json"} <= files.keys()
    assert {Path(name).suffix for name in files} == {".safetensors", ".json", ".py", ""}  # the last: the digests
    for path in folder.glob("*.safetensors"):
        assert load_file(path)  # a pickle would not parse
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(("values", "complaint"), [({"step": 1}, "lacks averaged"), ({"rng": 1}, "has rng")])
def test_progress_of_another_version_is_named(tmp_path, values, complaint):
    known = asdict(Progress()) if "rng" in values else {}
    (tmp_path / "progress.json").write_text(json.dumps(known | values))
    with pytest.raises(ValueError, match=rf"^resume: {tmp_path}/progress.json is of another version .* {complaint}$"):
        load_progress(tmp_path)


def test_weights_and_moments_survive(tmp_path, trained, tokenizer, make_model):
    """One more step from the checkpoint is one more step of the run, to the bit."""
    accelerator, model, optimizer = trained
    folder = save_checkpoint(tmp_path, accelerator, model, optimizer, tokenizer, Progress(step=2), scheduled=True)
    take_step(model, optimizer)

    other = type(model).from_pretrained(folder).train()
    other, other_optimizer = accelerator.prepare(other, adam(other))
    load_optimizer(folder, other, other_optimizer)
    take_step(other, other_optimizer)

    expected = model.state_dict()
    torch.testing.assert_close(other.state_dict(), expected, rtol=0, atol=0)

    # Without the moments it would be another step.
    without = type(model).from_pretrained(folder).train()
    take_step(without, adam(without))
    assert any(not torch.equal(value, expected[name]) for name, value in without.state_dict().items())


@pytest.mark.parametrize("writer", ["save_model", "save_file", "write_json"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, trained, tokenizer, monkeypatch, writer):
    save_checkpoint(tmp_path, *trained, tokenizer, Progress(step=1), scheduled=True)
    before = tree(tmp_path)

    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, writer, full)
    for step in (2, 1):  # a new one, and one that would replace the old
        with pytest.raises(OSError, match=rf"checkpoint-{step}: cannot be written.*No space left"):
            save_checkpoint(tmp_path, *trained, tokenizer, Progress(step=step), scheduled=True)
        assert tree(tmp_path) == before


def test_list_is_by_step_not_by_name(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-100", "checkpoint-x", "model", "last-101"):
        (tmp_path / name).mkdir()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10", "checkpoint-100"]
    assert newest_checkpoint(tmp_path).name == "last-101"


@pytest.mark.parametrize(
    ("keep", "names", "left"),
    [
        (2, "checkpoint-20 checkpoint-30 checkpoint-100", "checkpoint-30 checkpoint-100"),
        (9, "checkpoint-20 checkpoint-30", "checkpoint-20 checkpoint-30"),
        (1, "checkpoint-20 checkpoint-30 last-33 last-5", "checkpoint-30 last-33"),
        (1, "checkpoint-20 last-11 best model", "checkpoint-20 best model"),
        (1, "last-3", "last-3"),
    ],
)
def test_prune_keeps_the_last_of_the_schedule_and_the_newest(tmp_path, keep, names, left):
    for name in names.split():
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    newest = newest_checkpoint(tmp_path)
    prune_checkpoints(tmp_path, keep)
    assert {path.name for path in tmp_path.iterdir()} == set(left.split())
    assert newest_checkpoint(tmp_path) == newest


def test_the_digests_are_those_of_sha256sum(tmp_path, trained, tokenizer):
    folder = save_checkpoint(tmp_path, *trained, tokenizer, Progress(step=2), scheduled=True)
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0 and len(done.stdout.splitlines()) == len(list(folder.iterdir())) - 1
    checkpoints.check_digests(folder)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "flipped": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "progress.json", "SHA256SUMS"])
def test_a_damaged_checkpoint_is_put_aside(tmp_path, trained, tokenizer, damage, name):
    for step in (2, 4):
        folder = save_checkpoint(tmp_path, *trained, tokenizer, Progress(step=step), scheduled=step == 2)
    DAMAGES[damage](folder / name)
    for _ in range(2):  # the second time after a run has written it again
        (line,) = checkpoints.put_aside_damaged(tmp_path)
        assert str(folder / (name if name != "SHA256SUMS" or damage == "missing" else "")) in line
        assert line.endswith("; last-4 is put aside as last-4.damaged")
        assert newest_checkpoint(tmp_path).name == "checkpoint-2"
        save_checkpoint(tmp_path, *trained, tokenizer, Progress(step=4), scheduled=False)
        assert checkpoints.put_aside_damaged(tmp_path) == []
        DAMAGES[damage](folder / name)


# What cannot be averaged; test_average_checkpoints.py has the mean itself


def checkpoint(path, **weights):
    path.mkdir()
    values = {name: np.asarray(value, dtype=np.float32) for name, value in weights.items()}
    save_file(values, path / "model.safetensors")
    return path


def test_average_refuses_what_it_cannot_average(tmp_path):
    first = checkpoint(tmp_path / "first", a=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"^no checkpoints to average$"):
        average_checkpoints([])
    faults = {
        r"the weight a is of shape \(1,\), not \(2,\)": {"a": [1.0]},
        "the weights lack a": {"b": [1.0, 2.0]},
        "the weights have, beyond the model's, b": {"a": [1.0, 2.0], "b": [1.0]},
    }
    for number, (message, weights) in enumerate(faults.items()):
        other = checkpoint(tmp_path / str(number), **weights)
        with pytest.raises(ValueError, match=f"^{other}: {message}$"):
            average_checkpoints([first, other])
    (tmp_path / "empty").mkdir()
    broken = checkpoint(tmp_path / "broken", a=[1.0, 2.0]) / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-3])
    for folder, message in (("empty", "empty: .*no model.safetensors$"), ("broken", f"{broken}: cannot be read")):
        with pytest.raises(ValueError, match=message):
            average_checkpoints([first, tmp_path / folder])
