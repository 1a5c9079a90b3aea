"""The whole way from sentence pairs to a model folder: read, tokenise, train, score on the test set, write."""

import json
import logging
import platform
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import cast

import numpy as np
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list, parse_flag_from_env, set_seed
from datasets import Dataset, DatasetDict
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..configuration_vanilla import PRESETS, VanillaConfig
from ..files import check_unused, locked, remove_litter, whole_folder, write_json
from ..hub.model_card import source_metadata, write_model_card
from ..inference.loading import load_config, load_model, load_tokenizer, load_vocabulary
from ..modeling_vanilla import VanillaForConditionalGeneration
from ..progress import inform
from ..visualization.curves import plot_run
from .batches import epoch_batches, update_batches
from .checkpoints import load_progress, newest_checkpoint, put_aside_damaged, save_model
from .checks import FAULTS, find_faults, findings
from .cost import measured_rate, training_cost
from .data import load_pairs
from .metrics import translation_scores
from .optimization import learning_rate
from .options import DataOptions, TrainingOptions, TranslationOptions, check_model_options
from .preprocessing import pair_lengths, tokenize_pairs, tokenize_training_pairs
from .resume import check_same_data, check_same_settings, data_digest, write_run
from .tokenizer import check_vocabulary, train_tokenizer, vocabulary_texts
from .trainer import Progress, train
from .validation import translate_together

logger = logging.getLogger(__name__)


