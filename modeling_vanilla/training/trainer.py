"""Section 5: the training loop, on accelerate."""

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, tqdm
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..translation import translate
from .checkpoints import average_checkpoints, list_checkpoints, load_optimizer, prune_checkpoints, save_checkpoint
from .data import collate, pair_lengths, token_batches, tokenize_pairs, update_batches
from .metrics import TOKENIZE, check_tokenize, translation_scores
from .optimization import adam, learning_rate


def _option(default, help: str):
    return field(default=default, metadata={"help": help})


@dataclass
class TrainingOptions:
    """How to train. The defaults are the paper's base model's (5.1, 5.3, 6.1)."""

    output_dir: str = field(metadata={"help": "Folder of this run: its checkpoints, its model, its results."})
    max_steps: int = _option(100_000, "Updates to train for.")
    max_minutes: float | None = _option(None, "Stop after this many minutes of training, if that comes first.")
    tokens_per_update: int = _option(25_000, "Tokens of an update on either side, whatever the number of processes.")
    tokens_per_batch: int = _option(
        3125, "Tokens of a batch on either side, padding included: what a device holds at a time. 3125 is an eighth."
    )
    warmup_steps: int = _option(4000, "Steps for which the learning rate rises.")
    learning_rate_scale: float = _option(1.0, "Factor of the paper's learning rate.")
    max_grad_norm: float | None = _option(None, "Clip the gradient's norm to this. The paper does not.")
    mixed_precision: str | None = _option(
        None, "no, bf16 or fp16; by default what accelerate launch was told, else no."
    )
    validate_steps: int = _option(1000, "Validate every so many updates, and at the end.")
    checkpoint_steps: int | None = _option(None, "Write a checkpoint every so many updates, too.")
    checkpoint_minutes: float | None = _option(10.0, "Write a checkpoint every so many minutes.")
    keep_checkpoints: int = _option(
        5, "Keep the last so many checkpoints, and the best by validation BLEU; one is written whenever that improves."
    )
    average_checkpoints: int = _option(5, "The final model is the average of the last so many checkpoints.")
    bleu_tokenize: str = _option(TOKENIZE, "sacreBLEU's tokeniser: 13a, or none for text that is tokenised already.")
    seed: int = _option(0, "Of initialisation, data order and dropout.")
    data_workers: int = _option(0, "Processes that prepare batches for each training process.")

    def __post_init__(self):
        for name in (
            "max_steps",
            "tokens_per_update",
            "tokens_per_batch",
            "warmup_steps",
            "validate_steps",
            "checkpoint_steps",
            "keep_checkpoints",
            "average_checkpoints",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        for name in ("max_minutes", "learning_rate_scale", "max_grad_norm", "checkpoint_minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, not {value}")
        for name in ("seed", "data_workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.average_checkpoints > self.keep_checkpoints:
            raise ValueError(
                f"average_checkpoints {self.average_checkpoints} is more than keep_checkpoints {self.keep_checkpoints}"
            )
        check_tokenize(self.bleu_tokenize, "bleu_tokenize")
        if self.mixed_precision not in (None, "no", "bf16", "fp16"):
            raise ValueError(f"mixed_precision must be no, bf16 or fp16, not {self.mixed_precision!r}")


@dataclass
class Progress:
    """How far a run is; all that a checkpoint holds besides weights and moments.

    seconds: of training, without validation and checkpoints. tokens: real tokens read, both sides. positions: those,
    padding included. losses: each update's, in nats per target token, label-smoothed. validations: one entry each.
    """

    step: int = 0
    epoch: int = 0
    updates_of_epoch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    positions: int = 0
    losses: list[float] = field(default_factory=list)
    validations: list[dict] = field(default_factory=list)

    def best(self) -> dict | None:
        """The validation with the highest BLEU."""
        return max(self.validations, key=lambda entry: entry["bleu"], default=None)


@dataclass
class Update:
    """One process's part of one optimizer update.

    batches: its batches, collated. weights: 1 for each batch, 0 for one that is there only because another process has
    one more. target_tokens, tokens, positions: of the whole update, on all processes.
    """

    batches: list[dict]
    weights: list[float]
    target_tokens: int
    tokens: int
    positions: int


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    training_data: Dataset,
    validation_pairs: Dataset | None,
    options: TrainingOptions,
    progress: Progress | None = None,
) -> tuple[PreTrainedModel, Progress]:
    """Train `model` by section 5 and return it with the average of its last checkpoints (6.1).

    Args:
        training_data: as tokenize_training_pairs gives it.
        validation_pairs: string columns "source" and "target", or None not to validate.
        progress: where to go on; the model's weights and the optimizer's moments are then of the run's last checkpoint.

    Raises:
        ValueError: if the data do not fill one update, or a loss is not finite.
        OSError: if a checkpoint cannot be written.
    """
    accelerator = Accelerator(mixed_precision=options.mixed_precision)
    run = Path(options.output_dir)
    resumed, progress = progress is not None, progress or Progress()
    model, optimizer = accelerator.prepare(model, adam(model))
    if resumed:
        load_optimizer(list_checkpoints(run)[-1], model, optimizer)
    save = partial(_save, run, accelerator, model, optimizer, tokenizer, progress, options)
    validation_data = None if validation_pairs is None else tokenize_pairs(validation_pairs, tokenizer)
    lengths = pair_lengths(training_data)

    def over() -> bool:
        out_of_time = options.max_minutes is not None and progress.seconds >= 60 * options.max_minutes
        return _agree(accelerator, progress.step >= options.max_steps or out_of_time)

    bar = tqdm(total=options.max_steps, initial=progress.step, unit=" updates", desc="Training", smoothing=0.05)
    updates = _updates(training_data, lengths, tokenizer.pad_token_id, options, progress, accelerator)
    last_save = start = time.monotonic()
    finished = over()
    while not finished:
        update = next(updates)
        loss = _take_step(accelerator, model, optimizer, update, options, progress.step + 1)
        progress.step += 1
        progress.updates_of_epoch += 1
        progress.losses.append(loss)
        progress.seconds += time.monotonic() - start
        progress.tokens += update.tokens
        progress.positions += update.positions
        bar.update()
        bar.set_postfix_str(f"loss {loss:.3f}, {progress.tokens / progress.seconds:.0f} tokens/s", refresh=False)

        finished, best = over(), False
        if validation_data is not None and (finished or progress.step % options.validate_steps == 0):
            scores = validate(accelerator, model, tokenizer, validation_pairs, validation_data, options)
            progress.validations.append({"step": progress.step, **scores})
            best = progress.best() is progress.validations[-1]
            if accelerator.is_main_process:
                bar.write(f"step {progress.step}: " + ", ".join(f"{key} {scores[key]:.2f}" for key in _SHOWN))
        by_step = options.checkpoint_steps is not None and progress.step % options.checkpoint_steps == 0
        minutes = (time.monotonic() - last_save) / 60
        by_time = options.checkpoint_minutes is not None and minutes >= options.checkpoint_minutes
        if _agree(accelerator, finished or best or by_step or by_time):
            save()
            last_save = time.monotonic()
        start = time.monotonic()
    bar.close()
    trained = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    trained.load_state_dict(average_checkpoints(list_checkpoints(run)[-options.average_checkpoints :]), strict=False)
    trained.tie_weights()
    accelerator.wait_for_everyone()
    return trained.eval(), progress


_SHOWN = ("loss", "perplexity", "bleu")


def _updates(
    data: Dataset,
    lengths: tuple[np.ndarray, np.ndarray],
    pad_token_id: int,
    options: TrainingOptions,
    progress: Progress,
    accelerator: Accelerator,
) -> Iterator[Update]:
    """This process's part of every update from `progress` on, epoch after epoch, without end.

    An update's batches are dealt out to the processes in turn, so that which sentences make an update does not depend
    on how many processes there are.
    """
    rank, world = accelerator.process_index, accelerator.num_processes
    while True:
        batches = token_batches(*lengths, options.tokens_per_batch, options.seed, progress.epoch)
        plan = update_batches(batches, *lengths, options.tokens_per_update)[progress.updates_of_epoch :]
        # Every process must take part in as many backward passes: the one too few repeats a batch with weight 0.
        rounds = [math.ceil(len(update) / world) for update in plan]
        own = [
            [update[rank + turn * world] if rank + turn * world < len(update) else None for turn in range(count)]
            for update, count in zip(plan, rounds, strict=True)
        ]
        loader = DataLoader(
            data,
            batch_sampler=[
                update[0] if rows is None else rows for update, part in zip(plan, own, strict=True) for rows in part
            ],
            collate_fn=partial(collate, pad_token_id=pad_token_id),
            num_workers=options.data_workers,
            pin_memory=accelerator.device.type == "cuda",
        )
        loaded = iter(loader)
        for update, part in zip(plan, own, strict=True):
            rows = np.concatenate(update)
            targets = int(lengths[1][rows].sum())
            yield Update(
                batches=[next(loaded) for _ in part],
                weights=[float(batch is not None) for batch in part],
                target_tokens=targets,
                tokens=targets + int(lengths[0][rows].sum()),
                positions=sum(len(batch) * int(side[batch].max()) for batch in update for side in lengths),
            )
        progress.epoch += 1
        progress.updates_of_epoch = 0


def _take_step(
    accelerator: Accelerator, model, optimizer, update: Update, options: TrainingOptions, step: int
) -> float:
    """One update; its loss, the mean over all its target tokens on all processes, in nats."""
    # Dropout is a function of seed, step and process: a resumed run draws what the uninterrupted one would have.
    torch.manual_seed(int(np.random.SeedSequence([options.seed, step, accelerator.process_index]).generate_state(1)[0]))
    d_model = accelerator.unwrap_model(model).config.d_model
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, d_model, options.warmup_steps, options.learning_rate_scale)
    model.train()
    total = torch.zeros((), device=accelerator.device)
    for index, (batch, weight) in enumerate(zip(update.batches, update.weights, strict=True)):
        batch = {name: value.to(accelerator.device, non_blocking=True) for name, value in batch.items()}
        last = index + 1 == len(update.batches)
        with nullcontext() if last else accelerator.no_sync(model):
            loss = model(**batch, num_items_in_batch=update.target_tokens).loss * weight
            # Processes' gradients are averaged where the mean over the update's tokens asks for their sum.
            accelerator.backward(loss * accelerator.num_processes)
        total += loss.detach()
    loss = float(accelerator.reduce(total, reduction="sum"))
    if not math.isfinite(loss):
        raise ValueError(
            f"the loss of step {step} is {loss}: post-LN is sensitive to warm-up, so raise warmup_steps "
            f"({options.warmup_steps}) or lower learning_rate_scale ({options.learning_rate_scale})"
        )
    if options.max_grad_norm is not None:
        accelerator.clip_grad_norm_(model.parameters(), options.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def validate(
    accelerator: Accelerator,
    model,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    tokenized: Dataset,
    options: TrainingOptions,
) -> dict:
    """Loss in nats per word piece without label smoothing, perplexity, BLEU with signature, chrF on `pairs`."""
    model = accelerator.unwrap_model(model).eval()
    rank, world = accelerator.process_index, accelerator.num_processes
    with accelerator.autocast(), torch.inference_mode():
        own = tokenized.select(range(rank, len(tokenized), world))
        sums = torch.tensor(negative_log_likelihood(model, own, tokenizer.pad_token_id, options.tokens_per_batch))
        translations = translate(model, tokenizer, pairs["source"][rank::world], options.tokens_per_batch)
    nll, tokens = accelerator.reduce(sums.to(accelerator.device), reduction="sum").tolist()
    rows = dict(zip(range(rank, len(pairs), world), translations, strict=True))
    everyone = {row: text for part in gather_object([rows]) for row, text in part.items()}
    predictions = [everyone[row] for row in range(len(pairs))]
    scores = translation_scores(predictions, list(pairs["target"]), tokenize=options.bleu_tokenize)
    return {"loss": nll / tokens, "perplexity": math.exp(min(nll / tokens, 700)), **scores}


def negative_log_likelihood(
    model: PreTrainedModel, tokenized: Dataset, pad_token_id: int, tokens_per_batch: int
) -> tuple[float, float]:
    """The sum of -ln p over all target tokens, and their number."""
    total, count = 0.0, 0
    lengths = pair_lengths(tokenized)
    longest = int(max((side.max(initial=1) for side in lengths), default=1))
    for rows in token_batches(*lengths, max(tokens_per_batch, longest), seed=0, epoch=0):
        batch = {
            name: value.to(model.device)
            for name, value in collate([tokenized[int(row)] for row in rows], pad_token_id).items()
        }
        labels = batch.pop("labels")
        inputs = model.prepare_decoder_input_ids_from_labels(labels)
        logits = model(**batch, decoder_input_ids=inputs, use_cache=False).logits
        total += float(
            torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        )
        count += int((labels != -100).sum())
    return total, float(count)


def _save(run, accelerator, model, optimizer, tokenizer, progress: Progress, options: TrainingOptions) -> None:
    save_checkpoint(run, accelerator, model, optimizer, tokenizer, asdict(progress))
    if accelerator.is_main_process:
        best = progress.best()
        prune_checkpoints(run, options.keep_checkpoints, None if best is None else best["step"])


def _agree(accelerator: Accelerator, condition: bool) -> bool:
    """Whether the main process says so: clocks differ, and what depends on one must be decided once."""
    if accelerator.num_processes == 1:
        return condition
    flag = torch.tensor(int(condition and accelerator.is_main_process), device=accelerator.device)
    return bool(accelerator.reduce(flag, reduction="sum"))
