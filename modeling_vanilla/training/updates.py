"""The updates of a run: which pairs are in each, and which of its batches each process takes."""

import math
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from accelerate import Accelerator
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from ..errors import SIGNALS
from .batches import collate, epoch_batches, update_batches
from .checkpoints import Progress
from .options import TrainingOptions

Lengths = tuple[np.ndarray, np.ndarray]  # of each pair's source and target, as pair_lengths gives them


@dataclass
class Update:
    """One process's share of one optimizer update.

    Attributes:
        batches: its batches, collated. rows: their rows of the training data.
        weights: 1 for each batch, 0 for one that only fills up a share that is one batch short.
        target_tokens, tokens, positions: of the whole update, on all processes.
    """

    batches: list[dict]
    rows: list[np.ndarray]
    weights: list[float]
    target_tokens: int
    tokens: int
    positions: int


def plan_epoch(lengths: Lengths, options: TrainingOptions, epoch: int) -> list[list[np.ndarray]]:
    """The rows of each batch of each update of an epoch.

    Raises:
        ValueError: the data cannot be cut into batches and updates of the sizes asked for.
    """
    batches = epoch_batches(*lengths, options.tokens_per_batch, options.seed, epoch)
    return update_batches(batches, *lengths, options.tokens_per_update)


def updates(
    plan: list[list[np.ndarray]],
    lengths: Lengths,
    training_data: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    options: TrainingOptions,
    progress: Progress,
    accelerator: Accelerator,
) -> Iterator[Update]:
    """This process's share of every update from `progress` on, epoch after epoch, without end.

    An update's batches are dealt out to the processes in turn, so that which sentences make an update does not depend
    on how many processes there are.

    Args:
        plan: of the epoch that `progress` is in.
    """
    data = training_data.select_columns(["input_ids", "labels"])
    while True:
        plan = plan[progress.updates_of_epoch :]
        shares = [_share(update, accelerator.process_index, accelerator.num_processes) for update in plan]
        loader = DataLoader(
            data,
            batch_sampler=[batch for share, _ in shares for batch in share],
            collate_fn=partial(collate, pad_token_id=tokenizer.pad_token_id),
            num_workers=options.data_workers,
            worker_init_fn=_ignore_signals,
            pin_memory=accelerator.device.type == "cuda",
        )
        loaded = iter(loader)
        for update, (share, weights) in zip(plan, shares, strict=True):
            rows = np.concatenate(update)
            target_tokens = int(lengths[1][rows].sum())
            yield Update(
                batches=[next(loaded) for _ in share],
                rows=share,
                weights=weights,
                target_tokens=target_tokens,
                tokens=target_tokens + int(lengths[0][rows].sum()),
                positions=sum(len(batch) * int(side[batch].max()) for batch in update for side in lengths),
            )
        progress.epoch += 1
        progress.updates_of_epoch = 0
        plan = plan_epoch(lengths, options, progress.epoch)


def _ignore_signals(worker: int) -> None:
    """Signals may go to the whole group of processes, and the one that trains finishes its update."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def _share(update: list[np.ndarray], rank: int, world: int) -> tuple[list[np.ndarray], list[float]]:
    """The batches of an update that fall to process `rank` of `world`, and their weights.

    Every process must take part in as many backward passes: a share that is one short repeats a batch with weight 0.
    """
    own = update[rank::world]
    missing = math.ceil(len(update) / world) - len(own)
    return own + [update[0]] * missing, [1.0] * len(own) + [0.0] * missing
