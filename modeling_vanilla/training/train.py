"""Section 5, from top to bottom: read, tokenise, make a model, train it, average it, write it, score it."""

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers
from accelerate.utils import ProjectConfiguration, parse_flag_from_env, set_seed
from datasets import Dataset, DatasetDict
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import Interrupted, on_signal
from ..files import check_unused, locked, whole_folder, write_json
from ..hub.model_card import source_metadata, write_model_card
from ..hub.publishing import open_repo, publish_model
from ..progress import inform, progress_bar
from .averaging import average_checkpoints
from .checkpoints import (
    Progress,
    TrainingState,
    checkpoint_step,
    is_scheduled,
    list_checkpoints,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
    save_model,
    save_validation,
)
from .checks import FAULTS, find_faults
from .cpu_memory import bound_kernel_caches, keep_freed_memory
from .data import load_pairs
from .evaluation import translate_and_score, validation_scores
from .model import check_trainable, fit_to_data, make_model, make_tokenizer, saved_model
from .optimization import adam
from .options import DataOptions, TrainingOptions, TranslationOptions
from .preprocessing import tokenize_training_pairs
from .recipe import choose_settings
from .results import plot, training_results
from .run_record import check_same_run, read_run, record_run, write_run
from .updates import Update, read_updates, take_update

logger = logging.getLogger(__name__)


def train_translation(
    data: DataOptions,
    training: TrainingOptions,
    options: TranslationOptions | None = None,
    overrides: dict | None = None,
) -> dict:
    """Train a translation model, and write what belongs to it to training.output_dir.

    What is not given is as in the paper if there is a preset, and otherwise chosen from the corpus and the machine, and
    printed (recipe.py).

    - `model/`: weights, code, tokenizer, generation configuration and model card; from_pretrained loads it anywhere.
    - `results.json`: what is returned. `loss.png`: loss, learning rate and validation BLEU over the steps.
    - `checkpoint-STEP/`: the last checkpoints, of which `model/` is the average. `best/`: the model whose validation
      BLEU was the highest.

    Args:
        overrides: fields of VanillaConfig that replace the preset's; vocab_size is the size of the vocabulary to train.

    Returns:
        What results.json holds: the scores on the test data if there are any ("bleu", "chrf", ...), on the validation
        data ("validation"), "train_seconds", "tokens_per_second", "parameters", the settings and the versions.

    Raises:
        ValueError: the data or the settings are bad, and nothing is written; or a loss or gradient is not finite.
        OSError: a file cannot be written.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; the update was finished and a checkpoint written.
    """
    group = process_group()
    has_accelerator = bool(AcceleratorState._shared_state)
    try:
        with locked("output_dir", Path(training.output_dir)) if group.is_main_process else nullcontext():
            return _train_translation(data, training, options or TranslationOptions(), overrides or {}, group)
    finally:
        if not has_accelerator:  # reset what this run set: the next one may have another precision
            AcceleratorState._reset_state()


def process_group() -> PartialState:
    """The processes that train together, and the device of this one."""
    # Without cpu= accelerate would take processes on CPUs for separate runs. The timeout is for the processes that wait
    # while the main one reads and tokenises a large corpus; NCCL's own 10 minutes are not enough.
    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=timedelta(hours=3))


