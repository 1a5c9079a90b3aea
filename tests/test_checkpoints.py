"""Checkpoints: whole or not at all, without pickle, averaged as section 6.1 has it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.numpy import load_file, save_file

from modeling_vanilla.training import checkpoints
from modeling_vanilla.training.checkpoints import (
    average_checkpoints,
    list_checkpoints,
    load_optimizer,
    load_progress,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    write_json,
)
from modeling_vanilla.training.optimization import adam
from modeling_vanilla.training.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["a dog sees a cat"] * 3, vocab_size=264)


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


def weights_of(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def test_a_checkpoint_has_all_there_is_to_resume_and_no_pickle(tmp_path, trained, tokenizer):
    progress = {"step": 2, "epoch": 0, "losses": [2.5, 2.25]}
    folder = save_checkpoint(tmp_path, *trained, tokenizer, progress)
    assert folder == tmp_path / "checkpoint-2"
    assert load_progress(folder) == progress
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert {"model.safetensors", "optimizer.safetensors", "progress.json", "tokenizer.json"} <= names
    assert {Path(name).suffix for name in names} <= {".safetensors", ".json", ".py"}
    for path in folder.rglob("*"):
        if path.suffix == ".safetensors":
            assert load_file(path)  # a pickle would not parse
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_weights_and_moments_survive(tmp_path, trained, tokenizer, make_model):
    """One more step from the checkpoint is one more step of the run, to the bit."""
    accelerator, model, optimizer = trained
    folder = save_checkpoint(tmp_path, accelerator, model, optimizer, tokenizer, {"step": 2})
    take_step(model, optimizer)

    other = type(model).from_pretrained(folder).train()
    other, other_optimizer = accelerator.prepare(other, adam(other))
    load_optimizer(folder, other, other_optimizer)
    take_step(other, other_optimizer)

    expected = weights_of(model)
    assert weights_of(other).keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in weights_of(other).items())

    # Without the moments it would be another step.
    without = type(model).from_pretrained(folder).train()
    take_step(without, adam(without))
    assert any(not torch.equal(value, expected[name]) for name, value in weights_of(without).items())


@pytest.mark.parametrize("writer", ["save_model", "save_file", "write_json"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, trained, tokenizer, monkeypatch, writer):
    run = tmp_path / "run"
    save_checkpoint(run, *trained, tokenizer, {"step": 1})
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    def full(*arguments, **keywords):
        if writer == "write_json":
            arguments[0].write_text("{", encoding="utf-8")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, writer, full)
    for step in (2, 1):  # a new one, and one that would replace the old
        with pytest.raises(OSError, match=rf"checkpoint-{step}: cannot be written.*No space left"):
            save_checkpoint(run, *trained, tokenizer, {"step": step})
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
        assert [path.name for path in run.iterdir()] == ["checkpoint-1"]


def test_what_a_killed_process_left_is_never_taken_for_a_checkpoint(tmp_path, trained, tokenizer):
    (tmp_path / "checkpoint-2.part").mkdir()
    (tmp_path / "checkpoint-2.part" / "stale.json").write_text("{", encoding="utf-8")
    assert list_checkpoints(tmp_path) == []
    folder = save_checkpoint(tmp_path, *trained, tokenizer, {"step": 2})
    assert list_checkpoints(tmp_path) == [folder]
    assert not (folder / "stale.json").exists()
    assert not (tmp_path / "checkpoint-2.part").exists()


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
        # What killed processes left of checkpoints; a run never comes to write one of just that name again.
        (1, "checkpoint-2 checkpoint-3.part last-4.part model.part notes.part", "checkpoint-2 model.part notes.part"),
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


# Averages


def checkpoint(path, **weights):
    path.mkdir()
    save_file(
        {name: np.asarray(value, dtype=np.float32) for name, value in weights.items()}, path / "model.safetensors"
    )
    return path


def test_the_average_is_the_mean_of_every_weight(tmp_path):
    rng = np.random.default_rng(0)
    values = [{"a": rng.normal(size=(3, 4)), "b": rng.normal(size=5)} for _ in range(5)]
    folders = [checkpoint(tmp_path / str(index), **value) for index, value in enumerate(values)]
    mean = average_checkpoints(folders)
    assert mean.keys() == {"a", "b"}
    for name, value in mean.items():
        assert value.dtype == torch.float32
        expected = np.mean([weights[name].astype(np.float32) for weights in values], axis=0, dtype=np.float64)
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-7)
    backwards = average_checkpoints(folders[::-1])
    assert all(torch.equal(mean[name], backwards[name]) for name in mean)


def test_average_refuses_what_it_cannot_average(tmp_path):
    first = checkpoint(tmp_path / "first", a=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"^no checkpoints to average$"):
        average_checkpoints([])
    for name, weights in {
        "shape": {"a": [1.0]},
        "name": {"b": [1.0, 2.0]},
        "more": {"a": [1.0, 2.0], "b": [1.0]},
    }.items():
        other = checkpoint(tmp_path / name, **weights)
        with pytest.raises(ValueError, match=rf"^{other}: .*other names or shapes than those of {first}$"):
            average_checkpoints([first, other])
    (tmp_path / "empty").mkdir()
    broken = checkpoint(tmp_path / "broken", a=[1.0, 2.0]) / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-3])
    for folder, message in (("empty", "empty: .*no model.safetensors$"), ("broken", f"{broken}: cannot be read")):
        with pytest.raises(ValueError, match=message):
            average_checkpoints([first, tmp_path / folder])


def test_json_is_never_half_written(tmp_path):
    path = tmp_path / "value.json"
    write_json(path, {"text": "Grüße"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"text": "Grüße"}
    with pytest.raises(TypeError):
        write_json(path, {"text": object()})
    assert json.loads(path.read_text(encoding="utf-8")) == {"text": "Grüße"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]
