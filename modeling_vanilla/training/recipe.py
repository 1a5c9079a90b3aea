"""The values of options that are not given: the paper's if there is a preset, else chosen by corpus and machine.

The paper has one recipe, for millions of pairs and eight GPUs. A small corpus gets the model of Wu et al. (2021) for
Multi30k, trained by Muon with a rate that falls to 0 (docs/notebook/speedrun.md); a larger one the base model with more
dropout, as is customary for IWSLT. A saved model is fine-tuned.
"""

import math
import os
import time
import timeit
from dataclasses import dataclass, replace

import pyarrow.compute as pc
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from datasets import Dataset, DatasetDict

from ..configuration_vanilla import PRESETS
from ..corpus.options import DataOptions
from .cpu_memory import bound_kernel_caches
from .options import ModelOptions, TrainingOptions

# The base model's, on eight devices (5.1 to 5.3, 6.1). A checkpoint is written every 10 minutes, of updates of 0.4 s.
# The paper is silent: the updates between validations, the checkpoints kept.
PAPER: dict = {
    "max_steps": 100_000,
    "tokens_per_update": 25_000,
    "tokens_per_batch": 3125,
    "optim": "adam",
    "lr_scheduler_type": "inverse_sqrt",
    "warmup_steps": 4000,
    "learning_rate_scale": 1.0,
    "validate_steps": 1000,
    "checkpoint_steps": 1500,
    "keep_checkpoints": 5,
    "average_checkpoints": 5,
}
# In what others differ: the big model, whose updates take a second (5.2, 6.1), and the rows of Table 3 (6.2).
PAPER_ROWS = {"big": {"max_steps": 300_000, "checkpoint_steps": 600, "average_checkpoints": 20}}
PAPER_ROWS |= {row: {"average_checkpoints": 1} for row in PRESETS if row[1] == "-"}
PAPER_SEARCH = {"parsing": {"num_beams": 21, "length_penalty": 0.3, "max_extra_tokens": 300}}  # 6.3

# Without a preset: for a corpus of up to so many characters of both languages, on a GPU, a CPU or (None) any device,
# what differs from the paper. epochs bounds max_steps, warmup_share warmup_steps; a run has so many validations. A
# small corpus gets updates of so many batches, so that each has pairs of several lengths, as the paper's have
# (docs/notebook/speedrun.md); more dropout where a pair is seen more often than many_passes; and Muon unless Adam is
# given, which with Muon's rate never learns to read the source.
_SMALL: dict = {"preset": "tiny", "dropout": 0.2, "tokens_per_update": 2048, "max_steps": 5100}
_SMALL |= {"batches": 4, "epochs": 100, "many_passes": 30, "validations": 5}
_MUON = {"optim": "muon", "lr_scheduler_type": "linear", "learning_rate": 0.005, "warmup_share": 0.1}
_MUON |= {"label_smoothing": 0.2}
_ADAM = {"warmup_steps": 2000, "learning_rate_scale": 2.53}
_WITHOUT_GPU = {"preset": "tiny", "dropout": 0.1, "tokens_per_update": 8192, "max_steps": 20_000, **_ADAM}
_RECIPES: list[tuple[float, bool | None, dict, str]] = [
    (10_000_000, None, _SMALL, "a small model, as the corpus is small"),  # some 80 thousand pairs of short sentences
    (math.inf, False, _WITHOUT_GPU, "a small model, as a larger one needs a GPU"),
    (200_000_000, True, {"preset": "base", "dropout": 0.3, "max_steps": 50_000}, "the paper's base model"),
    (math.inf, True, {"preset": "base"}, "the paper's base model"),
]
# Of a saved model; the peak is that of transformers' Trainer.
_FINE_TUNING = {"tokens_per_update": 4096, "learning_rate": 5e-5, "epochs": 5, "warmup_share": 0.1, "validations": 10}
_WARMUP_SHARE = 1 / 4
_MORE_DROPOUT = 0.3
_EARLY_STOPPING = 5
_CHARACTERS = 4  # of a token, about

