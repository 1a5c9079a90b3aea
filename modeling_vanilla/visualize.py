"""Attention as pictures, as in the paper's appendix."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display is needed, or assumed
import torch
from matplotlib import pyplot as plt
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .alignment import eager_attention


def cross_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, target: str
) -> tuple[torch.Tensor, list[str], list[str]]:
    """How each target token, as it is produced, attends to the source.

    Returns:
        Weights (layers, H, T, S), and the pieces of text that the T target and the S source tokens stand for.
    """
    batch = tokenizer(source, text_target=target, return_tensors="pt").to(model.device)
    with eager_attention([model]), torch.inference_mode():
        outputs = model.eval()(**batch, output_attentions=True)
    weights = torch.cat(outputs.cross_attentions).float().cpu()
    return weights, _pieces(tokenizer, batch["labels"][0]), _pieces(tokenizer, batch["input_ids"][0])


def plot_attention(weights: torch.Tensor, rows: Sequence[str], columns: Sequence[str], path: Path, title: str) -> None:
    """Draw weights (rows, columns) as a heat map with its tokens, to a PNG file."""
    size = (2 + 0.4 * len(columns), 2 + 0.4 * len(rows))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    axes.imshow(weights, cmap="Blues", vmin=0)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_title(title)
    part = path.with_name(path.stem + ".part.png")
    figure.savefig(part, dpi=120)
    plt.close(figure)
    part.replace(path)


def _pieces(tokenizer: PreTrainedTokenizerBase, ids: torch.Tensor) -> list[str]:
    return [tokenizer.decode([token]) or token for token in ids.tolist()]
