"""From sentence pairs to a model folder that translates: data, vocabulary, model, training, test, results."""

import json
import platform
import time
from dataclasses import asdict, dataclass, field, make_dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list, parse_flag_from_env, set_seed
from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..configuration_vanilla import PRESETS, VanillaConfig
from ..hub.model_card import write_model_card
from ..io import check_unused, whole_folder, write_json
from ..modeling_vanilla import VanillaForConditionalGeneration
from ..visualization.curves import plot_run
from .checkpoints import load_progress, newest_checkpoint, save_model
from .cost import measured_rate, training_cost
from .data import DataOptions, digest, load_pairs, pair_lengths, token_batches, tokenize_training_pairs, update_batches
from .metrics import translation_scores
from .optimization import learning_rate
from .options import TrainingOptions
from .tokenizer import train_tokenizer
from .trainer import Progress, train
from .validation import translate_together


@dataclass
class TranslationOptions:
    """Which model to train and over which vocabulary."""

    preset: str = field(default="base", metadata={"help": f"The model: {', '.join(PRESETS)}."})
    model: str | None = field(
        default=None, metadata={"help": "A saved model folder to go on from, with its vocabulary, instead of a preset."}
    )
    tokenizer: str | None = field(
        default=None, metadata={"help": "A saved tokenizer to use instead of training one on the training data."}
    )
    tokenizer_algorithm: str = field(default="bpe", metadata={"help": "bpe or wordpiece, if one is trained."})
    resume: bool = field(default=False, metadata={"help": "Go on from the last checkpoint of output_dir."})


def _model_fields() -> list[tuple]:
    """The fields of VanillaConfig that shape a model; the rest transformers or the vocabulary decides."""
    own = VanillaConfig.__annotations__
    given = {
        "is_encoder_decoder",
        "use_cache",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        "decoder_start_token_id",
    }
    kinds = {"float | int": float, "int | None": int, "float | int | None": float}
    result = []
    for name, kind in own.items():
        if name not in given:
            kind = kinds.get(str(kind), kind)
            result.append((name, kind | None, field(default=None, metadata={"help": f"VanillaConfig.{name}."})))
    return result


# Every default is the preset's: None here means that it stands.
ModelOptions = make_dataclass("ModelOptions", _model_fields())
ModelOptions.__doc__ = "Fields of VanillaConfig to set otherwise than the preset does."


