"""The average of checkpoints (6.1) as a model folder."""

from collections.abc import Sequence
from pathlib import Path

from ..files import check_unused, whole_folder
from ..inference.loading import load_tokenizer, load_translator
from .checkpoints import average_checkpoints, save_model


def write_average(checkpoints: Sequence[Path], destination: Path) -> None:
    """Write the mean of the checkpoints' weights to `destination`, with all else of the last one.

    Raises:
        ValueError: if `destination` holds something, a checkpoint cannot be read, or their weights or vocabularies
            differ.
        OSError: if `destination` cannot be written.
    """
    check_unused("destination", destination)
    weights = average_checkpoints(checkpoints)
    first = load_tokenizer(checkpoints[0]).get_vocab()
    for checkpoint in checkpoints[1:]:
        if load_tokenizer(checkpoint).get_vocab() != first:
            raise ValueError(f"{checkpoint}: its vocabulary is another than that of {checkpoints[0]}")
    model, tokenizer = load_translator(checkpoints[-1:], "cpu", "auto")
    model.load_state_dict(weights)
    with whole_folder(destination) as part:
        save_model(model, tokenizer, part)