_RATES = {"learning_rate", "learning_rate_scale"}  # one of them that is given decides both
_SIDES = ("source", "target")
_OF_MODEL = {"dropout", "label_smoothing", "vocab_size"}
_OF_TRAINING = {*PAPER, *_RATES, "early_stopping", "mixed_precision"}


@dataclass
class Settings:
    """What to train and how, with a value for every option; `overrides` are fields of the configuration."""

    training: TrainingOptions
    model: ModelOptions
    overrides: dict
    reason: str = ""  # which recipe was chosen, and why


def choose_settings(pairs: DatasetDict, data: DataOptions, given: Settings, previous: dict | None = None) -> Settings:
    """Fill in every option of training and model that is not given.

    Args:
        previous: the record in run.json of a run that is resumed; its values are taken.
    """
    training, model, overrides = given.training, given.model, given.overrides
    chosen, reason = {}, ""
    if previous is not None:
        chosen = previous["training"] | previous["model"]
    elif model.preset is None:
        options = {name: value for part in (data, training, model) for name, value in vars(part).items()} | overrides
        chosen, reason = choose_recipe(pairs, {name: value for name, value in options.items() if value is not None})
        reason += f"\nrecipe: {' '.join(f'--{name} {value}' for name, value in chosen.items())}"
    if model.preset is None and model.model is None:
        model = replace(model, preset=chosen["preset"])
        overrides = {name: chosen[name] for name in _OF_MODEL & chosen.keys()} | overrides
    return Settings(complete(training, chosen, model.preset), model, overrides, reason)


def complete(training: TrainingOptions, chosen: dict | None = None, preset: str | None = None) -> TrainingOptions:
    """Fill in the options of training that are not given, by the chosen values or else the paper's for the preset."""
    chosen, paper = chosen or {}, PAPER | PAPER_ROWS.get(preset or "base", {})
    given = {name: value for name, value in vars(training).items() if value is not None}
    values = paper | {name: chosen[name] for name in _OF_TRAINING & chosen.keys()} | given
    rates = next(each for each in (given, chosen, paper) if _RATES & each.keys())
    values |= {name: rates.get(name) for name in _RATES}
    if "tokens_per_batch" not in given | chosen:  # an update holds at least one batch
        values["tokens_per_batch"] = min(paper["tokens_per_batch"], values["tokens_per_update"])
    # In updates, as by the clock no two runs would average the same. As great a share of the run as in the paper, so
    # that the checkpoints of a short one are as close to its end, but at least 10, as writing takes time.
    if "checkpoint_steps" not in given | chosen:
        share = paper["checkpoint_steps"] / paper["max_steps"]
        values["checkpoint_steps"] = max(10, round(share * values["max_steps"]))
    return replace(training, **values)