def train_translation(
    data: DataOptions,
    training: TrainingOptions,
    options: TranslationOptions | None = None,
    overrides: dict | None = None,
) -> dict:
    """Train a translation model and leave, under training.output_dir, all there is to know of it.

    - `model/`: weights, code, tokenizer, generation configuration and model card; from_pretrained loads it anywhere.
    - `results.json`: what is returned. `loss.png`: loss, learning rate and validation BLEU over the steps.
    - `checkpoint-STEP/`: the last checkpoints, of which `model/` is the average. `best/`: the model whose validation
      BLEU was the highest. `last-STEP/`: where the run stopped, if that was after the last checkpoint.

    Args:
        overrides: fields of VanillaConfig to set otherwise than the preset does; its vocab_size is the size of the
            vocabulary to train.

    Returns:
        What results.json holds: the scores on the test data if there are any ("bleu", "chrf", ...), on the validation
        data ("validation"), "train_seconds", "tokens_per_second", "parameters", the settings and the versions.

    Raises:
        ValueError: for bad data or settings, before anything is written.
        OSError: if a file cannot be written.
    """
    options = options or TranslationOptions()
    overrides = {name: value for name, value in (overrides or {}).items() if value is not None}
    run = Path(training.output_dir)
    settings = {
        "data": asdict(data),
        "training": {k: v for k, v in asdict(training).items() if k != "output_dir"},
        "model": {k: v for k, v in asdict(options).items() if k != "resume"} | overrides,
    }
    if options.resume:
        check_same_run(run, settings)
    else:
        check_unused("output_dir", run)
    check_model_options(options, overrides)

    # Unless told, accelerate would take processes on CPUs for as many runs of their own.
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
    with state.main_process_first():
        pairs = load_pairs(data)
    set_seed(training.seed)
    checkpoint = newest_checkpoint(run) if options.resume else None
    source = options.model if checkpoint is None else str(checkpoint)
    tokenizer = _tokenizer(source, options, overrides, pairs["train"])
    model = _model(source, options, overrides, tokenizer)
    with state.main_process_first():
        training_data, left_out = tokenize_training_pairs(pairs["train"], tokenizer, data)
    if left_out["empty"] or left_out["too_long"]:
        state.print(f"left out of training: {left_out}")
    check_updates(training_data, training)
    content = digest(training_data)
    if options.resume:
        check_same_data(run, content)
    if state.is_main_process:
        run.mkdir(parents=True, exist_ok=True)
        write_json(run / "run.json", {**settings, "training_data": content})
    state.wait_for_everyone()

    progress = None if checkpoint is None else Progress(**load_progress(checkpoint))
    start = time.monotonic()
    model, progress = train(model, tokenizer, training_data, pairs.get("validation"), training, progress)
    results = {
        **_scores(model, tokenizer, pairs, training),
        "validation": progress.validations[-1] if progress.validations else None,
        "example": (pairs.get("test") or pairs["train"])["source"][0],
        "steps": progress.step,
        "train_seconds": round(progress.seconds, 1),
        "total_seconds": round(time.monotonic() - start, 1),
        "tokens": progress.tokens,
        "tokens_per_second": round(progress.tokens / progress.seconds, 1),
        "padding_share": round(1 - progress.tokens / progress.positions, 4),
        "averaged_checkpoints": progress.averaged,
        "cost": _cost(model, training_data, training, progress),
        "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer),
        "training_pairs": len(training_data),
        "left_out": left_out,
        "settings": settings,
        "device": str(model.device),
        "processes": state.num_processes,
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
        "versions": {
            name: version(name) for name in ("torch", "transformers", "accelerate", "tokenizers", "sacrebleu")
        },
    }
    if state.is_main_process:
        _write_run(run, model, tokenizer, results, progress, training)
    state.wait_for_everyone()
    return results


def _cost(model, training_data: Dataset, training: TrainingOptions, progress: Progress) -> dict:
    # Not the option: accelerate launch may have said it instead.
    precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(AcceleratorState().mixed_precision, torch.float32)
    rate = (training.sustained_tflops or 0) * 1e12 or measured_rate(model.device, precision)
    devices = PartialState().num_processes
    lengths = pair_lengths(training_data)
    return training_cost(model.config, *lengths, progress.tokens, progress.seconds, devices, rate)


def check_model_options(options: TranslationOptions, overrides: dict) -> None:
    """Find fault with the model's settings before any data are read.

    Raises:
        ValueError: as VanillaConfig.preset does, or for a model folder that does not exist.
    """
    if options.model is None:
        # The vocabulary may still be small, and its special tokens must fit the smallest there can be.
        VanillaConfig.preset(options.preset, **overrides)
    else:
        if overrides:
            raise ValueError(f"model {options.model}: its {next(iter(overrides))} cannot be changed")
        if not (Path(options.model) / "config.json").is_file():
            raise ValueError(f"model: {options.model} is no model folder, as it has no config.json")


def check_updates(training_data: Dataset, training: TrainingOptions) -> None:
    """Raise ValueError if the data cannot be cut into the batches and updates asked for."""
    lengths = pair_lengths(training_data)
    batches = token_batches(*lengths, training.tokens_per_batch, training.seed, epoch=0)
    update_batches(batches, *lengths, training.tokens_per_update)


def check_same_run(run: Path, settings: dict) -> None:
    """Raise ValueError unless the run in this folder was started with the same settings."""
    path = run / "run.json"
    if not path.is_file():
        raise ValueError(f"resume: {run} holds no run, as it has no run.json")
    before = json.loads(path.read_text(encoding="utf-8"))
    # A longer run, or one that reports more often, is still the same one.
    free = (
        "max_steps",
        "max_minutes",
        "validate_steps",
        "early_stopping",
        "checkpoint_steps",
        "checkpoint_minutes",
        "keep_checkpoints",
        "average_checkpoints",
        "data_workers",
        "sustained_tflops",
    )
    for part, values in settings.items():
        for name in {**before[part], **values}:
            was, now = before[part].get(name), values.get(name)
            if was != now and name not in free:
                raise ValueError(f"resume: {run} was started with {name} {was!r}, not {now!r}")


