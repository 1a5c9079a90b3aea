"""What the exporters share: their options, refusals of what a library cannot express, and the tokenizer's files."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..files import read_json
from ..modeling_vanilla import VanillaForConditionalGeneration

POSITIONS = 1024  # rows of an exported table of sinusoids, by default
# What the exporters know of weights and of the configuration's fields; a new one needs a place in each of them first.
WEIGHTS = re.compile(
    r"lm_head\.(weight|bias)|model\.(encoder|decoder)\.(embed_(tokens|positions)\.weight|layers\.\d+\.("
    r"self_attn\.(qkv|out)_proj|cross_attn\.(q|kv|out)_proj|ffn\.fc[12]|(self_attn|cross_attn|ffn)_add_norm"
    r")\.(weight|bias))"
)
FIELDS = {f"{stack}_{of}" for stack in ("encoder", "decoder") for of in ("layers", "attention_heads", "ffn_dim")}
FIELDS |= {"vocab_size", "d_model", "d_k", "d_v", "activation_function", "layer_norm_eps", "attention_window"}
FIELDS |= {"position_embedding_type", "max_position_embeddings", "tie_word_embeddings", "attention_bias", "output_bias"}
FIELDS |= {"pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "use_cache"}
FIELDS |= {"dropout", "attention_dropout", "activation_dropout", "label_smoothing", "init_std"}
FIELDS |= {"max_source_tokens", "max_source_sentences", "source_lang", "auto_map"}


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer that transformers 4, 5 and transformers.js load: 5 has renamed its class and a field."""
    tokenizer.save_pretrained(folder)
    if type(tokenizer) is PreTrainedTokenizerFast:
        file = folder / "tokenizer_config.json"
        settings = read_json(file) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens", [])
        file.write_text(json.dumps(settings, indent=2), encoding="utf-8")


def check_expressible(library: str, model: VanillaForConditionalGeneration, faults: Mapping[str, bool]) -> None:
    """Raise ValueError for the first fault that is true: a property of the model that the library does not have.

    Weights that no exporter knows are such faults, and so are fields of the configuration, unless as by default.
    """
    config, default = model.config, type(model.config)()
    fields = vars(config).keys() - vars(PreTrainedConfig()) - FIELDS
    unknown = {f"the unknown weight {name}": not WEIGHTS.fullmatch(name) for name in model.state_dict()}
    for name in sorted(name for name in fields if name[0] != "_"):
        value = getattr(config, name)
        unknown[f"the unknown field {name} {value!r}"] = value != getattr(default, name, None)
    positions = config.position_embedding_type
    unknown[f"position_embedding_type {positions!r}"] = positions not in ("sinusoidal", "learned")
    for fault, is_true in {**unknown, **faults}.items():
        if is_true:
            raise ValueError(f"{fault}: {library} cannot express this; export to onnx instead")
