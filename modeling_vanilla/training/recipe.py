"""The values of options that are not given: the paper's if there is a preset, else a row of RECIPES.

The paper has one recipe, for millions of pairs and eight GPUs. `choose_recipe` takes the row of a corpus, and
`fit` fits it to the corpus and the machine.
"""

import math
import os
import re
import time
import timeit
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pyarrow.compute as pc
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from datasets import Dataset, DatasetDict

from ..corpus.options import DataOptions
from ..corpus.tokenized import replayed
from ..loading import load_config
from ..presets import PRESETS
from ..spans_vanilla import DEFAULT, find_spans
from .device import bound_kernel_caches
from .options import ModelOptions, TrainingOptions

# The base model's, on eight devices (5.1 to 5.3, 6.1). A checkpoint is written every 10 minutes, of updates of 0.4 s.
# The paper is silent: the updates between validations, the checkpoints kept.
PAPER: dict = {
    "max_steps": 100_000,
    "tokens_per_update": 25_000,
    "tokens_per_batch": 3125,
    "join_batches": False,
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
PAPER_ROWS |= {row: {"average_checkpoints": 1} for row in PRESETS if re.match("[A-E]-", row)}
PAPER_SEARCH = {"parsing": {"num_beams": 21, "length_penalty": 0.3, "max_extra_tokens": 300}}  # 6.3


@dataclass(frozen=True)
class Recipe:
    """How to train on corpora of a size: a row of the table that docs/recipes.py writes to docs/train.md.

    Attributes:
        characters: of both languages; a corpus of fewer has this recipe.
        has_gpu: whether it is for GPUs; None for any device.
        reason: why this model.
        preset, d_model, dropout, label_smoothing: of the model; None for the preset's.
        many_passes: over the corpus; a run of more has dropout 0.3.
        learning_rate, learning_rate_scale: the peak, or the factor in Eq. 3.
        warmup_steps, warmup_share: the warm-up takes so many updates, and at most this share of the run.
        batches: at least so many an update, whose pairs then are of several lengths, as the paper's are.
        max_steps, max_passes: the updates of a run; it sees no pair more often than max_passes.
        validations: of a run; None for one every 1000 updates.
    """

    characters: float
    has_gpu: bool | None
    reason: str
    preset: str | None = "base"
    d_model: int | None = None
    dropout: float | None = None
    label_smoothing: float | None = None
    many_passes: float = math.inf
    optim: str = "adam"
    lr_scheduler_type: str = "inverse_sqrt"
    learning_rate: float | None = None
    learning_rate_scale: float | None = None
    warmup_steps: float = 4000
    warmup_share: float = 1 / 4
    tokens_per_update: int = 25_000
    batches: int = 1
    max_steps: float = 100_000
    max_passes: float = math.inf
    validations: int | None = None


_TINY_ADAM: dict = {"learning_rate_scale": 2.53, "warmup_steps": 2000}  # a peak of 0.005 at the width 128
# The model of Wu et al. (2021) for Multi30k, trained by Muon (docs/notebook/speedrun.md).
SMALL = Recipe(
    characters=10_000_000,  # some 80 thousand pairs of short sentences
    has_gpu=None,
    reason="a small model, as the corpus is small",
    preset="tiny",
    dropout=0.2,
    label_smoothing=0.2,
    many_passes=30,
    optim="muon",
    lr_scheduler_type="linear",
    learning_rate=0.005,
    warmup_steps=math.inf,
    warmup_share=0.1,
    tokens_per_update=2048,
    batches=4,
    max_steps=5100,
    max_passes=100,
    validations=5,
)
# 56 million tokens, some 13 passes over 190 thousand pairs: an hour and a half of one core with AVX512-BF16. In an hour
# it is ahead of the tiny model's own width (RESULTS.md).
CPU = replace(
    SMALL,
    characters=math.inf,
    has_gpu=False,
    reason="a small model, as a larger one needs a GPU",
    d_model=192,
    dropout=0.1,
    label_smoothing=None,
    batches=2,
    max_steps=15_000,
)
PAPERS = Recipe(characters=math.inf, has_gpu=True, reason="the paper's base model", learning_rate_scale=1.0)
IWSLT = replace(PAPERS, characters=200_000_000, dropout=0.3, max_steps=50_000)  # as is customary for IWSLT
RECIPES = (SMALL, CPU, IWSLT, PAPERS)  # a corpus has the first that is for its size and device
# Of a saved model, by its new pairs (RESULTS.md). The peak is that of transformers' Trainer, for the width 512; another
# width w has (512 / w)^1.5 times as much, as the tiny model at 5e-5 hardly moves.
FINE_TUNING = [
    Recipe(
        characters=characters,
        has_gpu=None,
        reason="fine-tunes",
        preset=None,
        lr_scheduler_type="linear",
        learning_rate=5e-5,
        warmup_share=0.1,
        tokens_per_update=2048,
        max_passes=passes,
        validations=5,
    )
    for characters, passes in ((100_000, 30), (1_000_000, 10), (math.inf, 5))
]
# Few new pairs among ten times as many old ones: at a higher rate the model learns them by heart, and forgets nothing.
FEW_WITH_REPLAY = replace(FINE_TUNING[0], learning_rate=2.5e-4, max_passes=60)
_WIDTH = 512
_MORE_DROPOUT = 0.3
_EARLY_STOPPING = 5
_CHARACTERS = 4  # of a token, about

_RATES = {"learning_rate", "learning_rate_scale"}  # one of them that is given decides both
_SIDES = ("source", "target")
_OF_MODEL = {"d_model", "dropout", "label_smoothing", "vocab_size"}
_OF_TRAINING = {*PAPER, *_RATES, "early_stopping", "mixed_precision"}


@dataclass
class RunOptions:
    """What to train and how; `overrides` are fields of the configuration. `complete_options` fills in what is None."""

    training: TrainingOptions
    model: ModelOptions
    overrides: dict
    reason: str = ""  # which recipe was chosen, and why


def complete_options(
    pairs: DatasetDict, data: DataOptions, given: RunOptions, start: Path | None = None, previous: dict | None = None
) -> RunOptions:
    """Fill in every option of training and model that is not given.

    Args:
        start: the folder of the model that is trained further.
        previous: the record in run.json of a run that is resumed; its values are taken.
    """
    training, model, overrides = given.training, given.model, given.overrides
    chosen, reason = {}, ""
    if previous is not None:
        chosen = previous["training"] | previous["model"]
    elif model.preset is None:
        options = {name: value for part in (data, training, model) for name, value in vars(part).items()} | overrides
        if start is not None:
            options["d_model"] = load_config(start).d_model
        chosen, reason = choose_recipe(pairs, {name: value for name, value in options.items() if value is not None})
        reason += f"\nrecipe: {' '.join(f'--{name} {value}' for name, value in chosen.items())}"
    if model.preset is None and (previous or model.model is None):
        model = replace(model, preset=chosen["preset"], protect=model.protect or chosen.get("protect"))
        overrides = {name: chosen[name] for name in _OF_MODEL & chosen.keys()} | overrides
    return RunOptions(complete(training, chosen, model.preset), model, overrides, reason)


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
        given: options that are decided; the others are made to fit them. With "model" that one is fine-tuned, whose
            width is "d_model".

    Returns:
        The other options, fields of ModelOptions, VanillaConfig and TrainingOptions; and the reason, in a line.
    """
    machine, characters = PartialState(), _characters(pairs["train"])
    has_gpu = machine.device.type != "cpu"
    recipe = next(row for row in RECIPES if characters < row.characters and row.has_gpu in (None, has_gpu))
    reason = recipe.reason
    if "model" in given:
        recipe = next(row for row in FINE_TUNING if characters < row.characters)
        if recipe is FINE_TUNING[0] and "replay" in pairs:
            recipe = FEW_WITH_REPLAY
        rate = (recipe.learning_rate or 0) * (_WIDTH / given["d_model"]) ** 1.5
        recipe = replace(recipe, learning_rate=float(f"{rate:.2g}"))
        reason = f"{recipe.reason} {given['model']}"
    elif recipe.optim == "muon" and given.get("optim") == "adam":  # which at Muon's rate ignores the source
        names = ("label_smoothing", "optim", "lr_scheduler_type", "warmup_share")
        recipe = replace(recipe, **{name: getattr(Recipe, name) for name in names}, **_TINY_ADAM, learning_rate=None)
    options = fit(recipe, pairs, machine, given)
    decided = given.keys() | (_RATES if given.keys() & _RATES else set())
    count = machine.num_processes
    devices = f"{count} {'process' if count == 1 else 'processes'} on {machine.device.type}"
    facts = f"{len(pairs['train'])} training pairs of {characters} characters, {devices}"
    chosen = {name: value for name, value in options.items() if value is not None and name not in decided}
    return chosen, f"{facts}: {reason}"


def fit(recipe: Recipe, pairs: DatasetDict, machine: PartialState, given: dict) -> dict:
    """The options of a recipe, fitted to the corpus and the machine. What is given decides what depends on it.

    Returns:
        Fields of ModelOptions, VanillaConfig and TrainingOptions, None for the preset's or the paper's.
    """
    new, old = len(pairs["train"]), len(pairs.get("replay", ()))
    characters = round(_characters(pairs["train"]) * (1 + replayed(new, old) / new))  # of an epoch
    # An update takes about a tenth of the corpus at most, but the longest pair.
    tokens = given.get("tokens_per_update")
    most = max(given.get(name, getattr(DataOptions, name)) for name in ("max_source_length", "max_target_length"))
    longest = min(most, _longest(pairs["train"]))
    tokens = tokens or min(recipe.tokens_per_update, max(longest, characters // 100))
    # A little more than a process's share; without the surplus, each update would have a small batch left over.
    batch = min(tokens * 6 // (5 * machine.num_processes), 4096 if machine.device.type == "cpu" else 8192)
    if recipe.batches > 1:
        batch = min(batch, max(1, tokens // recipe.batches))
    updates_of_pass = characters / 2 / _CHARACTERS / tokens
    steps = given.get("max_steps") or max(1, math.ceil(min(recipe.max_steps, recipe.max_passes * updates_of_pass)))
    warmup = given.get("warmup_steps", min(recipe.warmup_steps, max(1, int(recipe.warmup_share * steps))))
    schedule = given.get("lr_scheduler_type", recipe.lr_scheduler_type)
    precision = given.get("mixed_precision") or _precision(machine.device)
    scale = recipe.learning_rate_scale
    if scale is not None:
        # After a high and early peak a post-LN model never learns to attend to the source: with a shorter warm-up the
        # peak falls with the root of the warm-up (found on the examples' toy corpora).
        scale = round(scale * min(1, warmup / recipe.warmup_steps), 4)
    return {
        "preset": recipe.preset,
        "d_model": recipe.d_model,
        "dropout": _MORE_DROPOUT if steps > recipe.many_passes * updates_of_pass else recipe.dropout,
        "label_smoothing": recipe.label_smoothing,
        "vocab_size": None if {"model", "tokenizer"} & given.keys() else _vocabulary_size(characters),
        "protect": None if {"model", "tokenizer"} & given.keys() else _protected(pairs["train"]),
        "max_steps": steps,
        "tokens_per_update": tokens,
        "tokens_per_batch": batch,
        # In bf16 a call more costs more than some padding (docs/notebook/speedrun.md).
        "join_batches": (recipe.batches > 1 and precision == "bf16" and "tokens_per_batch" not in given) or None,
        "optim": recipe.optim,
        "lr_scheduler_type": schedule,
        "learning_rate": recipe.learning_rate,
        "learning_rate_scale": scale,
        "warmup_steps": warmup,
        "validate_steps": recipe.validations and math.ceil(steps / recipe.validations),
        # Where the rate falls to 0 the end of a run is its best part.
        "early_stopping": _EARLY_STOPPING if "validation" in pairs and schedule != "linear" else None,
        "mixed_precision": precision,
    }


# These pass over the corpus, once: with --minutes many lengths of the run are tried.


@lru_cache(maxsize=1)
def _characters(pairs: Dataset) -> int:
    """Characters of both sides; unlike words, every language has them."""
    return sum(pc.sum(pc.utf8_length(pairs.data[side])).as_py() for side in _SIDES)


@lru_cache(maxsize=1)
def _longest(pairs: Dataset) -> int:
    """A bound on the tokens of the longest side: its bytes plus two, as the vocabulary has a token for each byte."""
    return 2 + max(pc.max(pc.binary_length(pairs.data[side])).as_py() for side in _SIDES)


@lru_cache(maxsize=1)
def _protected(pairs: Dataset) -> str | None:
    """What is copied: all spans, if a hundredth of the pairs have some, and most of these the same on both sides."""
    rows = pairs[:: -(-len(pairs) // 10_000)]
    sides = [[find_spans(text[:1000], DEFAULT) for text in rows[side]] for side in _SIDES]
    have = [source == target for source, target in zip(*sides, strict=True) if source or target]
    return "all" if len(have) >= len(sides[0]) / 100 and sum(have) > len(have) / 2 else None


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
