"""What the exporters share: their options, what a library cannot express, and the tokenizer's files."""

import json
from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..files import read_json

POSITIONS, MOST_POSITIONS = 1024, 2**20  # rows of a table of sinusoids that is exported, by default and at most
QUANTIZATIONS = ("float32", "int8")  # how the matrices of an export are stored and multiplied


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer that transformers 4, 5 and transformers.js load: 5 has renamed its class and a field."""
    tokenizer.save_pretrained(folder)
    if type(tokenizer) is PreTrainedTokenizerFast:
        file = folder / "tokenizer_config.json"
        settings = read_json(file) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens", [])
        file.write_text(json.dumps(settings, indent=2), encoding="utf-8")


def check_positions(positions: int) -> None:
    """Raise ValueError unless a table of sinusoids, d_model floats for each position, can be of this length."""
    if not 1 <= positions <= MOST_POSITIONS:
        raise ValueError(f"positions must be from 1 to {MOST_POSITIONS}, not {positions}")


def check_quantization(quantization: str) -> None:
    """Raise ValueError unless this is one of QUANTIZATIONS."""
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization must be one of {', '.join(QUANTIZATIONS)}, not {quantization!r}")


def check_expressible(library: str, faults: Mapping[str, bool]) -> None:
    """Raise ValueError for the first fault that is true: a property of the model that the library does not have."""
    for fault, is_true in faults.items():
        if is_true:
            raise ValueError(f"{fault}: {library} cannot express this; export to onnx instead")
