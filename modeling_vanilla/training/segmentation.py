"""BPE-dropout (Provilkov et al. 2020): every epoch reads the training text in another segmentation."""

import copy
import re
import shutil
from pathlib import Path

import datasets
from datasets import Dataset
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase

from ..io import whole_folder
from .data import TOKENIZED_PAIR, encode_pairs, pair_lengths

_NAME = re.compile(r"segmentation-(\d+)")


def check_bpe_dropout(tokenizer: PreTrainedTokenizerBase, bpe_dropout: float) -> None:
    """Raise ValueError if there are no merges to drop."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if bpe_dropout and not isinstance(model, BPE):
        raise ValueError(f"bpe_dropout {bpe_dropout} needs a BPE vocabulary, not {type(model).__name__}")


def draw_segmentation(
    data: Dataset, tokenizer: PreTrainedTokenizerBase, bpe_dropout: float, run: Path, epoch: int
) -> Dataset:
    """The training data as epoch `epoch` reads them: each merge left out with probability `bpe_dropout`.

    The draw is kept in run/segmentation-EPOCH and read from there if it is there already, so that all processes read
    the same, and a resumed run what the interrupted one read (the tokenizers library draws without a seed).

    Args:
        data: "source", "target", "input_ids" and "labels", as tokenize_training_pairs gives them. A side that has more
            tokens than the longest of them after the draw keeps its undropped ids.

    Raises:
        OSError: if the draw cannot be written.
    """
    folder = run / f"segmentation-{epoch}"
    if not folder.exists():
        dropping = copy.deepcopy(tokenizer)
        dropping.backend_tokenizer.model.dropout = bpe_dropout
        limits = [int(lengths.max(initial=0)) for lengths in pair_lengths(data)]
        shown = datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()  # it would tear the bar of the training apart
        try:
            with whole_folder(folder) as part:
                data.map(
                    _draw,
                    batched=True,
                    fn_kwargs={"tokenizer": dropping, "limits": limits},
                    remove_columns=data.column_names,
                    features=TOKENIZED_PAIR,
                    cache_file_name=str(part / "data.arrow"),
                    load_from_cache_file=False,
                )
        finally:
            if not shown:
                datasets.enable_progress_bars()
    return Dataset.from_file(str(folder / "data.arrow"))


def prune_segmentations(run: Path, epoch: int) -> None:
    """Delete those of epochs before `epoch`, which no checkpoint goes on from any more."""
    for folder in run.glob("segmentation-*"):
        match = _NAME.fullmatch(folder.name)
        if match and int(match.group(1)) < epoch:
            shutil.rmtree(folder)


def _draw(rows: dict, tokenizer: PreTrainedTokenizerBase, limits: list[int]) -> dict[str, list[list[int]]]:
    drawn = encode_pairs(rows, tokenizer)
    return {
        column: [new if len(new) <= limit else old for new, old in zip(drawn[column], rows[column], strict=True)]
        for column, limit in zip(TOKENIZED_PAIR, limits, strict=True)
    }
