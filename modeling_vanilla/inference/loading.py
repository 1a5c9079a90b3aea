"""Load a saved model with its tokenizer, or several models as an ensemble."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

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
        ValueError: for a folder that lacks the model or the tokenizer or whose weights do not fit, for models of
            different vocabularies, and for a device that is not there.
        PermissionError: for a file that may not be read.
    """
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
    models = [
        load_model(Path(folder), len(tokenizer), dtype) for folder, tokenizer in zip(folders, tokenizers, strict=True)
    ]
    model = models[0] if len(models) == 1 else Ensemble(models)
    return model.to(device).eval(), tokenizers[0]


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder; ValueError if the folder lacks it or its model, or one of them is damaged."""
    check_readable(folder)
    for file, lacking in (("config.json", "no model folder"), ("tokenizer_config.json", "a model without a tokenizer")):
        if not (folder / file).is_file():
            raise ValueError(f"model: {folder} is {lacking}, as it has no {file}")
    try:
        AutoConfig.from_pretrained(folder, **_LOCAL)
    except (TypeError, ValueError, OSError, StrictDataclassError) as error:
        raise ValueError(f"model: {folder / 'config.json'} is bad: {' '.join(str(error).split())}") from error
    try:
        return AutoTokenizer.from_pretrained(folder, **_LOCAL)
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(
            f"model: the tokenizer of {folder} cannot be loaded: {' '.join(str(error).split())}"
        ) from error


def check_readable(folder: str | Path) -> None:
    """Raise PermissionError if a folder, or its weights or settings, may not be read; what is missing is no error here.

    safetensors calls such a file missing, and transformers takes defaults in place of some.
    """
    if os.path.isdir(folder):
        for entry in os.scandir(folder):
            if entry.name.endswith((".json", ".safetensors")) and entry.is_file():
                open(entry.path, "rb").close()


def load_model(folder: Path, vocabulary: int, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model of a folder, for a tokenizer of so many tokens; ValueError if it is damaged or too small for them."""
    try:
        model, found = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype, output_loading_info=True, **_LOCAL)
    except ValueError as error:
        raise ValueError(f"model: {error}") from error
    except (RuntimeError, SafetensorError) as error:  # of a model of another package
        raise ValueError(f"model: the weights of {folder} cannot be loaded: {str(error).splitlines()[0]}") from error
    if found["missing_keys"]:
        raise ValueError(f"model: the weights of {folder} lack {', '.join(sorted(found['missing_keys'])[:3])}")
    if vocabulary > model.config.vocab_size:
        raise ValueError(
            f"vocabulary: the tokenizer of {folder} has {vocabulary} tokens, the model {model.config.vocab_size}"
        )
    return model
