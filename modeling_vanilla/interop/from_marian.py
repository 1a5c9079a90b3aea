"""MarianMT (the opus-mt models of Helsinki-NLP) as this package's model: the same numbers from the same weights.

Both are post-LN Transformers. Their sinusoids differ in the order of dimensions: Marian has all sines before all
cosines, the paper has them alternate. Nothing else depends on the order of d_model's dimensions, so every weight that
reads or writes the residual stream is reordered, once, and the model itself stays the paper's.
"""

import re
from os import PathLike

import torch
from transformers import MarianMTModel, PreTrainedTokenizerBase

from ..modeling_vanilla import VanillaForConditionalGeneration
from .weights import build, keep_search, load_source, load_source_tokenizer, same_fields

# Fields of MarianConfig that are True in the paper's model (3.4).
NEEDED = ("share_encoder_decoder_embeddings", "tie_word_embeddings", "scale_embedding")


def from_marian(path_or_model: str | PathLike | MarianMTModel) -> VanillaForConditionalGeneration:
    """The model whose logits are those of a MarianMT model, to the rounding of 32-bit floats.

    Positions are counted over real tokens, here as everywhere in this package: padding on the left, of which MarianMT
    counts every position, changes nothing.

    generate() searches by the rules of transformers, as MarianMT does (`length_penalty_type="length"`). Marian's
    generation configuration is kept (num_beams, length_penalty, bad_words_ids, token ids ...) without a num_beams of 1
    and without the limits: the output is at most `max_extra_tokens` (50) longer than the source. Layer dropout, which
    only training uses, is left out; label smoothing is this package's default.

    Args:
        path_or_model: a folder or a Hub id with weights in safetensors, or the model itself, which is not changed.

    Returns:
        The model in evaluation mode, with weights of its own, of the same dtype and on the same device.

    Raises:
        ValueError: if there is no MarianMT model, its weights are incomplete or pickled, or the paper's model cannot
            express it: embeddings that are not one matrix for source, target and output, or not scaled by
            sqrt(d_model).
    """
    marian = load_source(MarianMTModel, path_or_model)
    for field in NEEDED:
        if not getattr(marian.config, field):
            raise ValueError(f"{field} is False in this MarianMT model, and True in the paper's (3.4)")
    order = marian_order(marian.config.d_model)
    weights = {"encoder.embed_tokens.weight": marian.model.shared.weight[:, order]}
    weights["decoder.embed_tokens.weight"] = weights["encoder.embed_tokens.weight"]
    if marian.final_logits_bias.any():
        weights["decoder.output_projection.bias"] = marian.final_logits_bias[0]
    for name, weight in marian.model.state_dict().items():
        if ".layers." in name:
            weights[name] = reorder(name, weight, order)
    model = build(same_fields(marian.config), weights)
    model.generation_config = keep_search(marian.generation_config, model.config)
    return model


def marian_tokenizer(path: str | PathLike) -> PreTrainedTokenizerBase:
    """The tokenizer of a MarianMT model, as AutoTokenizer loads it; ValueError if there is none."""
    return load_source_tokenizer(path, "source.spm", "target.spm", "vocab.json")


def marian_order(d_model: int) -> torch.Tensor:
    """For each of our dimensions the one of Marian's. Its sines are our 0, 2, 4 ..., then come its cosines. (D,)"""
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2))).argsort()


def reorder(name: str, weight: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """A weight of a layer with the dimensions of the residual stream in another order.

    A projection that reads the stream has them as its columns; what adds to it or normalises it has them as its rows.
    """
    if re.search(r"\.(q_proj|k_proj|v_proj|fc1)\.", name):
        return weight[:, order] if name.endswith("weight") else weight
    return weight[order]
