"""Load a saved model with its tokenizer, or several models as an ensemble."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..modeling_vanilla import report_held_back
from .ensemble import Ensemble

# Left open, trust_remote_code would make transformers ask on the terminal, and read the answer off the input.
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


def load_translator(
    folders: Sequence[str | Path], device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer, or several models of one vocabulary as an `Ensemble`.

    Args:
        folders: what save_pretrained wrote, model and tokenizer in one folder each.

    Raises:
        ValueError: for a folder that lacks the model or the tokenizer, whose weights do not fit or are not finite, or
            whose tokenizer does not fit the model; for models of different vocabularies; and for a device that is not
            there or, like "meta", holds no values.
        PermissionError: for a file that may not be read.
    """
    if str(device).startswith("meta"):
        raise ValueError(f"device: {device} holds no values to compute with")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: {device} cannot be used: {str(error).splitlines()[0]}") from error
    tokenizers = [load_tokenizer(Path(folder)) for folder in folders]
    for folder, tokenizer in zip(folders[1:], tokenizers[1:], strict=True):
        if tokenizer.get_vocab() != tokenizers[0].get_vocab():
            raise ValueError(
                f"vocabulary: {folders[0]} and {folder} have different ones, "
                f"of {len(tokenizers[0])} and {len(tokenizer)} tokens"
            )
    models = [load_model(Path(folder), dtype) for folder in folders]
    model = models[0] if len(models) == 1 else Ensemble(models)
    return model.to(device).eval(), tokenizers[0]


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder.

    Raises:
        ValueError: if the folder lacks it or its model, one of them is damaged, or they do not fit together.
        PermissionError: for a file that may not be read.
    """
    check_readable(folder)
    for file, lacking in (("config.json", "no model folder"), ("tokenizer_config.json", "a model without a tokenizer")):
        if not (folder / file).is_file():
            raise ValueError(f"model: {folder} is {lacking}, as it has no {file}")
    try:
        config = AutoConfig.from_pretrained(folder, **_LOCAL)
    except (AttributeError, TypeError, ValueError, OSError, RecursionError, StrictDataclassError) as error:
        raise ValueError(f"model: {folder / 'config.json'} is bad: {_one_line(error)}") from error
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"model: {folder} has a quantization_config; weights of whole precision are needed")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **_LOCAL)
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(f"model: the tokenizer of {folder} cannot be loaded: {_one_line(error)}") from error
    _check_vocabulary(folder, tokenizer, config)
    return tokenizer


def check_readable(folder: str | Path) -> None:
    """Raise PermissionError if a folder, or its weights or settings, may not be read; what is missing is no error here.

    safetensors calls such a file missing, and transformers takes defaults in place of some.
    """
    if os.path.isdir(folder):
        for entry in os.scandir(folder):
            if entry.name.endswith((".json", ".safetensors")) and entry.is_file():
                open(entry.path, "rb").close()


def _check_vocabulary(folder: Path, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Raise ValueError unless each token has an id of its own, which the model knows, and the special ones the model's.

    That two other tokens have changed places cannot be seen.
    """
    of = f"vocabulary: the tokenizer of {folder}"
    if len(tokenizer) > config.vocab_size:
        raise ValueError(f"{of} has {len(tokenizer)} tokens, the model {config.vocab_size}")
    vocabulary, tokens = tokenizer.get_vocab(), {}
    for token, number in vocabulary.items():
        if number in tokens:
            raise ValueError(f"{of} has one id, {number}, for both {tokens[number]!r} and {token!r}")
        if number >= config.vocab_size:
            raise ValueError(f"{of} gives {token!r} the id {number}, the model has {config.vocab_size} tokens")
        tokens[number] = token
    if (folder / "tokenizer.json").is_file():
        for entry in json.loads((folder / "tokenizer.json").read_bytes())["added_tokens"]:
            if vocabulary.get(entry["content"]) != entry["id"]:  # tokenizers takes the vocabulary's without a word
                raise ValueError(f"{of} adds {entry['content']!r} as {entry['id']}, not {vocabulary[entry['content']]}")
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        ours, models = getattr(tokenizer, name), getattr(config, name)
        if None not in (ours, models) and ours not in (models if isinstance(models, list) else [models]):
            raise ValueError(f"{of} has {name} {ours}, the model {models}")


def check_finite(source: str | Path, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise ValueError if a weight, by its name, has a value that is NaN or infinite; `source` is named, too."""
    for name, value in weights:
        if value.is_floating_point() and value.numel() and not torch.stack(value.aminmax()).isfinite().all():
            raise ValueError(f"{source}: the weight {name} has values that are NaN or infinite")


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model of a folder; ValueError if it is damaged, lacks weights or has some that are not finite."""
    settings = {"dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True, **_LOCAL}
    with report_held_back():
        try:
            model, found = AutoModelForSeq2SeqLM.from_pretrained(folder, **settings)
        except ValueError as error:
            raise ValueError(f"model: {error}") from error
        except (AttributeError, RuntimeError, TypeError, SafetensorError) as error:  # of a model of another package
            raise ValueError(f"model: {folder} cannot be loaded: {_one_line(error)}") from error
        if found["mismatched_keys"]:
            name, saved, wanted = min(found["mismatched_keys"])
            raise ValueError(
                f"model: the weights of {folder} do not fit: {name} is {tuple(saved)}, by config.json {tuple(wanted)}"
            )
        if found["missing_keys"]:
            raise ValueError(f"model: the weights of {folder} lack {', '.join(sorted(found['missing_keys'])[:3])}")
    check_finite(f"model: {folder}", model.state_dict().items())
    return model


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
