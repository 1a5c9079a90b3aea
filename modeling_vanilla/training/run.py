"""The whole way from sentence pairs to a model folder: read, tokenise, train, score on the test set, write."""

import logging
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers
from accelerate.utils import parse_flag_from_env, set_seed
from datasets import DatasetDict
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..files import check_unused, locked, whole_folder
from ..hub.model_card import source_metadata, write_model_card
from ..hub.publishing import open_repo, publish_best, publish_model
from ..progress import inform
from .checkpoints import Progress, checkpoint_step, follow_schedule, newest_checkpoint, put_aside_damaged, save_model
from .checks import FAULTS, find_faults, findings
from .data import load_pairs
from .model import (
    check_model_options,
    check_positions,
    make_model,
    make_tokenizer,
    record_sources,
    vocabulary_size,
)
from .options import DataOptions, TrainingOptions, TranslationOptions
from .preprocessing import tokenize_training_pairs
from .recipe import choose_recipe, complete
from .results import score_test, training_results, write_results
from .resume import check_same_data, check_same_settings, data_digest, started_with, write_run
from .trainer import train
from .validation import validate

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
      BLEU was the highest. `last-STEP/`: where the run stopped, if that was after the last checkpoint.

    Args:
        overrides: fields of VanillaConfig that replace the preset's; vocab_size is the size of the vocabulary to train.

    Returns:
        What results.json holds: the scores on the test data if there are any ("bleu", "chrf", ...), on the validation
        data ("validation"), "train_seconds", "tokens_per_second", "parameters", the settings and the versions.

    Raises:
        ValueError: for bad data or settings, before anything is written.
        OSError: if a file cannot be written.
    """
    state = process_group()
    is_callers = bool(AcceleratorState._shared_state)
    try:
        with locked("output_dir", Path(training.output_dir)) if state.is_main_process else nullcontext():
            return _train_translation(data, training, options or TranslationOptions(), overrides or {}, state)
    finally:
        if not is_callers:  # or the next training of this process would have the precision of this one
            AcceleratorState._reset_state()


def process_group() -> PartialState:
    """The processes that train together, and the device of this one."""
    # Without the first argument accelerate would take processes on CPUs for as many separate runs. The others wait
    # while the main one reads and tokenises a large corpus, for which NCCL's own 10 minutes are not enough.
    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=timedelta(hours=3))


def _train_translation(
    data: DataOptions, training: TrainingOptions, options: TranslationOptions, overrides: dict, state: PartialState
) -> dict:
    """As train_translation, of a run that no other process holds."""
    run = Path(training.output_dir)
    before = started_with(run) if options.resume else None
    if before is None:
        check_unused("output_dir", run)
    saved = check_model_options(options, overrides)
    check_trackers(training.trackers())
    if training.push_to_hub and state.is_main_process:
        open_repo(training.push_to_hub, training.hub_private_repo)
    with state.main_process_first():
        pairs = load_pairs(data)
    validation = pairs.get("validation")
    training, options, overrides, reason = _decide(data, training, options, overrides, pairs, before)
    if training.early_stopping is not None and validation is None:
        raise ValueError(f"early_stopping {training.early_stopping}: there are no validation data")
    settings = _settings(data, training, options, overrides)
    with state.main_process_first():
        checkpoint = _open_run(run, before, settings, training, state) if before else None
    set_seed(training.seed)
    folder = checkpoint or saved
    size = vocabulary_size(options, overrides)
    tokenizer = make_tokenizer(folder, options, size, pairs["train"])
    model = make_model(folder, options, overrides, tokenizer)
    with state.main_process_first():
        training_data, removed = tokenize_training_pairs(pairs["train"], tokenizer, data)
    check_positions(training_data, validation, tokenizer, model.config)
    record_sources(model.config, training_data, pairs["train"])
    digest = data_digest(training_data)
    if before:
        check_same_data(run, before, digest)

    def begin() -> None:
        state.wait_for_everyone()  # all have read the checkpoint, which may get another name
        if state.is_main_process:
            follow_schedule(run, training.is_scheduled)
            write_run(run, settings, digest)
            if reason:
                inform(reason)
            if removed["examples"]:
                inform(f"removed from training: {removed}")
            if checkpoint is None:
                report_data(pairs, tokenizer, size)
        state.wait_for_everyone()

    to_improve = options.model is not None
    on_best = partial(_publish_best, training)
    model, progress = train(
        model, tokenizer, training_data, validation, training, checkpoint, to_improve, begin, on_best
    )
    if to_improve and state.is_main_process:
        warn_if_worse(progress)
    results = {
        "test_sentences": 0,
        "validation": None,
        **training_results(model, training_data, training, progress),
        "vocabulary": len(tokenizer),
        "removed": removed,
        "dataset": None if data.dataset_name is None or Path(data.dataset_name).exists() else data.dataset_name,
        "settings": settings,
    }
    source = source_metadata(options.model) if options.model else None
    _conclude(model, tokenizer, pairs, training, progress, results, source)
    return results


def _conclude(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: DatasetDict,
    training: TrainingOptions,
    progress: Progress,
    results: dict,
    source: dict | None,
) -> None:
    """Write the model, score it on the validation and test data, and write the results, to which its scores are added.

    Args:
        source: of a model that was fine-tuned, what its card says of it.
    """
    run, state = Path(training.output_dir), PartialState()
    if state.is_main_process:
        (run / "results.json").unlink(missing_ok=True)  # of the model whose place this one takes
        with whole_folder(run / "model") as part:
            save_model(model, tokenizer, part)
            write_model_card(part, model, results, source)
    # the model is safe by now, whatever happens in the scoring
    scoring = (progress.tokens_per_batch or training.tokens_per_batch, training.bleu_tokenize)
    if "validation" in pairs:
        results["validation"] = validate(model, tokenizer, pairs["validation"], *scoring)
    if "test" in pairs:
        results |= score_test(model, tokenizer, pairs["test"], *scoring)
        if state.is_main_process:
            write_model_card(run / "model", model, results, source)
    if state.is_main_process:
        write_results(run, model.config.d_model, results, progress, training)
        if training.push_to_hub:
            publish_model(run / "model", training.push_to_hub, run / "results.json", private=training.hub_private_repo)
    state.wait_for_everyone()


def _decide(
    data: DataOptions,
    training: TrainingOptions,
    options: TranslationOptions,
    overrides: dict,
    pairs: DatasetDict,
    before: dict | None,
) -> tuple[TrainingOptions, TranslationOptions, dict, str]:
    """Training, options and overrides with what is not given, and what to say of a recipe that was chosen.

    Args:
        before: the settings of a run that is resumed, which goes on with them.
    """
    chosen, reason = {}, ""
    if before is not None:
        chosen = before["training"] | before["model"]
    elif options.preset is None:
        given = {name: value for part in (data, training, options) for name, value in asdict(part).items()}
        decided = {name: value for name, value in given.items() if value is not None} | overrides
        chosen, reason = choose_recipe(pairs, decided)
        reason += f"\nrecipe: {' '.join(f'--{name} {value}' for name, value in chosen.items() if value is not None)}"
    if options.preset is None and options.model is None:
        options = replace(options, preset=chosen["preset"])
        overrides = {name: chosen[name] for name in ("dropout", "vocab_size") if name in chosen} | overrides
    return complete(training, chosen), options, overrides, reason


def _settings(data: DataOptions, training: TrainingOptions, options: TranslationOptions, overrides: dict) -> dict:
    """All options of a run but where it is written and whether it is resumed."""
    return {
        "data": asdict(data),
        "training": {name: value for name, value in asdict(training).items() if name != "output_dir"},
        "model": {name: value for name, value in asdict(options).items() if name != "resume"} | overrides,
    }


def _open_run(run: Path, before: dict, settings: dict, training: TrainingOptions, state: PartialState) -> Path | None:
    """The checkpoint to resume a run from, if there is one, once the run is found to be the same and tidied up."""
    check_same_settings(run, before, settings)
    if state.is_main_process:
        for line in put_aside_damaged(run):
            logger.warning(line)
    checkpoint = newest_checkpoint(run)
    if checkpoint and (taken := checkpoint_step(checkpoint)) > training.max_steps:
        raise ValueError(f"max_steps {training.max_steps}: {run} has taken {taken} updates already")
    return checkpoint


def check_trackers(names: list[str]) -> None:
    """Raise ValueError unless accelerate has these trackers, and their packages are installed."""
    there = [str(name) for name in get_available_trackers()]
    for name in names:
        if name not in there:
            raise ValueError(f"report_to: {name!r} is no installed tracker of accelerate; {', '.join(there)} is")


def _publish_best(training: TrainingOptions, folder: Path) -> None:
    """Publish the best model so far, if the model is to be published. If that fails, the training goes on."""
    if training.push_to_hub:
        try:
            publish_best(folder, training.push_to_hub)
        except OSError as error:
            logger.warning(str(error))


def warn_if_worse(progress: Progress) -> None:
    """Say what fine-tuning has made of the model, if that may be worse than it was."""
    if not progress.validations:
        logger.warning("model: without validation data nothing tells whether it has become better or worse")
    elif progress.validations[-1]["bleu"] < progress.validations[0]["bleu"]:
        bleus = " to ".join(f"{progress.validations[index]['bleu']:.2f}" for index in (0, -1))
        logger.warning(f"model: its validation BLEU fell from {bleus}; take best/, or lower learning_rate")


def report_data(pairs: DatasetDict, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Print a line if the vocabulary is below `size`, and for each split in which find_faults finds something."""
    if len(tokenizer) < size:
        inform(f"vocabulary: {len(tokenizer)} tokens, not {size}, as the training data yield no more")
    for split, faults in find_faults(pairs, tokenizer).items():
        said = [f"{finding.total} {FAULTS[finding.fault]}" for finding in findings(faults)]
        if said:
            inform(f"{split}: {len(faults)} pairs, {'; '.join(said)} (vanilla check --tokenizer shows them)")
