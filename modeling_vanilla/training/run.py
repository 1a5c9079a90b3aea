"""A training run: read, tokenise, make a model, train it (train.py), average it, write it, score it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from time import monotonic

from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers
from accelerate.utils import ProjectConfiguration, parse_flag_from_env, set_seed
from datasets import DatasetDict
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..corpus.data import load_pairs
from ..corpus.options import DataOptions
from ..corpus.tokenized import TokenizedPairs, replayed, tokenize_training_pairs
from ..files import check_unused, locked, whole_folder, write_json
from ..hub.model_card import source_metadata, write_model_card
from ..hub.publishing import open_repo, publish_model
from ..inference import Translator
from ..inference.averaging import average_checkpoints
from ..loading import save_model
from ..metrics import translation_scores
from ..progress import inform
from .checkpoints import (
    Progress,
    checkpoint_step,
    is_scheduled,
    list_checkpoints,
    newest_checkpoint,
    read_moments,
    read_progress,
)
from .device import bound_kernel_caches, device_flops, keep_freed_memory
from .duration import measure_pace, with_length
from .model import check_trainable, fit_to_data, make_model, make_tokenizer, saved_model, spans_of
from .options import ModelOptions, TrainingOptions
from .recipe import RunOptions, complete_options
from .results import plot, training_results
from .run_record import check_same_run, digests_of_weights, is_begun, model_of_run, read_run, record_run, write_run
from .train import OPTIMIZERS, TrainingState, rate_of, read_updates, train, validate
from .validation import tell_changes, translate_all, validation_scores

logger = logging.getLogger(__name__)


def train_translation(
    data: DataOptions,
    training: TrainingOptions,
    options: ModelOptions | None = None,
    overrides: dict | None = None,
) -> dict:
    """Train a translation model, and write all that belongs to it to training.output_dir.

    Options that are not given are the paper's if there is a preset, and otherwise chosen from the corpus and the
    machine, and printed (recipe.py).

    - `model/`: weights, code, tokenizer, generation configuration and model card; from_pretrained loads it anywhere.
    - `results.json`: the return value. `loss.png`: loss, learning rate and validation BLEU over the steps.
    - `checkpoint-STEP/`: the last checkpoints, of which `model/` is the average. `best/`: the model whose validation
      BLEU was the highest.

    With old validation pairs `model/` is `best/`: of the models that are no worse on them, by more than chance, the one
    that is best on the new ones. Without one that is better than the model to start with, neither is written.

    Args:
        overrides: fields of VanillaConfig that replace the preset's; vocab_size is the size of the vocabulary to train.

    Returns:
        What results.json holds: the scores on the test data if there are any ("bleu", "chrf", ...), on the validation
        data ("validation"), "train_seconds", "tokens_per_second", "mfu" (on a GPU), "parameters", the options and the
        versions. With old validation pairs also "passed", whether there is a model; with "corrections", their number,
        how many "come_out" as corrected.

    Raises:
        ValueError: the data or the options are bad, and nothing is written; or a loss or gradient is not finite.
        OSError: a file cannot be written.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; the update was finished and a checkpoint written.
    """
    group = process_group()
    has_accelerator = bool(AcceleratorState._shared_state)
    try:
        with locked("output_dir", Path(training.output_dir)) if group.is_main_process else nullcontext():
            return _train_translation(data, RunOptions(training, options or ModelOptions(), overrides or {}), group)
    finally:
        if not has_accelerator:  # reset what this run set: the next one may have another precision
            AcceleratorState._reset_state()


def process_group() -> PartialState:
    """The processes that train together, and the device of this one."""
    # Without cpu= accelerate would take processes on CPUs for separate runs. The timeout is for the processes that wait
    # while the main one reads and tokenises a large corpus; NCCL's own 10 minutes are not enough.
    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=timedelta(hours=3))


def _train_translation(data: DataOptions, given: RunOptions, group: PartialState) -> dict:
    """Train in a folder that no other process uses; arguments and result are those of train_translation."""
    # Check what needs no data, as reading them may take long
    began, minutes = monotonic(), given.training.minutes
    given = replace(given, training=replace(given.training, minutes=None))  # the record has the updates instead
    run = Path(given.training.output_dir)
    given, previous, checkpoint = find_start(given, run)
    start = checkpoint or saved_model(given.model, given.overrides)
    installed = [str(name) for name in get_available_trackers()]
    if missing := [name for name in given.training.trackers() if name not in installed]:
        raise ValueError(f"report_to: {missing[0]!r} is no installed tracker of accelerate; {', '.join(installed)} is")
    if given.training.push_to_hub and group.is_main_process:
        open_repo(given.training.push_to_hub, given.training.hub_private_repo)

    # Read
    data = with_languages(data, previous, given.model)
    with group.main_process_first():
        pairs = load_pairs(data)

    def complete(given: RunOptions) -> RunOptions:
        return complete_options(pairs, data, given, start, previous)

    chosen = complete(given)
    check_splits(pairs, start, chosen.training.early_stopping)
    if checkpoint and (taken := checkpoint_step(checkpoint)) > (steps := chosen.training.max_steps):
        raise ValueError(f"max_steps {steps}: {run} has taken {taken} updates already")

    # Tokenise: the main process trains a tokenizer, the others receive it
    tokenizer = make_tokenizer(start, chosen.model, chosen.overrides, pairs["train"])
    with group.main_process_first():
        spans = spans_of(start, chosen.model)
        corpus = tokenize_training_pairs(pairs["train"], tokenizer, data, spans, pairs.get("replay"))

    # Make the model, and without a preset another one before it, for a trial
    def make_state(chosen: RunOptions) -> TrainingState:
        set_seed(chosen.training.seed)
        model = make_model(start, chosen.model, chosen.overrides, tokenizer)
        check_trainable(model.config, tokenizer, corpus, pairs)
        fit_to_data(model.config, tokenizer, corpus, data.source_lang)
        return prepare(model, tokenizer, chosen.training, checkpoint)

    if previous is None and (minutes or chosen.reason):
        pace = measure_pace(make_state(chosen), corpus, pairs)
        chosen = with_length(chosen, given, pace, pairs, complete, minutes and 60 * minutes + began - monotonic())
    training = chosen.training
    record = record_run(data, training, chosen.model, chosen.overrides, corpus)
    if previous:
        check_same_run(run, previous, record)
    record["pairs"]["weights"] = previous["pairs"].get("weights") if previous else digests_of_weights(start)
    state = make_state(chosen)

    # Train: all is checked, so files of the run are written from here on
    if group.is_main_process:
        write_run(run, record)
        if previous and checkpoint:
            inform(f"goes on after update {state.progress.step}")
            tell_new_schedule(previous, state)
        else:
            tell_beginning(training, chosen.reason, corpus)
    peak = device_flops(state.accelerator)
    group.wait_for_everyone()
    with trackers(state):
        if chosen.model.model and "validation" in pairs and not state.progress.validations:
            validate(state, pairs)  # the scores before fine-tuning
        train(state, read_updates(state, corpus), pairs)

    results = {
        **training_results(state, corpus, peak),
        "removed": corpus.removed,
        "dataset": None if data.dataset_name is None or Path(data.dataset_name).exists() else data.dataset_name,
        "settings": record,
    }
    write_and_score(state, pairs, results)
    return results


def check_splits(pairs: DatasetDict, start: Path | None, patience: int | None) -> None:
    """Raise ValueError for old pairs without a model that knows them, and what needs validation data without any."""
    if start is None and (old := [name for name in ("replay", "replay_validation") if name in pairs]):
        raise ValueError(f"{old[0]} data: old pairs need --model, which knows them")
    if "validation" not in pairs and patience is not None:
        raise ValueError(f"early_stopping {patience}: there are no validation data")
    if "validation" not in pairs and "replay_validation" in pairs:
        raise ValueError("replay_validation data: there are no validation data of the new pairs")


def gate_results(state: TrainingState) -> dict:
    """Whether a model passed the gate, and the scores of the best one that did, or else of the best one of all."""
    start, *others = state.progress.validations
    best = state.progress.best()
    passed = best is not start
    best = best if passed else max(others, key=lambda entry: entry["bleu"])
    if state.accelerator.is_main_process:
        end = "" if passed else ", but no model is better on the new pairs and no worse on the old: serve the old one"
        inform(f"the model of step {best['step']}{end}\n{tell_changes(best['changes'])}")
    return {"passed": passed, "validation": best}


def find_start(given: RunOptions, run: Path) -> tuple[RunOptions, dict | None, Path | None]:
    """The options with the model of a run that is resumed, its record and its newest checkpoint; else None.

    Raises:
        ValueError: a new run would write to a folder in use, or there is no run to resume.
    """
    if given.training.resume:
        previous = read_run(run)
        return replace(given, model=model_of_run(given.model, previous)), previous, newest_checkpoint(run)
    if is_begun(run):
        raise ValueError(f"output_dir: {run} holds a run; add --resume to go on with it, or choose another folder")
    check_unused("output_dir", run)
    return given, None, None


def with_languages(data: DataOptions, previous: dict | None, options: ModelOptions) -> DataOptions:
    """The data with the languages of the run that is resumed, or else of the columns that are read, if none are given.

    They stay None for text files, whose languages nobody has said, and for a saved model, which keeps its own.
    """
    was = previous["data"] if previous else {}
    source_lang, target_lang = data.source_lang or was.get("source_lang"), data.target_lang or was.get("target_lang")
    if options.model is None and data.has_columns:
        source_lang, target_lang = source_lang or data.languages[0], target_lang or data.languages[1]
    return replace(data, source_lang=source_lang, target_lang=target_lang)


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
    if accelerator.mixed_precision == "fp16" and not accelerator.native_amp:  # accelerate would compute in 32 bits
        raise ValueError(f"mixed_precision fp16: {accelerator.device} has none; bf16 may do")
    if accelerator.device.type == "cpu":
        keep_freed_memory()
        bound_kernel_caches()
    model, optimizer = accelerator.prepare(model, OPTIMIZERS[training.optim](model))
    progress = Progress() if checkpoint is None else read_progress(checkpoint)
    state = TrainingState(accelerator, model, optimizer, tokenizer, training, progress)
    if checkpoint is not None:
        inner = optimizer.optimizer
        names = {parameter: name for name, parameter in state.own_model.named_parameters()}
        moments = read_moments(checkpoint, [names[one] for group in inner.param_groups for one in group["params"]])
        inner.load_state_dict({"state": moments, "param_groups": inner.state_dict()["param_groups"]})
        if accelerator.scaler is not None and progress.scaler is not None:
            accelerator.scaler.load_state_dict(progress.scaler)
    return state


def tell_beginning(training: TrainingOptions, reason: str, corpus: TokenizedPairs) -> None:
    """Print the recipe, a warning if the warm-up is too long, the replay, and how many pairs were removed."""
    if reason:
        inform(reason)
    if training.warmup_steps > max(1, training.max_steps / 2):
        logger.warning(
            f"warmup_steps: the learning rate rises for {training.warmup_steps} of {training.max_steps} updates and "
            f"hardly falls; set fewer, and for a quick trial --tokens_per_update 1000 in place of "
            f"{training.tokens_per_update}"
        )
    if old := len(corpus.rows) - corpus.new:
        inform(f"an epoch has {corpus.new} new pairs and {replayed(corpus.new, old)} of {old} old ones")
    if any(corpus.removed.values()):
        inform(f"removed from training: {corpus.removed}; vanilla check shows faults of the others")


def tell_new_schedule(previous: dict, state: TrainingState) -> None:
    """Print what becomes of the rate and of the average if a run is resumed with another length or other checkpoints.

    Args:
        previous: the record of the run as it was begun.
    """
    training, step, was = state.training, state.progress.step, previous["training"]
    names = ("max_steps", "checkpoint_steps")
    changes = [f"{name} {now}, not {was[name]}" for name in names if (now := getattr(training, name)) != was[name]]
    if not changes:
        return
    rate = rate_of(training, state.own_model.config.d_model, step + 1)
    there = [checkpoint_step(folder) for folder in list_checkpoints(state.run)]
    due = [each for each in (*there, *range(step + 1, training.max_steps + 1)) if is_scheduled(training, each)]
    averaged = ", ".join(map(str, due[-training.average_checkpoints :]))
    line = f"{' and '.join(changes)}: the learning rate goes from {state.progress.rates[-1]:.2g} to {rate:.2g}"
    line += f"; model/ will be the mean of the checkpoints {averaged}"
    if dropped := ", ".join(str(each) for each in there if each not in due):
        line += f"; {dropped} of the old schedule will be deleted"
    inform(line)


@contextmanager
def trackers(state: TrainingState) -> Iterator[None]:
    """Start the trackers of the run, and finish them."""
    accelerator = state.accelerator
    tracked = {name: value for name, value in asdict(state.training).items() if value is not None}
    accelerator.init_trackers("modeling_vanilla", tracked)
    try:
        yield
    finally:
        for tracker in accelerator.trackers:  # end_training() would end the processes' group, too
            tracker.finish()


def write_and_score(state: TrainingState, pairs: DatasetDict, results: dict) -> None:
    """Write the model, score it on validation and test data, and write the results with these scores.

    It is the average of the last checkpoints. With old validation pairs it is the one that passed the gate, if one did.
    """
    run, training, tokenizer, is_main = state.run, state.training, state.tokenizer, state.accelerator.is_main_process
    averaged = list_checkpoints(run)[-training.average_checkpoints :]
    results["averaged_checkpoints"] = [checkpoint_step(folder) for folder in averaged]
    if "replay_validation" in pairs:
        results |= gate_results(state)
        averaged, results["averaged_checkpoints"] = [run / "best"], [results["validation"]["step"]]
        if not results["passed"]:
            if is_main:
                write_json(run / "results.json", results)
            return
    model = average_checkpoints(averaged)[0].to(state.accelerator.device).eval()
    state.accelerator.wait_for_everyone()  # all have read the checkpoints
    made_from = results["settings"]["model"]["model"]
    source = source_metadata(made_from) if made_from else None
    if is_main:
        (run / "results.json").unlink(missing_ok=True)  # of an earlier model, which this one replaces
        with whole_folder(run / "model") as part:
            save_model(model, tokenizer, part)
            write_model_card(part, model, results, source)
    # The model is on the disk before the scoring, which may fail.
    translator, how = Translator(model, tokenizer), (training.tokens_per_batch, training.bleu_tokenize)
    with state.accelerator.autocast():
        if "validation" in pairs and "passed" not in results:
            results["validation"] = validation_scores(translator, pairs["validation"], *how)
        if "test" in pairs:
            translations = translate_all(translator, pairs["test"], training.tokens_per_batch, show_progress=True)
            results |= translation_scores(translations, pairs["test"]["target"][:], training.bleu_tokenize)
            results["test_sentences"] = len(pairs["test"])
        if "corrections" in pairs:
            translations = translate_all(translator, pairs["corrections"], training.tokens_per_batch)
            results["corrections"] = len(translations)
            results["come_out"] = sum(map(str.__eq__, translations, pairs["corrections"]["target"][:]))
    if is_main:
        write_model_card(run / "model", model, results, source)
        write_json(run / "results.json", results)
        plot(state)
        if training.push_to_hub:
            publish_model(run / "model", training.push_to_hub, private=training.hub_private_repo)
    state.accelerator.wait_for_everyone()
