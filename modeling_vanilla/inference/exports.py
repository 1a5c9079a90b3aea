"""What the exporters share: their options, refusals of what a library cannot express, and the tokenizer's files."""

import json
from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..files import read_json

POSITIONS = 1024  # rows of an exported table of sinusoids, by default


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer that transformers 4, 5 and transformers.js load: 5 has renamed its class and a field."""
    tokenizer.save_pretrained(folder)
    if type(tokenizer) is PreTrainedTokenizerFast:
        file = folder / "tokenizer_config.json"
        settings = read_json(file) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens", [])
        file.write_text(json.dumps(settings, indent=2), encoding="utf-8")


def check_expressible(library: str, faults: Mapping[str, bool]) -> None:
    """Raise ValueError for the first fault that is true: a property of the model that the library does not have."""
    for fault, is_true in faults.items():
        if is_true:
            raise ValueError(f"{fault}: {library} cannot express this; export to onnx instead")
