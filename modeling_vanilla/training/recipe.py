"""A recipe for a corpus: the model, the vocabulary, the updates and the learning rate to begin with.

The paper has one recipe, for millions of pairs and eight GPUs. For less there is that of Wu et al. (2021) for Multi30k,
and the base model with more dropout, as is customary for IWSLT.
"""

import math
import os

import pyarrow.compute as pc
import torch
from accelerate import PartialState
from datasets import Dataset, DatasetDict

from .options import DataOptions

_SMALL = 10_000_000  # characters of both languages: some 80 thousand pairs of short sentences
_LARGE = 200_000_000  # some 800 thousand pairs
_TINY = {"preset": "tiny", "tokens_per_update": 8192, "warmup_steps": 2000, "learning_rate_scale": 2.53}
_BASE = {"preset": "base", "tokens_per_update": 25_000, "warmup_steps": 4000, "learning_rate_scale": 1.0}

CHOSEN = {"preset", "dropout", "vocab_size", "max_steps", "tokens_per_update", "tokens_per_batch", "warmup_steps"}
CHOSEN |= {"learning_rate_scale", "early_stopping", "mixed_precision"}


def choose_recipe(pairs: DatasetDict, given: dict | None = None) -> tuple[dict, str]:
    """Choose what to train on these pairs, and how, with the devices of this process group.

    Args:
        pairs: "train", and "validation" if there are any, as load_pairs returns them.
        given: options that are decided; the others are made to fit them.

    Returns:
        The other options of CHOSEN, fields of TranslationOptions, VanillaConfig and TrainingOptions; and the reason, in
        a line.
    """
    state, given = PartialState(), given or {}
    has_gpu = state.device.type != "cpu"
    characters = _characters(pairs["train"])
    usual, reason = _by_size(characters, has_gpu)
    longest = max(given.get(name, getattr(DataOptions, name)) for name in ("max_source_tokens", "max_target_tokens"))
    # A token has some four characters, so that no update sees more than a tenth of the corpus.
    recipe = {**usual, "tokens_per_update": min(usual["tokens_per_update"], max(longest, characters // 100))}
    if "tokenizer" not in given:
        recipe["vocab_size"] = _vocabulary_size(characters)
    recipe |= given
    # A little more than a process's share, or a small batch is left over in each update.
    share = recipe["tokens_per_update"] * 6 // (5 * state.num_processes)
    recipe["tokens_per_batch"] = max(longest, min(share, 8192 if has_gpu else 4096))
    if "warmup_steps" not in given:
        recipe["warmup_steps"] = min(usual["warmup_steps"], max(1, recipe["max_steps"] // 4))
    # A peak that is high and early leaves a post-LN model where it never learns to read the source: with a shorter
    # warm-up it falls with the root of the warm-up, as the examples' toy corpora need it.
    shorter = min(1, recipe["warmup_steps"] / usual["warmup_steps"])
    recipe["learning_rate_scale"] = round(usual["learning_rate_scale"] * shorter, 4)
    if "validation" in pairs:
        recipe["early_stopping"] = 5
    if _has_fast_bf16(state.device) and "ACCELERATE_MIXED_PRECISION" not in os.environ:
        recipe["mixed_precision"] = "bf16"
    facts = (
        f"{len(pairs['train'])} pairs, {characters} characters, {state.device.type}, processes: {state.num_processes}"
    )
    return {name: value for name, value in recipe.items() if name not in given}, f"{facts}: {reason}"


def _characters(pairs: Dataset) -> int:
    """Of both sides; unlike words, every language has them."""
    return sum(pc.sum(pc.utf8_length(pairs.data.column(side))).as_py() for side in ("source", "target"))


def _vocabulary_size(characters: int) -> int:
    """10000 for Multi30k, as Wu et al. and RESULTS.md have it, some more for IWSLT, the paper's 37000 (5.1) for WMT."""
    root = math.sqrt(characters)
    return round(max(300, min(5 * root, 10_000), min(2 * root, 37_000)))


def _by_size(characters: int, has_gpu: bool) -> tuple[dict, str]:
    """The model and its training, and why they are these."""
    if characters < _SMALL:
        return {**_TINY, "dropout": 0.3, "max_steps": 8000}, "a larger model, or one with less dropout, would overfit"
    if not has_gpu:
        return {**_TINY, "dropout": 0.1, "max_steps": 20_000}, "without a GPU a larger model would take weeks"
    if characters < _LARGE:
        return {**_BASE, "dropout": 0.3, "max_steps": 50_000}, "with less dropout the model would overfit"
    return {**_BASE, "max_steps": 100_000}, "as in the paper"


def _has_fast_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch do not tell
    return device.type == "cpu" and any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))
