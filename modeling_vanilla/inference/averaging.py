"""Section 6.1: the average of checkpoints, the last 5 of the base model, the last 20 of the big one."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..files import check_unused, whole_folder
from ..loading import load_model, load_tokenizer, save_model


def average_checkpoints(checkpoints: Sequence[Path]) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model whose weights are the mean of the checkpoints', with all else of the last one.

    Raises:
        ValueError: a checkpoint cannot be read, or their weights or vocabularies differ; the message names it.
    """
    vocabulary = load_tokenizer(checkpoints[0]).get_vocab()
    total: dict[str, torch.Tensor] = {}
    for checkpoint in checkpoints:
        model, tokenizer = load_model(checkpoint, "auto"), load_tokenizer(checkpoint)
        weights = model.state_dict()
        if tokenizer.get_vocab() != vocabulary:
            raise ValueError(f"{checkpoint}: its vocabulary is another than that of {checkpoints[0]}")
        shapes, others = ({name: value.shape for name, value in each.items()} for each in (weights, total or weights))
        if shapes != others:
            raise ValueError(f"{checkpoint}: its weights are of other shapes than those of {checkpoints[0]}")
        # In 64 bits, so that the order of the checkpoints cannot change the mean.
        total = {name: value.double() + total.get(name, 0) for name, value in weights.items()}
    model.load_state_dict({name: value / len(checkpoints) for name, value in total.items()})
    return model, tokenizer


def write_average(checkpoints: Sequence[Path], destination: Path) -> None:
    """Write the average of checkpoints as a model folder.

    Raises:
        ValueError: `destination` holds something, or as average_checkpoints does.
        OSError: `destination` cannot be written.
    """
    check_unused("destination", destination)
    model, tokenizer = average_checkpoints(checkpoints)
    with whole_folder(destination) as part:
        save_model(model, tokenizer, part)
