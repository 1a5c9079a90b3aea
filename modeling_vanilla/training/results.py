"""The report of a run: its figures, its curves, a summary, and the floating point operations that it took."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

import torch
from accelerate import PartialState

from ..corpus.tokenized import TokenizedPairs
from ..visualization.curves import plot_run
from .train import TrainingState

_MAIN_FIGURES = ["bleu", "chrf", "test_sentences", "steps", "train_seconds", "tokens_per_second", "mfu", "parameters"]
_MAIN_FIGURES += ["corrections", "come_out"]
_LIBRARIES = ("torch", "transformers", "accelerate", "tokenizers", "sacrebleu")


def training_results(state: TrainingState, corpus: TokenizedPairs, peak: float | None) -> dict:
    """The figures of the training itself.

    Args:
        peak: FLOP/s of large products on one device, if it was measured.

    Returns:
        Among others "flops", which the tokens of the updates took; and "mfu" (model FLOPs utilisation), the share of
        that peak which the updates reached, None without it.
    """
    progress, model = state.progress, state.own_model
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
        "training_pairs": corpus.new,
        "replay_pairs": len(corpus.rows) - corpus.new,
        "precision": state.accelerator.mixed_precision,
        "device": str(model.device),
        "processes": processes,
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in _LIBRARIES},
    }


def model_flops(config, source, target):
    """FLOPs of one forward and one backward pass over each of some sentence pairs, by formula.

    Each multiply-add of a matrix product is two FLOPs, and the backward pass has two products (the gradients of either
    factor) for the forward pass's one. Counted are, at the real tokens alone, without padding: every projection, Q K^T
    and the product of its weights with V, both products of each feed-forward network, and the output projection.
    Causal attention counts in full, T x T, as Eq. 1 computes it, and so does attention within a window, whose mask
    saves nothing. Not counted are embedding look-ups, positions, biases, softmax, dropout, normalisation, residuals,
    the loss and the optimizer: a small share, which grows as the model narrows.

    Args:
        config: VanillaConfig.
        source, target: the tokens of the pairs' sides, of which </s> is one; each a number, an array or a tensor.
    """

    def attention(num_heads: int, queries, keys):
        """Multiply-adds of multi-head attention (3.2.2).

        W^Q and W^O work on the queries, d_k and d_v wide; W^K and W^V on the keys, as wide; the score of a key takes
        d_k multiply-adds, its value d_v. Hence d_k + d_v is a factor of all.
        """
        products = config.d_model * (queries + keys) + queries * keys
        return num_heads * sum(config.head_dims(num_heads)) * products

    encoder_layer = attention(config.encoder_attention_heads, source, source)
    encoder_layer += 2 * config.d_model * config.encoder_ffn_dim * source  # W_1 and W_2 (3.3)
    decoder_layer = attention(config.decoder_attention_heads, target, target)
    decoder_layer += attention(config.decoder_attention_heads, target, source)
    decoder_layer += 2 * config.d_model * config.decoder_ffn_dim * target
    output_projection = target * config.d_model * config.vocab_size
    forward = 2 * (config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer + output_projection)
    return 3 * forward


def plot(state: TrainingState) -> None:
    """Draw loss.png."""
    progress = state.progress
    plot_run(progress.losses, progress.rates, progress.validations, state.run / "loss.png")


def summary(results: dict, run: str | Path) -> str:
    """The main figures of a run as JSON, with the paths of its model, if there is one, and its results."""
    figures = {name: results[name] for name in _MAIN_FIGURES if results.get(name) is not None}
    if results["validation"] is not None:
        figures["validation_bleu"] = results["validation"]["bleu"]
        for name, change in results["validation"].get("changes", {}).items():
            for metric, was in change.items():
                figures |= {f"{name}_{metric}_before": was["before"], f"{name}_{metric}": was["after"]}
    shown = {name: round(value, 2) for name, value in figures.items()}
    paths = {"model": str(Path(run) / "model")} if results.get("passed", True) else {}
    paths["results"] = str(Path(run) / "results.json")
    return json.dumps({**shown, **paths}, indent=1, ensure_ascii=False)
