"""What there is to report of a run: its figures, its scores on the test set, its curves."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import cast

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..configuration_vanilla import VanillaConfig
from ..files import write_json
from ..visualization.curves import plot_run
from .checkpoints import Progress
from .cost import measured_rate, training_cost
from .metrics import translation_scores
from .optimization import learning_rate
from .options import TrainingOptions
from .preprocessing import pair_lengths
from .validation import autocast, translate_together

_MAIN_FIGURES = ("bleu", "chrf", "test_sentences", "steps", "train_seconds", "tokens_per_second", "parameters")
_LIBRARIES = ("torch", "transformers", "accelerate", "tokenizers", "sacrebleu")


def summary(results: dict, run: str | Path) -> str:
    """The main figures of a run as JSON, and where the others and the model are."""
    figures = {name: results[name] for name in _MAIN_FIGURES if name in results}
    if results["validation"] is not None:
        figures["validation_bleu"] = results["validation"]["bleu"]
    shown = {name: round(value, 2) for name, value in figures.items()}
    paths = {"model": str(Path(run) / "model"), "results": str(Path(run) / "results.json")}
    return json.dumps({**shown, **paths}, indent=1, ensure_ascii=False)


def score_test(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, test: Dataset, tokens_per_batch: int, bleu_tokenize: str
) -> dict:
    """Scores on the test data, which nothing else reads. Every process must call this."""
    with autocast(model.device):
        translations = translate_together(model, tokenizer, test["source"][:], tokens_per_batch, show_progress=True)
    scores = translation_scores(translations, test["target"][:], bleu_tokenize)
    return {**scores, "test_sentences": len(test)}


def training_results(
    model: PreTrainedModel, training_data: Dataset, training: TrainingOptions, progress: Progress
) -> dict:
    """What there is to report of the training itself."""
    return {
        "steps": progress.step,
        "train_seconds": round(progress.seconds, 1),
        "tokens": progress.tokens,
        "tokens_per_second": round(progress.tokens / progress.seconds, 1),
        "padding_share": round(1 - progress.tokens / progress.positions, 4),
        "averaged_checkpoints": progress.averaged,
        "cost": _cost(model, training_data, training, progress),
        "parameters": model.num_parameters(),
        "training_pairs": len(training_data),
        "device": str(model.device),
        "processes": PartialState().num_processes,
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in _LIBRARIES},
    }


def _cost(model: PreTrainedModel, training_data: Dataset, training: TrainingOptions, progress: Progress) -> dict:
    # Accelerate's precision, not the option: accelerate launch may have set it.
    precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(AcceleratorState().mixed_precision, torch.float32)
    rate = (training.sustained_tflops or 0) * 1e12 or measured_rate(model.device, precision)
    devices = PartialState().num_processes
    lengths = pair_lengths(training_data)
    return training_cost(cast(VanillaConfig, model.config), *lengths, progress.tokens, progress.seconds, devices, rate)


def write_results(run: Path, d_model: int, results: dict, progress: Progress, training: TrainingOptions) -> None:
    """Write results.json and loss.png."""
    write_json(run / "results.json", results)
    scale, steps = training.rate_scale(d_model), range(1, progress.step + 1)
    rates = [learning_rate(step, d_model, training.warmup_steps, scale) for step in steps]
    plot_run(progress.losses, rates, progress.validations, run / "loss.png")