def choose_recipe(pairs: DatasetDict, given: dict) -> tuple[dict, str]:
    """Choose what to train on these pairs, and how, on the devices of this process group.

    Args:
        pairs: "train", and "validation" if there are any, as load_pairs returns them.
        given: options that are decided; the others are made to fit them. With "model" that one is fine-tuned.

    Returns:
        The other options, fields of ModelOptions, VanillaConfig and TrainingOptions; and the reason, in a line.
    """
    state = PartialState()
    has_gpu = state.device.type != "cpu"
    characters = _characters(pairs["train"])
    most = max(given.get(name, getattr(DataOptions, name)) for name in ("max_source_length", "max_target_length"))
    # The bytes of the longest side bound its tokens but for two: the vocabulary has a token for every byte.
    longest = min(most, 2 + max(pc.max(pc.binary_length(pairs["train"].data[side])).as_py() for side in _SIDES))
    usual, reason = next(
        (each, why) for limit, gpu, each, why in _RECIPES if characters < limit and gpu in (None, has_gpu)
    )
    if "model" in given:
        usual, reason = _FINE_TUNING, f"fine-tunes {given['model']}"
    elif usual is _SMALL:
        usual = usual | (_ADAM if given.get("optim") == "adam" else _MUON)
    paper = PAPER if usual.get("preset") == "base" else {}
    bounds = dict.fromkeys(("epochs", "many_passes", "max_steps"), math.inf)
    usual = {"warmup_share": _WARMUP_SHARE, **bounds, **paper, **usual}

    # An update takes about a tenth of the corpus at most.
    tokens = given.get("tokens_per_update", min(usual["tokens_per_update"], max(longest, characters // 100)))
    # A little more than a process's share; without the surplus, each update would have a small batch left over.
    batch = min(tokens * 6 // (5 * state.num_processes), 8192 if has_gpu else 4096)
    if "batches" in usual:
        batch = min(batch, max(1, tokens // usual["batches"]))
    epoch = characters / 2 / _CHARACTERS / tokens  # updates in which each pair is seen once
    steps = given.get("max_steps", max(1, math.ceil(min(usual["max_steps"], usual["epochs"] * epoch))))
    share = max(1, int(usual["warmup_share"] * steps))
    warmup = given.get("warmup_steps", min(usual.get("warmup_steps", share), share))
    schedule = given.get("lr_scheduler_type", usual.get("lr_scheduler_type"))
    scale = usual.get("learning_rate_scale")
    if scale is not None:
        # After a high and early peak a post-LN model never learns to attend to the source: with a shorter warm-up the
        # peak falls with the root of the warm-up (found on the examples' toy corpora).
        scale = round(scale * min(1, warmup / usual["warmup_steps"]), 4)
    recipe = {
        "preset": usual.get("preset"),
        "dropout": _MORE_DROPOUT if steps > usual["many_passes"] * epoch else usual.get("dropout"),
        "label_smoothing": usual.get("label_smoothing"),
        "vocab_size": None if {"model", "tokenizer"} & given.keys() else _vocabulary_size(characters),
        "max_steps": steps,
        "tokens_per_update": tokens,
        "tokens_per_batch": batch,
        "optim": usual.get("optim"),
        "lr_scheduler_type": schedule,
        "learning_rate": usual.get("learning_rate"),
        "learning_rate_scale": scale,
        "warmup_steps": warmup,
        "validate_steps": math.ceil(steps / usual["validations"]) if "validations" in usual else None,
        # Where the rate falls to 0 the end of a run is its best part.
        "early_stopping": _EARLY_STOPPING if "validation" in pairs and schedule != "linear" else None,
        "mixed_precision": None if "mixed_precision" in given else _precision(state.device),
    }
    decided = given.keys() | (_RATES if given.keys() & _RATES else set())
    devices = f"{state.num_processes} {'process' if state.num_processes == 1 else 'processes'} on {state.device.type}"
    facts = f"{len(pairs['train'])} training pairs of {characters} characters, {devices}"
    chosen = {name: value for name, value in recipe.items() if value is not None and name not in decided}
    return chosen, f"{facts}: {reason}"


def _characters(pairs: Dataset) -> int:
    """Characters of both sides; unlike words, every language has them."""
    return sum(pc.sum(pc.utf8_length(pairs.data[side])).as_py() for side in _SIDES)


def _vocabulary_size(characters: int) -> int:
    """About 10000 for Multi30k, as Wu et al. have it, some more for IWSLT, the paper's 37000 (5.1) for WMT."""
    root = math.sqrt(characters)
    return round(max(300, min(5 * root, 10_000), min(2 * root, 37_000)))


def _precision(device: torch.device) -> str | None:
    """ "bf16" where that is faster, unless accelerate was told a precision or the caller's Accelerator has set one."""
    if "ACCELERATE_MIXED_PRECISION" in os.environ or AcceleratorState._shared_state:
        return None
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else None
    if device.type != "cpu":
        return None
    bound_kernel_caches()  # which has an effect before the first product in bf16
    # What the processor says of itself is not enough: some with AVX512-BF16 are slower by it (RESULTS.md).
    faster = _product_seconds(torch.bfloat16) < _product_seconds(torch.float32)
    return "bf16" if broadcast_object_list([faster])[0] else None  # the first process decides


def _product_seconds(dtype: torch.dtype) -> float:
    """The least processor time of a product as large as some of a training step.

    By the clock a product on two threads takes as long as another program keeps one of them waiting.
    """
    x, w = torch.ones(1024, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
    return min(timeit.repeat(lambda: x @ w, timer=time.process_time, number=1, repeat=10))