def _train_translation(
    data: DataOptions, training: TrainingOptions, options: TranslationOptions, overrides: dict, group: PartialState
) -> dict:
    """Train in a folder that no other process uses; arguments and result are those of train_translation."""
    # Check what needs no data, as reading them may take long
    run = Path(training.output_dir)
    previous = read_run(run) if options.resume else None
    if previous is None:
        check_unused("output_dir", run)
    checkpoint = newest_checkpoint(run) if previous else None
    start = checkpoint or saved_model(options, overrides)
    installed = [str(name) for name in get_available_trackers()]
    if missing := [name for name in training.trackers() if name not in installed]:
        raise ValueError(f"report_to: {missing[0]!r} is no installed tracker of accelerate; {', '.join(installed)} is")
    if training.push_to_hub and group.is_main_process:
        open_repo(training.push_to_hub, training.hub_private_repo)

    # Read
    with group.main_process_first():
        pairs = load_pairs(data)
    training, options, overrides, reason = choose_settings(pairs, data, training, options, overrides, previous)
    if training.early_stopping is not None and "validation" not in pairs:
        raise ValueError(f"early_stopping {training.early_stopping}: there are no validation data")
    if checkpoint and (taken := checkpoint_step(checkpoint)) > training.max_steps:
        raise ValueError(f"max_steps {training.max_steps}: {run} has taken {taken} updates already")

    # Tokenise: the main process trains a tokenizer, the others receive it
    tokenizer = make_tokenizer(start, options, overrides, pairs["train"])
    with group.main_process_first():
        training_data, removed = tokenize_training_pairs(pairs["train"], tokenizer, data)
    record = record_run(data, training, options, overrides, training_data)
    if previous:
        check_same_run(run, previous, record)

    # Make the model
    set_seed(training.seed)
    model = make_model(start, options, overrides, tokenizer)
    check_trainable(model.config, tokenizer, training_data, pairs.get("validation"))
    fit_to_data(model.config, tokenizer, training_data, pairs["train"], data.source_lang)
    state = prepare(model, tokenizer, training, checkpoint)
    updates = read_updates(state, training_data)

    # Train: all is checked, so files of the run are written from here on
    if group.is_main_process:
        write_run(run, record)
        if checkpoint is None:
            tell_beginning(state, pairs, reason, removed)
        else:
            inform(f"goes on after update {state.progress.step}")
    group.wait_for_everyone()
    if options.model and "validation" in pairs and not state.progress.validations:
        validate(state, pairs["validation"])  # the scores before fine-tuning
    train(state, updates, pairs.get("validation"))

    # Average
    averaged = list_checkpoints(run)[-training.average_checkpoints :]
    model = average_checkpoints(averaged)[0].to(group.device).eval()
    group.wait_for_everyone()  # all have read the checkpoints
    results = {
        **training_results(state, model, training_data),
        "averaged_checkpoints": [checkpoint_step(folder) for folder in averaged],
        "removed": removed,
        "dataset": None if data.dataset_name is None or Path(data.dataset_name).exists() else data.dataset_name,
        "settings": record,
    }
    write_and_score(state, model, pairs, results)
    return results


def prepare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    training: TrainingOptions,
    checkpoint: Path | None = None,
) -> TrainingState:
    """Place the model on the devices, with its optimizer, as accelerate was told.

    Args:
        checkpoint: to go on from; the model has its weights.
    """
    accelerator = Accelerator(
        mixed_precision=training.mixed_precision,
        log_with=training.trackers() or None,
        project_config=ProjectConfiguration(logging_dir=str(Path(training.output_dir, "tensorboard"))),
    )
    if accelerator.device.type == "cpu":
        keep_freed_memory()
        bound_kernel_caches()
    model, optimizer = accelerator.prepare(model, adam(model))
    state = TrainingState(accelerator, model, optimizer, tokenizer, training, Progress())
    if checkpoint is not None:
        load_checkpoint(checkpoint, state)
    return state


def tell_beginning(state: TrainingState, pairs: DatasetDict, reason: str, removed: dict) -> None:
    """Print the recipe, a warning if the warm-up is too long, the pairs removed and the faults of the others."""
    training = state.training
    if reason:
        inform(reason)
    if training.warmup_steps > max(1, training.max_steps / 2):
        logger.warning(
            f"warmup_steps: the learning rate rises for {training.warmup_steps} of {training.max_steps} updates and "
            "hardly falls; set fewer"
        )
    if any(removed.values()):
        inform(f"removed from training: {removed}")
    for split, faults in find_faults(pairs).items():
        if faults:
            counts = "; ".join(f"{len(rows)} {FAULTS[fault]}" for fault, rows in faults.items())
            inform(f"{split}: {len(pairs[split])} pairs, {counts} (vanilla check shows them)")


