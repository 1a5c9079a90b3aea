"""The values of options that are not given: the paper's if there is a preset, else chosen by corpus and machine.

The paper has one recipe, for millions of pairs and eight GPUs. A small corpus gets that of Wu et al. (2021) for
Multi30k, a larger one the base model with more dropout, as is customary for IWSLT. A saved model is fine-tuned.
"""

import math
import os
import timeit
from dataclasses import replace

import pyarrow.compute as pc
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from datasets import Dataset, DatasetDict

from ..configuration_vanilla import PRESETS
from .cpu_memory import bound_kernel_caches
from .options import DataOptions, TrainingOptions, TranslationOptions

# The base model's, on eight devices (5.1 to 5.3, 6.1). A checkpoint is written every 10 minutes, of updates of 0.4 s.
# The paper is silent: the updates between validations.
PAPER = {
    "max_steps": 100_000,
    "tokens_per_update": 25_000,
    "tokens_per_batch": 3125,
    "warmup_steps": 4000,
    "learning_rate_scale": 1.0,
    "validate_steps": 1000,
    "checkpoint_steps": 1500,
    "average_checkpoints": 5,
}
# In what others differ: the big model, whose updates take a second (5.2, 6.1), and the rows of Table 3 (6.2).
PAPER_ROWS = {"big": {"max_steps": 300_000, "checkpoint_steps": 600, "average_checkpoints": 20}}
PAPER_ROWS |= {row: {"average_checkpoints": 1} for row in PRESETS if row[1] == "-"}
PAPER_SEARCH = {"parsing": {"num_beams": 21, "length_penalty": 0.3, "max_extra_tokens": 300}}  # 6.3
_SMALL = 10_000_000  # characters of both languages: some 80 thousand pairs of short sentences
_LARGE = 200_000_000  # some 800 thousand pairs
_TINY = {"preset": "tiny", "tokens_per_update": 8192, "warmup_steps": 2000, "learning_rate_scale": 2.53}
_BASE = {"preset": "base", "tokens_per_update": 25_000, "warmup_steps": 4000, "learning_rate_scale": 1.0}
_CHARACTERS = 4  # of a token, about
_FINE_TUNING = {"tokens_per_update": 4096, "learning_rate": 5e-5}  # the peak is that of transformers' Trainer
_EPOCHS, _VALIDATIONS = 5, 10  # of a fine-tuning
_MOST_EPOCHS = 200  # of a training from scratch on few pairs: Multi30k has 130 in its 8000 updates

_RATES = {"learning_rate", "learning_rate_scale"}  # one of them that is given decides both
_SIDES = ("source", "target")
_OF_MODEL = {"dropout", "vocab_size"}
_OF_TRAINING = {*PAPER, *_RATES, "early_stopping", "mixed_precision"}


def choose_settings(
    pairs: DatasetDict,
    data: DataOptions,
    training: TrainingOptions,
    options: TranslationOptions,
    overrides: dict,
    previous: dict | None = None,
) -> tuple[TrainingOptions, TranslationOptions, dict, str]:
    """Fill in every option of training and model that is not given.

    Args:
        previous: the record in run.json of a run that is resumed; its values are taken.

    Returns:
        The options, the overrides, and a text that says which recipe was chosen, and why.
    """
    chosen, reason = {}, ""
    if previous is not None:
        chosen = previous["training"] | previous["model"]
    elif options.preset is None:
        given = {name: value for part in (data, training, options) for name, value in vars(part).items()} | overrides
        chosen, reason = choose_recipe(pairs, {name: value for name, value in given.items() if value is not None})
        reason += f"\nrecipe: {' '.join(f'--{name} {value}' for name, value in chosen.items())}"
    if options.preset is None and options.model is None:
        options = replace(options, preset=chosen["preset"])
        overrides = {name: chosen[name] for name in _OF_MODEL & chosen.keys()} | overrides
    return complete(training, chosen, options.preset), options, overrides, reason


def complete(training: TrainingOptions, chosen: dict | None = None, preset: str | None = None) -> TrainingOptions:
    """Fill in the options of training that are not given, by the chosen values or else the paper's for the preset."""
    chosen, paper = chosen or {}, PAPER | PAPER_ROWS.get(preset or "base", {})
    given = {name for name, value in vars(training).items() if value is not None}
    given |= _RATES if given & _RATES else set()
    # An update holds at least one batch.
    batch = min(paper["tokens_per_batch"], training.tokens_per_update or math.inf)
    values: dict = {**paper, "tokens_per_batch": batch} | (dict.fromkeys(_RATES) if chosen.keys() & _RATES else {})
    values |= {name: chosen[name] for name in _OF_TRAINING & chosen.keys()}
    # In updates, as by the clock no two runs would average the same. As great a share of the run as in the paper, so
    # that the checkpoints of a short one are as close to its end, but at least 10, as writing takes time.
    interval = paper["checkpoint_steps"] / paper["max_steps"] * (training.max_steps or values["max_steps"])
    values["checkpoint_steps"] = max(10, round(interval))
    return replace(training, **{name: value for name, value in values.items() if name not in given})


