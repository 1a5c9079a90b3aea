"""What the exporters share: their options, refusals of what a library cannot express, and the tokenizer's files."""

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .. import loading
from ..configuration_vanilla import VanillaConfig
from ..files import read_json
from ..modeling_vanilla import VanillaForConditionalGeneration
from .weights import DECODER_LAYER, EMBEDDINGS, LAYER

POSITIONS = 1024  # rows of an exported table of sinusoids, by default
# The fields of VanillaConfig that the exporters know; a new one needs a place in each of them first.
FIELDS = {f"{stack}_{of}" for stack in ("encoder", "decoder") for of in ("layers", "attention_heads", "ffn_dim")}
FIELDS |= {"vocab_size", "d_model", "d_k", "d_v", "activation_function", "layer_norm_eps", "attention_window"}
FIELDS |= {"position_embedding_type", "max_position_embeddings", "tie_word_embeddings", "attention_bias", "output_bias"}
FIELDS |= {"pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "use_cache"}
FIELDS |= {"dropout", "attention_dropout", "activation_dropout", "label_smoothing", "init_std"}
FIELDS |= {"max_source_tokens", "max_source_sentences", "source_lang", "protected_spans", "auto_map", "model_type"}


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer that transformers 4, 5 and transformers.js load: 5 has renamed its class and a field."""
    loading.save_tokenizer(tokenizer, folder)
    if type(tokenizer) is PreTrainedTokenizerFast:
        file = folder / "tokenizer_config.json"
        config = read_json(file) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        config["additional_special_tokens"] = config.pop("extra_special_tokens", [])
        file.write_text(json.dumps(config, indent=2), encoding="utf-8")


def check_expressible(library: str, model: VanillaForConditionalGeneration, faults: Mapping[str, bool]) -> None:
    """Raise ValueError for the first fault that is true: a property of the model that the library does not have.

    Further faults are each field beyond FIELDS that is neither None nor False, whatever its default, and each weight
    that is missing or unknown (`known_weights`).
    """
    config, found, known = model.config, model.state_dict(), known_weights(model.config)
    unknown = {f"the unknown weight {name}": name not in known for name in found}
    unknown |= {f"the missing weight {name}": name not in found for name in sorted(known)}
    for name in sorted(vars(config).keys() - vars(PreTrainedConfig()) - FIELDS):
        value = getattr(config, name)
        unknown[f"the unknown field {name} {value!r}"] = name[0] != "_" and value is not None and value is not False
    positions = config.position_embedding_type
    unknown[f"position_embedding_type {positions!r}"] = positions not in ("sinusoidal", "learned")
    for fault, is_true in {**unknown, **faults}.items():
        if is_true:
            raise ValueError(f"{fault}: {library} cannot express this; export to onnx instead")


def known_weights(config: VanillaConfig) -> set[str]:
    """The names of the weights of a model of the repository's class."""
    names = {*EMBEDDINGS, *(["lm_head.bias"] if config.output_bias else [])}
    for stack, modules in (("encoder", LAYER), ("decoder", DECODER_LAYER)):
        if config.position_embedding_type == "learned":
            names.add(f"model.{stack}.embed_positions.weight")
        for layer, module in product(range(getattr(config, f"{stack}_layers")), modules):
            has_bias = config.attention_bias or "attn." not in module
            names |= {f"model.{stack}.layers.{layer}.{module}.{kind}" for kind in ("weight", "bias")[: 1 + has_bias]}
    return names
