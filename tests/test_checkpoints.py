"""Checkpoints: without pickle, those that are kept, and one that is damaged."""

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from helpers import tensors, tree

from modeling_vanilla.training import TrainingOptions, checkpoints, train


@pytest.fixture
def state(make_model, tokenizer, tmp_path):
    """A training after a step."""
    accelerator = Accelerator(cpu=True)
    model = make_model(vocab_size=len(tokenizer)).train()
    model, optimizer = accelerator.prepare(model, train.adam(model))
    model(input_ids=torch.tensor([[5, 6, 2]]), labels=torch.tensor([[7, 8, 2]])).loss.backward()
    optimizer.step()
    schedule = {"max_steps": 30, "checkpoint_steps": 10, "keep_checkpoints": 1, "average_checkpoints": 1}
    options = TrainingOptions(str(tmp_path), **schedule)
    return train.TrainingState(accelerator, model, optimizer, tokenizer, options, checkpoints.Progress())


def save(state, step):
    state.progress.step = step
    train.save(state)


def test_a_checkpoint_has_all_there_is_to_resume_and_no_pickle(tmp_path, state):
    state.progress.losses = [2.5, 2.25]
    save(state, 2)
    folder = tmp_path / "checkpoint-2"
    assert [*tmp_path.iterdir()] == [folder]
    assert checkpoints.read_progress(folder) == state.progress
    names = {*tree(folder)}
    assert {"model.safetensors", "optimizer.safetensors", "progress.json", "tokenizer.json"} <= names
    assert {Path(name).suffix for name in names} == {".safetensors", ".json", ".py"}
    assert all(tensors(folder).values())  # a pickle would not parse


def test_the_last_of_the_schedule_and_the_newest_are_kept(tmp_path, state):
    """Of the schedule is every tenth."""
    left = []
    for step in (8, 10, 12, 13, 20):
        save(state, step)
        left.append([checkpoints.checkpoint_step(path) for path in checkpoints.list_checkpoints(tmp_path)])
    assert left == [[8], [10], [10, 12], [10, 13], [20]]


@pytest.mark.parametrize("name", ["model.safetensors", "progress.json"])
def test_a_damaged_checkpoint_is_named_with_what_to_do(tmp_path, state, name):
    """A bit of its last byte has flipped."""
    for step in (10, 12):
        save(state, step)
    folder = tmp_path / "checkpoint-12"
    *others, last = (folder / name).read_bytes()
    (folder / name).write_bytes(bytes([*others, last ^ 1]))
    advice = "delete or move it to go on from the one before"
    with pytest.raises(ValueError, match=rf"^resume: {folder} cannot be read: .+; {advice}$"):
        checkpoints.newest_checkpoint(tmp_path)
    folder.rename(tmp_path / "aside")
    assert checkpoints.newest_checkpoint(tmp_path).name == "checkpoint-10"