def train_translation(
    data: DataOptions,
    training: TrainingOptions,
    options: TranslationOptions | None = None,
    overrides: dict | None = None,
) -> dict:
    """Train a translation model, and write what belongs to it to training.output_dir.

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
    options, overrides = options or TranslationOptions(), overrides or {}
    state = process_group()
    is_callers = bool(AcceleratorState._shared_state)
    try:
        with locked("output_dir", Path(training.output_dir)) if state.is_main_process else nullcontext():
            return _train_translation(data, training, options, overrides, state)
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
    settings = _settings(data, training, options, overrides)
    with state.main_process_first():
        checkpoint = _open_run(run, settings, options, state)
    check_model_options(options, overrides)
    if not (options.model or options.tokenizer):
        check_vocabulary(_vocabulary_size(options, overrides), options.tokenizer_algorithm)
    start_folder = options.model if checkpoint is None else str(checkpoint)
    with state.main_process_first():
        pairs = load_pairs(data)
    if training.early_stopping is not None and "validation" not in pairs:
        raise ValueError(f"early_stopping {training.early_stopping}: there are no validation data")
    set_seed(training.seed)
    tokenizer = _tokenizer(start_folder, options, overrides, pairs["train"])
    model = _model(start_folder, options, overrides, tokenizer)
    with state.main_process_first():
        training_data, removed = tokenize_training_pairs(pairs["train"], tokenizer, data)
    check_updates(training_data, training)
    check_positions(training_data, pairs.get("validation"), tokenizer, model.config)
    if checkpoint is None and state.is_main_process:
        report_faults(pairs, tokenizer)
    digest = data_digest(training_data)
    if options.resume:
        check_same_data(run, digest)
    if state.is_main_process:
        write_run(run, settings, digest)
        if removed["examples"]:
            inform(f"removed from training: {removed}")
        if start_folder is None and options.tokenizer is None:
            size = _vocabulary_size(options, overrides)
            if len(tokenizer) < size:
                inform(f"vocabulary: {len(tokenizer)} tokens, not {size}, as the training data yield no more")
    state.wait_for_everyone()

    progress = None if checkpoint is None else Progress(**load_progress(checkpoint))
    model, progress = train(model, tokenizer, training_data, pairs.get("validation"), training, progress)
    facts = {
        **_training_results(model, training_data, training, progress),
        "vocabulary": len(tokenizer),
        "removed": removed,
        "dataset": None if data.dataset_name is None or Path(data.dataset_name).exists() else data.dataset_name,
        "settings": settings,
    }
    results = {"test_sentences": 0, **facts}
    source = source_metadata(options.model) if options.model else None
    if state.is_main_process:
        _write_model(run, model, tokenizer, results, source)
    if "test" in pairs:  # the model is safe by now, whatever happens in the test
        tokens_per_batch = progress.tokens_per_batch or training.tokens_per_batch
        scores = _test_scores(model, tokenizer, pairs["test"], tokens_per_batch, training.bleu_tokenize)
        results = {**scores, **facts}
        if state.is_main_process:
            write_model_card(run / "model", model, results, source)
    if state.is_main_process:
        _write_results(run, model, results, progress, training)
    state.wait_for_everyone()
    return results


def _open_run(run: Path, settings: dict, options: TranslationOptions, state: PartialState) -> Path | None:
    """Check that the folder of a run may be written to; the checkpoint to resume from, if it is to be resumed."""
    if not options.resume:
        check_unused("output_dir", run)
        return None
    check_same_settings(run, settings)
    if state.is_main_process:
        remove_litter(run)
        for line in put_aside_damaged(run):
            logger.warning(line)
    return newest_checkpoint(run)


def check_updates(training_data: Dataset, training: TrainingOptions) -> None:
    """Raise ValueError if the data cannot be cut into batches and updates of the sizes asked for."""
    lengths = pair_lengths(training_data)
    batches = epoch_batches(*lengths, training.tokens_per_batch, training.seed, epoch=0)
    update_batches(batches, *lengths, training.tokens_per_update)


def check_positions(
    training_data: Dataset, validation: Dataset | None, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig
) -> None:
    """Raise ValueError if a pair has more tokens than the model has learned positions.

    Test sentences may have: they are translated in pieces.
    """
    if config.position_embedding_type != "learned":
        return
    splits = {"training": pair_lengths(training_data)}
    if validation is not None:
        splits["validation"] = pair_lengths(tokenize_pairs(validation, tokenizer))
    for split, lengths in splits.items():
        longest = np.maximum(*lengths)
        if longest.max() > config.max_position_embeddings:
            raise ValueError(
                f"{split} pair {longest.argmax() + 1} has {longest.max()} tokens, beyond max_position_embeddings "
                f"{config.max_position_embeddings}; set more of these, or a smaller max_source_tokens and "
                "max_target_tokens"
            )


def report_faults(pairs: DatasetDict, tokenizer: PreTrainedTokenizerBase) -> None:
    """Print a line for each split in which find_faults finds something."""
    for split, bits in find_faults(pairs, tokenizer).items():
        found = [f"{finding.total} {FAULTS[finding.fault]}" for finding in findings(bits)]
        if found:
            inform(f"{split}: {len(bits)} pairs, {'; '.join(found)} (vanilla check shows them)")


def _settings(data: DataOptions, training: TrainingOptions, options: TranslationOptions, overrides: dict) -> dict:
    """All options of a run but where it is written and whether it is resumed."""
    return {
        "data": asdict(data),
        "training": {name: value for name, value in asdict(training).items() if name != "output_dir"},
        "model": {name: value for name, value in asdict(options).items() if name != "resume"} | overrides,
    }


# Tokenizer and model


def _tokenizer(
    start_folder: str | None, options: TranslationOptions, overrides: dict, pairs: Dataset
) -> PreTrainedTokenizerBase:
    """The saved tokenizer, or one that the main process trains and gives to the others."""
    if start_folder is not None:
        return load_tokenizer(Path(start_folder))
    if options.tokenizer is not None:
        return load_vocabulary(Path(options.tokenizer))
    shared: list[PreTrainedTokenizerBase | None] = [None]
    if PartialState().is_main_process:
        size = _vocabulary_size(options, overrides)
        shared = [train_tokenizer(vocabulary_texts(pairs), vocab_size=size, algorithm=options.tokenizer_algorithm)]
    return broadcast_object_list(shared)[0]


def _vocabulary_size(options: TranslationOptions, overrides: dict) -> int:
    """The size asked for of a vocabulary to train."""
    return overrides.get("vocab_size", PRESETS[options.preset].get("vocab_size", VanillaConfig().vocab_size))


def _model(
    start_folder: str | None, options: TranslationOptions, overrides: dict, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    """The saved model, or a new one of the preset and the overrides, with the tokenizer's special tokens."""
    size = overrides.get("vocab_size", len(tokenizer)) if options.tokenizer else len(tokenizer)
    if start_folder is not None:
        size = load_config(Path(start_folder)).vocab_size
    if not len(tokenizer) == size > max(tokenizer.get_vocab().values()):
        raise ValueError(
            f"vocabulary: the tokenizer {options.tokenizer or start_folder} has {len(tokenizer)} tokens, "
            f"the model {start_folder or options.preset} has {size}"
        )
    if start_folder is not None:
        return _in_memory(load_model(Path(start_folder)))
    special = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.bos_token_id,
    }
    return VanillaForConditionalGeneration(VanillaConfig.preset(options.preset, **{**overrides, **special}))


