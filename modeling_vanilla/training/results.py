"""The report of a run: its figures, its curves, and a summary."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import PreTrainedModel

from ..corpus.tokenized import TokenizedPairs
from ..visualization.curves import plot_run
from .flops import model_flops
from .train import TrainingState

_MAIN_FIGURES = ["bleu", "chrf", "test_sentences", "steps", "train_seconds", "tokens_per_second", "mfu", "parameters"]
_LIBRARIES = ("torch", "transformers", "accelerate", "tokenizers", "sacrebleu")


def training_results(state: TrainingState, model: PreTrainedModel, corpus: TokenizedPairs, peak: float | None) -> dict:
    """The figures of the training itself.

    Args:
        model: the average of the checkpoints.
        peak: FLOP/s of large products on one device, if it was measured.

    Returns:
        Among others "flops", which the tokens of the updates took; and "mfu" (model FLOPs utilisation), the share of
        that peak which the updates reached, None without it.
    """
    progress = state.progress
    source, target = corpus.lengths
    flops = float(model_flops(model.config, source, target).mean() / (source + target).mean() * progress.tokens)
    processes, seconds = PartialState().num_processes, round(progress.seconds, 3)
    return {
        "test_sentences": 0,
        "validation": None,
        "steps": progress.step,
        "train_seconds": seconds,
        "tokens": progress.tokens,
        "tokens_per_second": round(progress.tokens / seconds, 1),
        "flops": flops,
        "mfu": None if peak is None else round(flops / seconds / processes / peak, 6),
        "padding_share": round(1 - progress.tokens / progress.positions, 4),
        "parameters": model.num_parameters(),
        "vocabulary": len(state.tokenizer),
        "training_pairs": len(corpus.rows),
        "precision": state.accelerator.mixed_precision,
        "device": str(model.device),
        "processes": processes,
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in _LIBRARIES},
    }


def plot(state: TrainingState) -> None:
    """Draw loss.png."""
    progress = state.progress
    plot_run(progress.losses, progress.rates, progress.validations, state.run / "loss.png")


def summary(results: dict, run: str | Path) -> str:
    """The main figures of a run as JSON, with the paths of its model and its results."""
    figures = {name: results[name] for name in _MAIN_FIGURES if results.get(name) is not None}
    if results["validation"] is not None:
        figures["validation_bleu"] = results["validation"]["bleu"]
    shown = {name: round(value, 2) for name, value in figures.items()}
    paths = {"model": str(Path(run) / "model"), "results": str(Path(run) / "results.json")}
    return json.dumps({**shown, **paths}, indent=1, ensure_ascii=False)