def choose_recipe(pairs: DatasetDict, given: dict) -> tuple[dict, str]:
    """Choose what to train on these pairs, and how, on the devices of this process group.

    Args:
        pairs: "train", and "validation" if there are any, as load_pairs returns them.
        given: options that are decided; the others are made to fit them. With "model" that one is fine-tuned.

    Returns:
        The other options, fields of TranslationOptions, VanillaConfig and TrainingOptions; and the reason, in a line.
    """
    state = PartialState()
    has_gpu = state.device.type != "cpu"
    characters = _characters(pairs["train"])
    most = max(given.get(name, getattr(DataOptions, name)) for name in ("max_source_length", "max_target_length"))
    # The bytes of the longest side bound its tokens but for two: the vocabulary has a token for every byte.
    longest = min(most, 2 + max(pc.max(pc.binary_length(pairs["train"].data[side])).as_py() for side in _SIDES))
    usual, reason = _usual(given.get("model"), characters, has_gpu)
    # An update takes about a tenth of the corpus at most.
    recipe = {**usual, "tokens_per_update": min(usual["tokens_per_update"], max(longest, characters // 100))}
    if not {"model", "tokenizer"} & given.keys():
        recipe["vocab_size"] = _vocabulary_size(characters)
    if "validation" in pairs:
        recipe["early_stopping"] = 5
    # A precision that accelerate was told, or that the caller's own Accelerator has set, stays.
    is_decided = "ACCELERATE_MIXED_PRECISION" in os.environ or AcceleratorState._shared_state
    if not is_decided and _has_fast_bf16(state.device):
        recipe["mixed_precision"] = "bf16"
    recipe |= given
    # A little more than a process's share; without the surplus, each update would have a small batch left over.
    share = recipe["tokens_per_update"] * 6 // (5 * state.num_processes)
    recipe["tokens_per_batch"] = max(longest, min(share, 8192 if has_gpu else 4096))
    epoch = characters / 2 / _CHARACTERS / recipe["tokens_per_update"]  # updates in which each pair is seen once
    if "model" in given:
        steps = recipe.setdefault("max_steps", math.ceil(_EPOCHS * epoch))
        recipe |= {"warmup_steps": math.ceil(steps / 10), "validate_steps": math.ceil(steps / _VALIDATIONS)}
    else:
        if characters < _SMALL and "max_steps" not in given:
            recipe["max_steps"] = min(recipe["max_steps"], math.ceil(_MOST_EPOCHS * epoch))
            recipe.setdefault("validate_steps", math.ceil(recipe["max_steps"] / 8))
        # After a high and early peak a post-LN model never learns to attend to the source: with a shorter warm-up the
        # peak falls with the root of the warm-up (found on the examples' toy corpora).
        warmup = given.get("warmup_steps", min(usual["warmup_steps"], max(1, recipe["max_steps"] // 4)))
        scale = usual["learning_rate_scale"] * min(1, warmup / usual["warmup_steps"])
        recipe |= {"warmup_steps": warmup, "learning_rate_scale": round(scale, 4)}
    decided = given.keys() | (_RATES if given.keys() & _RATES else set())
    devices = f"{state.num_processes} {'process' if state.num_processes == 1 else 'processes'} on {state.device.type}"
    facts = f"{len(pairs['train'])} training pairs of {characters} characters, {devices}"
    return {name: value for name, value in recipe.items() if name not in decided}, f"{facts}: {reason}"


def _usual(model: str | None, characters: int, has_gpu: bool) -> tuple[dict, str]:
    """The model and its training for a corpus of this size, and why they are these."""
    if model is not None:
        return _FINE_TUNING, f"fine-tunes {model}"
    if characters < _SMALL:
        return {**_TINY, "dropout": 0.3, "max_steps": 8000}, "a small model, as the corpus is small"
    if not has_gpu:
        return {**_TINY, "dropout": 0.1, "max_steps": 20_000}, "a small model, as a larger one needs a GPU"
    if characters < _LARGE:
        return {**_BASE, "dropout": 0.3, "max_steps": 50_000}, "the paper's base model"
    return {**_BASE, "max_steps": 100_000}, "the paper's base model"


def _characters(pairs: Dataset) -> int:
    """Characters of both sides; unlike words, every language has them."""
    return sum(pc.sum(pc.utf8_length(pairs.data[side])).as_py() for side in _SIDES)


def _vocabulary_size(characters: int) -> int:
    """10000 for Multi30k, as Wu et al. and RESULTS.md have it, some more for IWSLT, the paper's 37000 (5.1) for WMT."""
    root = math.sqrt(characters)
    return round(max(300, min(5 * root, 10_000), min(2 * root, 37_000)))


def _has_fast_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    bound_kernel_caches()  # which has an effect before the first product in bf16
    # What the processor says of itself is not enough: some with AVX512-BF16 are slower by it (RESULTS.md).
    faster = _product_seconds(torch.bfloat16) < _product_seconds(torch.float32)
    return broadcast_object_list([faster])[0]  # the first process decides


def _product_seconds(dtype: torch.dtype) -> float:
    """The least time of a product as large as some of a training step."""
    x, w = torch.ones(1024, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
    return min(timeit.repeat(lambda: x @ w, number=1, repeat=10))
