"""Load a saved model with its tokenizer, or several models as an ensemble."""

import json
import os
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HTTPError, StrictDataclassError
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..configuration_vanilla import VanillaConfig, named_tokens
from ..errors import one_line
from ..modeling_vanilla import VanillaForConditionalGeneration
from ..weights_vanilla import check_weights, read_weights
from .ensemble import Ensemble
from .quantization import Int8Config

# Left open, trust_remote_code would make transformers ask on the terminal, and read the answer off the input.
_LOCAL = {"local_files_only": True, "trust_remote_code": False}
HUB_NAME = r"\w[\w.-]*/\w[\w.-]*"


def load_translator(
    folders: Sequence[str | Path],
    device: str | torch.device | None = None,
    dtype: torch.dtype | str = torch.float32,
    revision: str | None = None,
    int8: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer, or several models of one vocabulary as an `Ensemble`.

    Args:
        folders: what save_pretrained wrote, model and tokenizer in one folder each, or their names on the Hub.
        revision: of names on the Hub, as `model_folder` has it.
        device: such as "cuda:1", "mps" or "cpu"; None is the GPU where there is one, or else the CPU.
        int8: compute products in 8-bit integers, all else in 32 bits, as `Int8Config` has it: for a CPU alone.

    Raises:
        ValueError: for a folder that lacks the model or the tokenizer, whose weights do not fit or are not finite, or
            whose tokenizer does not fit the model; for models of different vocabularies; for int8 elsewhere than on a
            CPU or in 16 bits; and for a device that is not there or, like "meta", holds no values.
        PermissionError: for a file that may not be read.
    """
    if isinstance(folders, str | Path):
        raise ValueError(f"folders: a list of folders is needed, not one: {folders}")
    if device is None:
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    if str(device).startswith("meta"):
        raise ValueError(f"device: {device} holds no values to compute with")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: {device} cannot be used: {str(error).splitlines()[0]}") from error
    if int8 and not str(device).startswith("cpu"):
        raise ValueError(f"int8: it is for a CPU, not for the device {device}")
    paths = [model_folder(folder, revision) for folder in folders]
    tokenizers = [load_tokenizer(path) for path in paths]
    for folder, tokenizer in zip(folders[1:], tokenizers[1:], strict=True):
        if tokenizer.get_vocab() != tokenizers[0].get_vocab():
            raise ValueError(
                f"vocabulary: {folders[0]} and {folder} have different ones, "
                f"of {len(tokenizers[0])} and {len(tokenizer)} tokens"
            )
    models = [load_model(path, dtype, int8).to(device) for path in paths]  # type: ignore[arg-type]
    model = models[0] if len(models) == 1 else Ensemble(models)
    return model.eval(), tokenizers[0]


def model_folder(name: str | Path, revision: str | None = None) -> Path:
    """The folder of a model: the one of this name, or the copy of the model of this name on the Hub in the Hub's cache.

    Settings, tokenizer, weights in safetensors and card are downloaded where the cache lacks them: no code, no pickles.
    Where the first part of a name is a folder here, the name is meant as a path.

    Args:
        revision: a branch, a tag or a commit of the model on the Hub.

    Raises:
        ValueError: for a revision of a folder, or if neither folder nor Hub has the model, or the Hub is not reached.
    """
    path = Path(name)
    if path.exists() or path.parent.exists() or not re.fullmatch(HUB_NAME, path.as_posix()):
        if revision is not None:
            raise ValueError(f"revision {revision}: {name} is no name on the Hub")
        return path
    files = ["*.json", "*.safetensors", "README.md"]
    try:
        found = snapshot_download(path.as_posix(), revision=revision, allow_patterns=files, ignore_patterns="*/*")
        return Path(found)
    except (OSError, ValueError, HTTPError) as error:
        raise ValueError(f"model: there is no folder {name}, and none from the Hub: {one_line(error)}") from error


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder.

    Raises:
        ValueError: if the folder lacks it or its model, one of them is damaged, or they do not fit together.
        PermissionError: for a file that may not be read.
    """
    config = load_config(folder)
    tokenizer = load_vocabulary(folder)
    _check_vocabulary(folder, tokenizer, config)
    return tokenizer


def load_config(folder: Path) -> VanillaConfig:
    """The configuration of a model folder.

    Raises:
        ValueError: if it is missing, damaged, of another architecture, or too large for the weights.
        PermissionError: for a file that may not be read.
    """
    check_readable(folder)
    if not (folder / "config.json").is_file():
        better = folder / "model"  # of a run's folder
        hint = f"; did you mean {better}?" if (better / "config.json").is_file() else ""
        raise ValueError(f"model: {folder} is no model folder, as it has no config.json{hint}")
    try:
        config = AutoConfig.from_pretrained(folder, **_LOCAL)
    except (AttributeError, TypeError, ValueError, OSError, RecursionError, StrictDataclassError) as error:
        raise ValueError(f"model: {folder / 'config.json'} is bad: {one_line(error)}") from error
    if not isinstance(config, VanillaConfig):
        raise ValueError(f"model: {folder} is a {config.model_type}; vanilla convert may convert it")
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"model: {folder} has a quantization_config; weights of whole precision are needed")
    _check_size(folder, config)
    return config


