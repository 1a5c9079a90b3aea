"""A model as a folder of CTranslate2, which translates fast on CPUs and GPUs, and with weights of 8 bits.

CTranslate2 has the post-LN Transformer. It is told four things: the table of positions, since its own sinusoid has all
sines before all cosines; the scale sqrt(d_model) of the embeddings; that nothing is normalised after a stack; and the
tokens.
"""

import math
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

import torch
from ctranslate2.specs.common_spec import Activation
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec
from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ..configuration_vanilla import VanillaConfig
from ..generation_vanilla import savable
from ..modeling_vanilla import VanillaForConditionalGeneration
from .exports import POSITIONS, check_expressible, save_tokenizer

ALIGNMENT_LAYER = 0
ACTIVATIONS = {"relu": Activation.RELU, "gelu": Activation.GELU, "gelu_new": Activation.GELUTanh}
ACTIVATIONS |= {"silu": Activation.SWISH, "swish": Activation.SWISH}

# Settings of generate() that the engine has (inference/ctranslate2.py), or that say how torch computes and what it
# returns; and those of samples that it lacks, which change no search.
_KNOWN = """num_beams length_penalty length_penalty_type early_stopping no_repeat_ngram_size bad_words_ids temperature
top_k max_extra_tokens max_new_tokens max_length num_return_sequences use_cache cache_implementation pad_token_id
bos_token_id renormalize_logits remove_invalid_values output_attentions output_hidden_states output_scores output_logits
return_dict_in_generate transformers_version"""
KNOWN = {*_KNOWN.split()}
OF_SAMPLES = {"top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"}


def to_ctranslate2(
    model: VanillaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    quantization: str = "float32",
    positions: int = POSITIONS,
) -> list[str]:
    """Write a model and its tokenizer to an existing folder, for ctranslate2.Translator.

    The tokens to give it are `tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)`, EOS included. Each call of
    `translate_batch` says how to search, not the folder; suppress_sequences is what generate() calls bad_words_ids.

    Args:
        quantization: how the matrices are stored and multiplied, as CTranslate2 names it: "float32", "int8" ...
        positions: rows of the table of sinusoids: the longest sequence that can be translated, in tokens.
            Learned positions have a table of their own.

    Returns:
        No line, as every setting is expressed; see `to_marian`.

    Raises:
        ValueError: if CTranslate2 cannot express the model or its search, or has no such quantization.
    """
    config = model.config
    heads = {config.encoder_attention_heads, config.decoder_attention_heads}
    faults = {
        f"attention_window {config.attention_window}": config.attention_window is not None,
        f"d_k {config.d_k} other than d_v {config.d_v}": any(len({*config.head_dims(number)}) > 1 for number in heads),
        f"activation_function {config.activation_function!r}": config.activation_function not in ACTIVATIONS,
        f"eos_token_id {config.eos_token_id}": not isinstance(config.eos_token_id, int),
    }
    check_expressible("CTranslate2", model, faults)
    check_generation_config(vars(model.generation_config), config)
    kinds = (TransformerEncoderSpec, TransformerDecoderSpec)
    encoder, decoder = (_stack_spec(model, kind, positions) for kind in kinds)
    _set_linear(decoder.projection, model.lm_head)
    spec = TransformerSpec(encoder, decoder)
    tokens = vocabulary(tokenizer, config.vocab_size)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token = tokens[config.bos_token_id or 0]
    spec.config.eos_token = tokens[config.eos_token_id]
    spec.config.unk_token = tokenizer.unk_token or tokens[0]
    spec.config.decoder_start_token = tokens[config.decoder_start_token_id]
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    spec.optimize(quantization=quantization)
    # CTranslate2 ignores what it does not know of config.json; `Translator.from_pretrained` reads it.
    for name, value in config.to_dict().items():
        if name != "auto_map":  # the code that it names is not in this folder
            spec.config.add_attribute(name, value)
    spec.save(str(folder))
    savable(model.generation_config).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return []


def check_generation_config(values: Mapping[str, Any], config: VanillaConfig) -> None:
    """Raise ValueError for a setting of generate() that the engine does not know, unless it is as by default."""
    defaults = {**GenerationConfig._get_default_generation_params(), "min_new_tokens": 0}
    defaults |= {name: getattr(config, name) for name in ("eos_token_id", "decoder_start_token_id")}
    # With beams, transformers scales log P, and CTranslate2 the logits; and it draws no samples.
    known = KNOWN | ({"repetition_penalty", "do_sample"} if values.get("num_beams") in (None, 1) else set())
    known |= set() if values.get("do_sample") else OF_SAMPLES
    for name, value in values.items():
        is_empty = value is None or value is False or (isinstance(value, Sized) and not len(value))
        is_default = name in defaults and value in (defaults[name], [defaults[name]])
        if name[0] != "_" and name not in known and not is_empty and not is_default:
            raise ValueError(f"{name} {value!r:.60}: the engine ctranslate2 has no such setting; the engine torch has")


def vocabulary(tokenizer: PreTrainedTokenizerBase, size: int) -> list[str]:
    """The tokens by their ids. The embedding may have more rows than the tokenizer has tokens."""
    names = {number: token for token, number in tokenizer.get_vocab().items()}
    return [names.get(number, f"<filler{number}>") for number in range(size)]


def _stack_spec(model: VanillaForConditionalGeneration, kind: type, positions: int):
    """The encoder or the decoder as CTranslate2 has it. What is fused in ours is fused there, too."""
    config, name = model.config, "encoder" if kind is TransformerEncoderSpec else "decoder"
    stack, heads = getattr(model.model, name), getattr(config, f"{name}_attention_heads")
    activation, d_k = ACTIVATIONS[config.activation_function], config.head_dims(heads)[0]
    # Of attention, CTranslate2 gives the mean over some heads of one layer, that of `Translator.align`.
    aligned = {"alignment_layer": ALIGNMENT_LAYER, "alignment_heads": heads} if name == "decoder" else {}
    spec = kind(len(stack.layers), heads, pre_norm=False, activation=activation, head_dim=d_k, **aligned)
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    embeddings.weight = _weight(stack.embed_tokens.weight)
    spec.scale_embeddings = math.sqrt(config.d_model)
    table = stack.embed_positions
    rows = table.weight if isinstance(table, nn.Embedding) else table(torch.arange(positions))
    spec.position_encodings.encodings = _weight(rows)
    for theirs, ours in zip(spec.layer, stack.layers, strict=True):
        blocks = [(theirs.self_attention, [ours.self_attn.qkv_proj, ours.self_attn.out_proj], ours.self_attn_add_norm)]
        if name == "decoder":
            projections = [ours.cross_attn.q_proj, ours.cross_attn.kv_proj, ours.cross_attn.out_proj]
            blocks.append((theirs.attention, projections, ours.cross_attn_add_norm))
        for attention, linears, norm in blocks:
            for linear_spec, linear in zip(attention.linear, linears, strict=True):
                _set_linear(linear_spec, linear)
            _set_norm(attention.layer_norm, norm)
        _set_linear(theirs.ffn.linear_0, ours.ffn.fc1)
        _set_linear(theirs.ffn.linear_1, ours.ffn.fc2)
        _set_norm(theirs.ffn.layer_norm, ours.ffn_add_norm)
    return spec


def _set_linear(spec, linear: nn.Linear) -> None:
    spec.weight = _weight(linear.weight)
    if linear.bias is not None:
        spec.bias = _weight(linear.bias)


def _set_norm(spec, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _weight(norm.weight), _weight(norm.bias)


def _weight(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().float().cpu().clone()  # CTranslate2 scales in place what it rounds to 8 bits