def check_same_data(run: Path, content: str) -> None:
    """Raise ValueError unless the run in this folder was started with training data of the same digest."""
    before = json.loads((run / "run.json").read_text(encoding="utf-8")).get("training_data")
    if before != content:
        raise ValueError(f"resume: {run} was started with other training data (digest {before}, not {content})")


def _tokenizer(
    source: str | None, options: TranslationOptions, overrides: dict, pairs: Dataset
) -> PreTrainedTokenizerBase:
    folder = options.tokenizer or source
    if folder is not None:
        if not (Path(folder) / "tokenizer_config.json").is_file():
            raise ValueError(f"tokenizer: {folder} has no tokenizer_config.json")
        return AutoTokenizer.from_pretrained(folder)
    shared = [_new_tokenizer(options, overrides, pairs) if PartialState().is_main_process else None]
    return broadcast_object_list(shared)[0]


def _new_tokenizer(options: TranslationOptions, overrides: dict, pairs: Dataset) -> PreTrainedTokenizerBase:
    texts = (text for rows in pairs.iter(1000) for side in ("source", "target") for text in rows[side])
    size = overrides.get("vocab_size", PRESETS[options.preset].get("vocab_size", VanillaConfig().vocab_size))
    return train_tokenizer(texts, vocab_size=size, algorithm=options.tokenizer_algorithm)


def _model(source, options, overrides, tokenizer) -> VanillaForConditionalGeneration:
    if source is not None:
        size = VanillaConfig.from_pretrained(source).vocab_size
        if size != len(tokenizer):
            raise ValueError(f"vocabulary: the tokenizer has {len(tokenizer)} tokens, the model {source} has {size}")
        return _in_memory(VanillaForConditionalGeneration.from_pretrained(source, dtype=torch.float32))
    if options.tokenizer is not None and overrides.get("vocab_size", len(tokenizer)) != len(tokenizer):
        raise ValueError(
            f"vocabulary: the tokenizer {options.tokenizer} has {len(tokenizer)} tokens, "
            f"vocab_size is {overrides['vocab_size']}"
        )
    special = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.bos_token_id,
    }
    return VanillaForConditionalGeneration(VanillaConfig.preset(options.preset, **{**overrides, **special}))


def _in_memory(model: PreTrainedModel) -> PreTrainedModel:
    """The weights copied out of the file that they are mapped from.

    There they start at any byte, and a CPU's matrix products round by where their factors start: a resumed run would
    differ from the uninterrupted one in the last bit.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


def _scores(model: PreTrainedModel, tokenizer, pairs: DatasetDict, training: TrainingOptions) -> dict:
    """Scores on the test data, which is read here and nowhere else."""
    test = pairs.get("test")
    if test is None:
        return {"test_sentences": 0}
    precision = torch.bfloat16 if AcceleratorState().mixed_precision == "bf16" else None
    with torch.autocast(model.device.type, dtype=precision, enabled=precision is not None):
        translations = translate_together(model, tokenizer, test["source"][:], show_progress=True)
    scores = translation_scores(translations, test["target"][:], tokenize=training.bleu_tokenize)
    return {**scores, "test_sentences": len(test)}


def _write_run(run: Path, model, tokenizer, results: dict, progress: Progress, training: TrainingOptions) -> None:
    with whole_folder(run / "model") as part:
        save_model(model, tokenizer, part)
        write_model_card(part, model.config, results)
    write_json(run / "results.json", results)
    rates = [
        learning_rate(step, model.config.d_model, training.warmup_steps, training.learning_rate_scale)
        for step in np.arange(1, progress.step + 1).tolist()
    ]
    plot_run(progress.losses, rates, progress.validations, run / "loss.png")