def load_vocabulary(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder, whether there is a model or not.

    Raises:
        ValueError: if it is missing or damaged, or gives two tokens one id.
        PermissionError: for a file that may not be read.
    """
    check_readable(folder)
    if not (folder / "tokenizer_config.json").is_file():
        raise ValueError(f"tokenizer: {folder} has no tokenizer_config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **_LOCAL)
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(f"tokenizer: {folder} cannot be loaded: {one_line(error)}") from error
    tokens: dict[int, str] = {}
    for token, number in tokenizer.get_vocab().items():
        if number in tokens:
            raise ValueError(
                f"vocabulary: the tokenizer of {folder} has one id, {number}, for both {tokens[number]!r} and {token!r}"
            )
        tokens[number] = token
    return tokenizer


def _check_size(folder: Path, config: VanillaConfig) -> None:
    """Raise ValueError if a model of the configuration has more weights than the folder's files have bytes.

    Otherwise it would be made, in whatever time and memory that takes, before that is found out.
    """
    rows = config.vocab_size + (config.max_position_embeddings if config.position_embedding_type == "learned" else 0)
    for stack in ("encoder", "decoder"):
        layers, width, heads = (getattr(config, f"{stack}_{name}") for name in ("layers", "ffn_dim", "attention_heads"))
        rows += layers * (width + heads * sum(config.head_dims(heads)))
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    weights = rows * config.d_model
    if weights > size > 0:
        raise ValueError(
            f"model: {folder / 'config.json'} is of {weights} weights or more, beyond the {size} bytes there"
        )


def check_readable(folder: str | Path) -> None:
    """Raise PermissionError if a folder, or its weights or settings, may not be read; what is missing is no error here.

    safetensors calls such a file missing, and transformers takes defaults in place of some.
    """
    if os.path.isdir(folder):
        for entry in os.scandir(folder):
            if entry.name.endswith((".json", ".safetensors")) and entry.is_file():
                open(entry.path, "rb").close()


def _check_vocabulary(folder: Path, tokenizer: PreTrainedTokenizerBase, config: VanillaConfig) -> None:
    """Raise ValueError unless the model knows the id of each token, and the special ones are the model's.

    That two other tokens have changed places cannot be seen.
    """
    of = f"vocabulary: the tokenizer of {folder}"
    if len(tokenizer) > config.vocab_size:
        raise ValueError(f"{of} has {len(tokenizer)} tokens, the model {config.vocab_size}")
    vocabulary = tokenizer.get_vocab()
    token = max(vocabulary, key=vocabulary.__getitem__)
    if vocabulary[token] >= config.vocab_size:
        raise ValueError(f"{of} gives {token!r} the id {vocabulary[token]}, the model has {config.vocab_size} tokens")
    if (folder / "tokenizer.json").is_file():
        for entry in json.loads((folder / "tokenizer.json").read_bytes())["added_tokens"]:
            if vocabulary.get(entry["content"]) != entry["id"]:  # tokenizers takes the vocabulary's without a word
                actual = vocabulary.get(entry["content"])
                raise ValueError(f"{of} adds {entry['content']!r} as {entry['id']}, not {actual}")
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        ours, models = getattr(tokenizer, name), getattr(config, name)
        used = named_tokens(models)
        if ours is not None and used and ours not in used:
            raise ValueError(f"{of} has {name} {ours}, the model {models}")


def load_model(folder: Path, dtype: torch.dtype | str = torch.float32, int8: bool = False, **fields) -> PreTrainedModel:
    """The model of a folder, with these fields of its configuration changed.

    Raises:
        ValueError: if it is damaged, lacks weights or has some that are not finite, or a field has no such value.
    """
    check_no_adapter(folder)
    complaint = f"model: {folder} cannot be loaded"
    settings = _LOCAL | ({"quantization_config": Int8Config()} if int8 else {})
    return load_weights(VanillaForConditionalGeneration, folder, complaint, dtype=dtype, **settings, **fields)


def load_weights(cls: type[PreTrainedModel], path: str | PathLike, complaint: str, **settings) -> PreTrainedModel:
    """A model from safetensors alone, with all its weights, which are finite numbers.

    Args:
        complaint: how an error's message begins. settings: of from_pretrained.

    Raises:
        ValueError: if the weights are damaged, missing, of another shape, too many, integers, NaN or infinite.
    """
    settings |= {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # or transformers would report what is checked below, in many lines
    try:
        saved = read_weights(path)
        # Not the class's own from_pretrained: ours would check the weights before, and less.
        model, info = PreTrainedModel.from_pretrained.__func__(cls, path, **settings)  # type: ignore[attr-defined]
    except Exception as error:  # what a damaged folder of another package's model raises is not foreseen
        raise ValueError(f"{complaint}: {one_line(error)}") from error
    finally:
        logging.set_verbosity(verbosity)
    check_weights(saved or model.state_dict(), info, complaint)
    return model


def check_no_adapter(folder: Path) -> None:
    """Raise ValueError for an adapter of PEFT, which transformers would load without being asked."""
    if (folder / "adapter_config.json").exists():
        raise ValueError(f"model: {folder} holds an adapter, as it has adapter_config.json; merge it with peft first")