def _in_memory(model: PreTrainedModel) -> PreTrainedModel:
    """Copy the weights out of the file that they are mapped from.

    There they start at any byte, and a CPU's matrix products round by where their factors start: a resumed run would
    differ from the uninterrupted one in the last bit.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


# Results

_MAIN_FIGURES = ("bleu", "chrf", "test_sentences", "steps", "train_seconds", "tokens_per_second", "parameters")


def summary(results: dict, run: str | Path) -> str:
    """The main figures of a run as JSON, and where the others and the model are."""
    figures = {name: results[name] for name in _MAIN_FIGURES if name in results}
    if results["validation"] is not None:
        figures["validation_bleu"] = results["validation"]["bleu"]
    shown = {name: round(value, 2) for name, value in figures.items()}
    paths = {"model": str(Path(run) / "model"), "results": str(Path(run) / "results.json")}
    return json.dumps({**shown, **paths}, indent=1, ensure_ascii=False)


def _test_scores(model: PreTrainedModel, tokenizer, test: Dataset, tokens_per_batch: int, bleu_tokenize: str) -> dict:
    """Scores on the test data, which nothing else reads."""
    precision = torch.bfloat16 if AcceleratorState().mixed_precision == "bf16" else None
    with torch.autocast(model.device.type, dtype=precision, enabled=precision is not None):
        translations = translate_together(model, tokenizer, test["source"][:], tokens_per_batch, show_progress=True)
    scores = translation_scores(translations, test["target"][:], bleu_tokenize)
    return {**scores, "test_sentences": len(test)}


def _training_results(
    model: PreTrainedModel, training_data: Dataset, training: TrainingOptions, progress: Progress
) -> dict:
    """What there is to report of the training itself."""
    return {
        "validation": progress.validations[-1] if progress.validations else None,
        "steps": progress.step,
        "train_seconds": round(progress.seconds, 1),
        "tokens": progress.tokens,
        "tokens_per_second": round(progress.tokens / progress.seconds, 1),
        "padding_share": round(1 - progress.tokens / progress.positions, 4),
        "averaged_checkpoints": progress.averaged,
        "cost": _cost(model, training_data, training, progress),
        "parameters": model.num_parameters(),
        "training_pairs": len(training_data),
        "device": str(model.device),
        "processes": PartialState().num_processes,
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "versions": {
            name: version(name) for name in ("torch", "transformers", "accelerate", "tokenizers", "sacrebleu")
        },
    }


def _cost(model: PreTrainedModel, training_data: Dataset, training: TrainingOptions, progress: Progress) -> dict:
    # Accelerate's precision, not the option: accelerate launch may have set it.
    precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(AcceleratorState().mixed_precision, torch.float32)
    rate = (training.sustained_tflops or 0) * 1e12 or measured_rate(model.device, precision)
    devices = PartialState().num_processes
    lengths = pair_lengths(training_data)
    return training_cost(cast(VanillaConfig, model.config), *lengths, progress.tokens, progress.seconds, devices, rate)


def _write_model(run: Path, model, tokenizer, results: dict, source: dict | None) -> None:
    with whole_folder(run / "model") as part:
        save_model(model, tokenizer, part)
        write_model_card(part, model, results, source)


def _write_results(run: Path, model, results: dict, progress: Progress, training: TrainingOptions) -> None:
    write_json(run / "results.json", results)
    rates = [
        learning_rate(step, model.config.d_model, training.warmup_steps, training.learning_rate_scale)
        for step in range(1, progress.step + 1)
    ]
    plot_run(progress.losses, rates, progress.validations, run / "loss.png")
