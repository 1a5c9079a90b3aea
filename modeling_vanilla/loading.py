"""Models and tokenizers: from folders and the Hub, and to folders."""

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HTTPError, StrictDataclassError
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME, logging

from .configuration_vanilla import VanillaConfig, token_ids
from .errors import one_line
from .files import read_json
from .modeling_vanilla import VanillaForConditionalGeneration

# Left open, trust_remote_code would make transformers ask on the terminal, and read the answer off the input.
_LOCAL = {"local_files_only": True, "trust_remote_code": False}
HUB_NAME = r"\w[\w.-]*/\w[\w.-]*"


def model_folder(name: str | Path, revision: str | None = None) -> Path:
    """The folder of this name, or else the Hub's model of this name in the Hub's cache.

    What the cache lacks is downloaded: configuration, tokenizer, weights in safetensors and card, no code, no pickles.
    A name whose first part is a folder here is a path.

    Args:
        revision: a branch, a tag or a commit of the model on the Hub.

    Raises:
        ValueError: for a revision of a folder, or if there is neither folder nor model, or the Hub is not reached.
    """
    path = Path(name)
    if path.exists() or path.parent.exists() or not re.fullmatch(HUB_NAME, path.as_posix()):
        if revision is not None:
            raise ValueError(f"revision {revision}: {name} is no name on the Hub")
        return path
    files = ["*.json", "*.safetensors", "README.md"]
    files += ["*.spm", "*.model", "*.txt"]  # of tokenizers
    files += ["model.bin"]  # of CTranslate2: no pickle
    try:
        found = snapshot_download(path.as_posix(), revision=revision, allow_patterns=files, ignore_patterns="*/*")
        return Path(found)
    except (OSError, ValueError, HTTPError) as error:
        raise ValueError(f"model: there is no folder {name}, and none from the Hub: {one_line(error)}") from error


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder.

    Raises:
        ValueError: if the folder lacks it or its model, one of them is damaged, or as check_vocabulary does.
    """
    config, tokenizer = load_config(folder), load_vocabulary(folder)
    check_vocabulary(tokenizer, config, f"of {folder}")
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, config: VanillaConfig, source: str) -> None:
    """Raise ValueError for a tokenizer that is not the model's, as its size or its special tokens tell.

    A model may have more tokens: a vocabulary that is padded to a multiple of up to 512 has at most 512 or twice the
    tokenizer's. Whether other tokens have changed places cannot be seen.

    Args:
        source: where the tokenizer is from, for the message.
    """
    of = f"vocabulary: the tokenizer {source}"
    size = 1 + max(tokenizer.get_vocab().values())
    if not size <= config.vocab_size <= 2 * max(size, 256):
        raise ValueError(f"{of} has ids for {size} tokens, the model {config.vocab_size}")
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        ours, models = getattr(tokenizer, name), getattr(config, name)
        used = token_ids(models)
        if ours is not None and used and ours not in used:
            raise ValueError(f"{of} has {name} {ours}, the model {models}")


def load_config(folder: Path) -> VanillaConfig:
    """The configuration of a model folder.

    Raises:
        ValueError: if it is missing, damaged or of another architecture.
    """
    check_search(folder)
    if not (folder / "config.json").is_file():
        better = folder / "model"  # of a run's folder
        hint = f"; did you mean {better}?" if (better / "config.json").is_file() else ""
        why = "has no config.json" if folder.is_dir() else "does not exist"
        raise ValueError(f"model: {folder} is no model folder, as it {why}{hint}")
    try:
        config = AutoConfig.from_pretrained(folder, **_LOCAL)
    except (AttributeError, TypeError, ValueError, OSError, RecursionError, StrictDataclassError) as error:
        raise ValueError(f"model: {folder / 'config.json'} is bad: {one_line(error)}") from error
    if not isinstance(config, VanillaConfig):
        raise ValueError(f"model: {folder} is a {config.model_type}; vanilla convert may convert it")
    return config


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer without the truncation and padding of its last call, which tokenizer.json would keep."""
    tokenizer("")  # a call without any
    tokenizer.save_pretrained(folder)


def load_vocabulary(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder, whether there is a model or not.

    Raises:
        ValueError: if it is missing or damaged.
    """
    if not (folder / "tokenizer_config.json").is_file():
        raise ValueError(f"tokenizer: {folder} has no tokenizer_config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **_LOCAL)
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(f"tokenizer: {folder} cannot be loaded: {one_line(error)}") from error
    for name in ("is_local", "local_files_only"):  # how it was read, which save_pretrained would write
        tokenizer.init_kwargs.pop(name, None)
    return tokenizer


def check_search(folder: str | Path) -> None:
    """Raise ValueError for a generation_config.json that cannot be read: transformers would search by default."""
    path = Path(folder, GENERATION_CONFIG_NAME)
    if path.exists():
        read_json(path)


def load_model(
    folder: Path, dtype: torch.dtype | str = torch.float32, config: VanillaConfig | None = None
) -> PreTrainedModel:
    """The model of a folder.

    Args:
        config: in place of the folder's own.

    Raises:
        ValueError: if it is damaged, is an adapter, lacks weights, or has some that are not finite.
    """
    if (folder / "adapter_config.json").exists():  # transformers would load the adapter without being asked
        raise ValueError(f"model: {folder} holds an adapter, as it has adapter_config.json; merge it with peft first")
    complaint = f"model: {folder} cannot be loaded"
    return load_weights(VanillaForConditionalGeneration, folder, complaint, dtype=dtype, config=config, **_LOCAL)


def load_weights(cls: type[PreTrainedModel], path: str | PathLike, complaint: str, **kwargs) -> PreTrainedModel:
    """A model from safetensors alone, with all its weights, all of them finite.

    Args:
        complaint: how an error's message begins. kwargs: of from_pretrained.

    Raises:
        ValueError: if the weights are damaged, or as `check_weights` does.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # transformers reports in many lines what is checked below
    try:
        model, info = cls.from_pretrained(path, use_safetensors=True, output_loading_info=True, **kwargs)
    except Exception as error:  # what a damaged folder of another package's model raises is not foreseen
        message = one_line(error)
        if "ignore_mismatched_sizes" in message:  # transformers points to its report
            message = "its weights are of other shapes than config.json says"
        raise ValueError(f"{complaint}: {message}") from error
    finally:
        logging.set_verbosity(verbosity)
    expected = model.state_dict()
    found = {name: weight for name, weight in expected.items() if name not in info["missing_keys"]}
    check_weights(found | dict.fromkeys(info["unexpected_keys"], torch.empty(0)), expected, complaint)
    return model


def check_weights(
    weights: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], source: object = ""
) -> None:
    """Raise a ValueError that names the weight unless all are there, with the shapes expected, and finite.

    Args:
        source: where the weights are from, for the message.
    """
    prefix = f"{source}: " if source else ""
    for names, what in ((expected.keys() - weights, "lack"), (weights.keys() - expected, "have, beyond the model's,")):
        if names:
            raise ValueError(f"{prefix}the weights {what} {', '.join(sorted(names)[:3])}")
    for name, weight in weights.items():
        if weight.shape != expected[name].shape:
            shapes = f"{tuple(weight.shape)}, not {tuple(expected[name].shape)}"
            raise ValueError(f"{prefix}the weight {name} is of shape {shapes}")
        if not weight.isfinite().all():
            raise ValueError(f"{prefix}the weight {name} has values that are NaN or infinite")


def save_model(model, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model folder: weights, code, configuration, generation configuration and tokenizer."""
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
