"""Checkpoints: whole or not at all, and without pickle."""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from helpers import tensors, tree

from modeling_vanilla.training import checkpoints
from modeling_vanilla.training.optimization import adam


@pytest.fixture
def trained(make_model, tokenizer):
    """An accelerator, a model and its optimizer after a step."""
    accelerator = Accelerator(cpu=True)
    model = make_model(vocab_size=len(tokenizer)).train()
    model, optimizer = accelerator.prepare(model, adam(model))
    model(input_ids=torch.tensor([[5, 6, 2]]), labels=torch.tensor([[7, 8, 2]])).loss.backward()
    optimizer.step()
    return accelerator, model, optimizer


def test_a_checkpoint_has_all_there_is_to_resume_its_digests_and_no_pickle(tmp_path, trained, tokenizer):
    progress = checkpoints.Progress(step=2, losses=[2.5, 2.25])
    folder = tmp_path / "checkpoint-2"
    checkpoints.save_checkpoint(folder, *trained, tokenizer, progress)
    assert [*tmp_path.iterdir()] == [folder]
    assert checkpoints.load_progress(folder) == progress
    names = {*tree(folder)}
    assert {"model.safetensors", "optimizer.safetensors", "progress.json", "tokenizer.json"} <= names
    assert {Path(name).suffix for name in names} == {".safetensors", ".json", ".py", ""}  # the last: the digests
    assert all(tensors(folder).values())  # a pickle would not parse
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == len(names) - 1


@pytest.mark.parametrize(("values", "complaint"), [({"step": 1}, "lacks averaged"), ({"rng": 1}, "has rng")])
def test_progress_of_another_version_is_named(tmp_path, values, complaint):
    known = asdict(checkpoints.Progress()) if "rng" in values else {}
    (tmp_path / "progress.json").write_text(json.dumps(known | values))
    with pytest.raises(ValueError, match=rf"^resume: {tmp_path}/progress.json is of another version .* {complaint}$"):
        checkpoints.load_progress(tmp_path)


PRUNED = [
    (2, "checkpoint-20 checkpoint-30 checkpoint-100", "checkpoint-30 checkpoint-100"),
    (1, "checkpoint-20 checkpoint-30 last-33 last-5", "checkpoint-30 last-33"),
    (1, "checkpoint-20 last-11 best model", "checkpoint-20 best model"),
    (1, "last-3", "last-3"),
]


@pytest.mark.parametrize(("keep", "names", "left"), PRUNED)
def test_prune_keeps_the_last_of_the_schedule_and_the_newest(tmp_path, keep, names, left):
    for name in names.split():
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    newest = checkpoints.newest_checkpoint(tmp_path)
    checkpoints.prune_checkpoints(tmp_path, keep)
    assert {path.name for path in tmp_path.iterdir()} == set(left.split())
    assert checkpoints.newest_checkpoint(tmp_path) == newest


def test_names_follow_the_schedule(tmp_path):
    """There and back."""
    for name in ("checkpoint-1", "checkpoint-2", "last-4"):
        (tmp_path / name).mkdir()
    for scheduled, names in (
        ((2, 4), {"last-1", "checkpoint-2", "checkpoint-4"}),
        ((1,), {"checkpoint-1", "last-2", "last-4"}),
    ):
        checkpoints.follow_schedule(tmp_path, scheduled.__contains__)
        assert {path.name for path in tmp_path.iterdir()} == names


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {"flipped": flip, "empty": lambda path: path.write_bytes(b""), "missing": Path.unlink}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "progress.json", "SHA256SUMS"])
def test_a_damaged_checkpoint_is_put_aside(tmp_path, trained, tokenizer, damage, name):
    folder = tmp_path / "last-4"
    for path in (tmp_path / "checkpoint-2", folder):
        checkpoints.save_checkpoint(path, *trained, tokenizer, checkpoints.Progress())
    DAMAGES[damage](folder / name)
    for aside in ("last-4.damaged", "last-4.damaged1"):  # the second time after a run has written it again
        (line,) = checkpoints.put_aside_damaged(tmp_path)
        assert str(folder / (name if name != "SHA256SUMS" or damage == "missing" else "")) in line
        assert line.endswith(f"; last-4 is put aside as {aside}")
        assert checkpoints.newest_checkpoint(tmp_path).name == "checkpoint-2"
        checkpoints.save_checkpoint(folder, *trained, tokenizer, checkpoints.Progress())
        assert checkpoints.put_aside_damaged(tmp_path) == []
        DAMAGES[damage](folder / name)