def train(state: TrainingState, updates: Iterator[Update], validation: Dataset | None) -> None:
    """Take updates until max_steps or early_stopping ends the run; save and validate on the way.

    Before each validation there is a checkpoint, so that whatever happens in it costs no update.
    """
    accelerator, training, progress = state.accelerator, state.training, state.progress
    received = [0]  # the last is the signal received last, 0 before any
    model = torch.compile(state.model, dynamic=True) if training.compile else state.model
    tracked = {name: value for name, value in asdict(training).items() if value is not None}
    accelerator.init_trackers("modeling_vanilla", tracked)
    is_main, total = accelerator.is_main_process, training.max_steps
    seconds_before, tokens_before = progress.seconds, progress.tokens  # those of another start had another speed
    bar = progress_bar(desc="Training", unit=" updates", initial=progress.step, total=total, disable=not is_main)
    try:
        with on_signal(received.append), bar:
            while True:
                # At the top, so that a resumed run makes up for a validation that it missed.
                if validation is not None and is_validation_due(training, progress.step) and not progress.validated():
                    validate(state, validation)
                if progress.step >= training.max_steps or progress.stalled(training.early_stopping):
                    break
                start = time.monotonic()
                update = next(updates)
                figures = take_update(state, model, update)
                progress.add(figures["loss"], time.monotonic() - start, update.tokens, update.positions)
                speed = (progress.tokens - tokens_before) / (progress.seconds - seconds_before)
                accelerator.log({**figures, "tokens_per_second": speed}, step=progress.step)
                bar.set_postfix_str(f"smoothed loss {figures['loss']:.3f}, {speed:.0f} tokens/s", refresh=False)
                bar.update()
                is_due = validation is not None and is_validation_due(training, progress.step)
                signum = largest_of_processes(accelerator, received[-1])  # all stop if one was told to
                if is_due or signum or is_scheduled(training, progress.step):
                    save_checkpoint(state)
                if signum:
                    stop(state, signum)
    finally:
        for tracker in accelerator.trackers:  # end_training() would end the processes' group, too
            tracker.finish()


def largest_of_processes(accelerator: Accelerator, value: int) -> int:
    """The largest of the values that the processes give."""
    if accelerator.num_processes == 1:  # a GPU need not be waited for
        return value
    return int(accelerator.gather(torch.tensor([value], device=accelerator.device)).max())


def is_validation_due(training: TrainingOptions, step: int) -> bool:
    """Whether validate_steps divides the updates taken, or this was the last one."""
    return step == training.max_steps or (step > 0 and step % training.validate_steps == 0)


def validate(state: TrainingState, pairs: Dataset) -> None:
    """Validate, report the scores, and save the model in best/ if its BLEU is the best so far.

    A signal ends the run at once: the last checkpoint has all updates.
    """
    accelerator, training, progress = state.accelerator, state.training, state.progress
    with on_signal(partial(stop, state)):
        model = state.own_model.eval()
        with accelerator.autocast():
            scores = validation_scores(model, state.tokenizer, pairs, training)
        progress.validations.append({"step": progress.step, **scores})
        numbers = {f"validation_{name}": value for name, value in scores.items() if not isinstance(value, str)}
        accelerator.log(numbers, step=progress.step)
        if accelerator.is_main_process:
            loss, perplexity, bleu = (f"{scores[name]:.2f}" for name in ("loss", "perplexity", "bleu"))
            inform(f"step {progress.step}: validation loss {loss} (unsmoothed), perplexity {perplexity}, BLEU {bleu}")
            if progress.stalled(training.early_stopping):
                inform(f"early_stopping: no better BLEU in {training.early_stopping} validations, the run ends")
            if progress.best() is progress.validations[-1]:
                with whole_folder(state.run / "best") as part:
                    save_model(model, state.tokenizer, part)
            save_validation(state)
        accelerator.wait_for_everyone()


def stop(state: TrainingState, signum: int) -> NoReturn:
    """End the run at a signal."""
    name = signal.Signals(signum).name
    raise Interrupted(signum, f"{name}: stopped after update {state.progress.step} of {state.run}")


def write_and_score(state: TrainingState, model: PreTrainedModel, pairs: DatasetDict, results: dict) -> None:
    """Write the model, score it on validation and test data, and write the results with these scores."""
    run, training, tokenizer, is_main = state.run, state.training, state.tokenizer, state.accelerator.is_main_process
    made_from = results["settings"]["model"]["model"]
    source = source_metadata(made_from) if made_from else None
    if is_main:
        (run / "results.json").unlink(missing_ok=True)  # of an earlier model, which this one replaces
        with whole_folder(run / "model") as part:
            save_model(model, tokenizer, part)
            write_model_card(part, model, results, source)
    # The model is on the disk before the scoring, which may fail.
    with state.accelerator.autocast():
        if "validation" in pairs:
            results["validation"] = validation_scores(model, tokenizer, pairs["validation"], training)
        if "test" in pairs:
            results |= translate_and_score(model, tokenizer, pairs["test"], training, show_progress=True)
            results["test_sentences"] = len(pairs["test"])
    if is_main:
        write_model_card(run / "model", model, results, source)
        write_json(run / "results.json", results)
        plot(state, model.config.d_model)
        if training.push_to_hub:
            publish_model(run / "model", training.push_to_hub, private=training.hub_private_repo)
    state.accelerator.wait_for_everyone()
