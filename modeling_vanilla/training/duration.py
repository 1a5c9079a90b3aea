"""How long a run takes on this machine, by a trial, and the updates for which there is time (`--minutes`)."""

import math
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from accelerate.utils import broadcast_object_list
from datasets import DatasetDict

from ..corpus.tokenized import TokenizedPairs
from ..inference import Translator
from .recipe import RunOptions
from .train import TrainingState, largest_of_processes, read_updates, take_update
from .validation import validation_scores

_SHARE, _SECONDS = 1 / 100, 10  # a trial: this share of the updates, at most so many seconds
_PAIRS = 100  # that are scored
_VALIDATION_SHARE = 1 / 10  # of the time that a run has; but there is one validation
_EXTRA_TOKENS = 5  # beyond the source's: what a model writes that has learnt to end its translations


@dataclass
class Pace:
    """Seconds that this machine takes for an update, and to score a pair of validation or test data."""

    update: float
    pair: float

    def seconds(self, options: RunOptions, pairs: DatasetDict) -> float:
        """Seconds of a run: its updates, its validations and the scores of its model."""
        training = options.training
        # The last is of the model that is written, which with old pairs has been validated; the first of a saved one.
        validations = math.ceil(training.max_steps / training.validate_steps)
        validations += ("replay_validation" not in pairs) + (options.model.model is not None)
        scores = self.pair * sum(len(pairs.get(name, ())) for name in ("test", "corrections"))
        return training.max_steps * self.update + validations * self.validation(pairs) + scores

    def validation(self, pairs: DatasetDict) -> float:
        """Seconds of a validation."""
        return self.pair * sum(len(pairs.get(name, ())) for name in ("validation", "replay_validation"))


def measure_pace(state: TrainingState, corpus: TokenizedPairs, pairs: DatasetDict) -> Pace:
    """The pace of a training by a trial, which spoils the model. Every process must call this, and gets the same."""
    accelerator, training, updates = state.accelerator, state.training, read_updates(state, corpus)
    model = torch.compile(state.model, dynamic=True) if training.compile else state.model
    take_update(state, model, next(updates))  # the first sets up memory and kernels
    start, taken, is_over = time.monotonic(), 0, False
    while not is_over:
        take_update(state, model, next(updates))
        taken += 1
        is_over = taken >= _SHARE * training.max_steps or time.monotonic() - start > _SECONDS
        is_over = bool(largest_of_processes(accelerator, is_over))
    pace = Pace((time.monotonic() - start) / taken, 0.0)
    scored = pairs.get("validation", pairs.get("test"))
    if scored is not None:
        state.own_model.generation_config.update(max_extra_tokens=_EXTRA_TOKENS)
        state.own_model.config.protected_spans = None  # an untrained model loses them, and would search again, wider
        translator = Translator(state.own_model, state.tokenizer)
        sample = scored.select(range(min(_PAIRS, len(scored))))
        for _ in range(2):  # the first sets up memory and kernels
            start = time.monotonic()
            with accelerator.autocast():
                validation_scores(translator, sample, training.tokens_per_batch, training.bleu_tokenize)
            pace.pair = (time.monotonic() - start) / len(sample)
    return broadcast_object_list([pace])[0]


def with_length(
    chosen: RunOptions,
    given: RunOptions,
    pace: Pace,
    pairs: DatasetDict,
    complete: Callable[[RunOptions], RunOptions],
    seconds: float | None,
) -> RunOptions:
    """The options with the updates for which there is time, if it is bounded, and an estimate in the reason.

    Args:
        chosen: what was completed from the given options.
        complete: completes them.
        seconds: that are left.
    """

    def of_length(steps: int, seconds: float) -> RunOptions:
        training = replace(given.training, max_steps=steps, mixed_precision=chosen.training.mixed_precision)
        options = complete(replace(given, training=training))
        if given.training.validate_steps is None and (validation := pace.validation(pairs)):
            most = max(1, int(_VALIDATION_SHARE * seconds / validation))
            options.training.validate_steps = max(options.training.validate_steps, math.ceil(steps / most))
        return options

    if seconds is not None:
        (left,) = broadcast_object_list([seconds])
        chosen = of_length(steps_within(left, pace, pairs, lambda steps: of_length(steps, left)), left)
    minutes = pace.seconds(chosen, pairs) / 60
    estimate = f"{chosen.training.max_steps} updates, with their validations and scores: about {minutes:.1f} minutes"
    return replace(chosen, reason=f"{chosen.reason}\n{estimate}".strip())


def steps_within(seconds: float, pace: Pace, pairs: DatasetDict, options_of: Callable[[int], RunOptions]) -> int:
    """The updates of the longest run that takes at most so many seconds.

    Args:
        options_of: the options of a run of so many updates, on which its validations depend.

    Raises:
        ValueError: there is no time for one update.
    """

    def takes(steps: int) -> float:
        return pace.seconds(options_of(steps), pairs)

    steps = bisect_right(range(1, 1 + int(seconds / pace.update)), seconds, key=takes)
    if not steps:
        raise ValueError(f"minutes: an update and the scores take {takes(1) / 60:.1f}, and {seconds / 60:.1f} are left")
    return steps
