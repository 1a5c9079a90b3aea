"""The average of checkpoints (6.1) as a model folder."""

from collections.abc import Sequence
from pathlib import Path

from ..files import check_unused, whole_folder
from ..inference.loading import load_tokenizer, load_translator
from .checkpoints import average_checkpoints, list_checkpoints, save_model


def last_checkpoints(run: Path, count: int) -> list[Path]:
    """The last `count` checkpoints of a run, oldest first; all if it has fewer.

    Raises:
        ValueError: if `count` is below 1, or the run has none.
    """
    if count < 1:
        raise ValueError(f"last must be at least 1, not {count}")
    found = list_checkpoints(run)
    if not found:
        raise ValueError(f"{run}: has no checkpoints")
    return found[-count:]


def write_average(checkpoints: Sequence[Path], destination: Path) -> None:
    """Write the mean of the checkpoints' weights to `destination`, with all else of the last one.

    Raises:
        ValueError: if `destination` holds something, a checkpoint cannot be read, or their weights or vocabularies
            differ.
        OSError: if `destination` cannot be written.
    """
    check_unused("destination", destination)
    weights = average_checkpoints(checkpoints)
    _check_vocabularies(checkpoints)
    model, tokenizer = load_translator(checkpoints[-1:], "cpu", next(iter(weights.values())).dtype)
    with whole_folder(destination) as part:
        save_model(model, tokenizer, part, weights)


def _check_vocabularies(checkpoints: Sequence[Path]) -> None:
    first = load_tokenizer(checkpoints[0]).get_vocab()
    for checkpoint in checkpoints[1:]:
        if load_tokenizer(checkpoint).get_vocab() != first:
            raise ValueError(f"{checkpoint}: its vocabulary is another than that of {checkpoints[0]}")
