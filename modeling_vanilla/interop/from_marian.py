"""MarianMT (the opus-mt models of Helsinki-NLP) as this package's model: the same numbers from the same weights.

Both are post-LN Transformers. They differ in where the sinusoid lies: Marian has all sines, then all cosines, where the
paper has them by turns. Nothing else depends on the order of d_model's dimensions, so every weight that reads or writes
the residual stream is reordered, once, and the model itself stays the paper's.
"""

import re
from os import PathLike
from pathlib import Path

import torch
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer, MarianMTModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import is_sentencepiece_available

from ..layers_vanilla import SinusoidalPositions
from ..modeling_vanilla import VanillaForConditionalGeneration
from .weights import build, keep_search, load_source, read_config, same_fields


def from_marian(path_or_model: str | PathLike | MarianMTModel) -> VanillaForConditionalGeneration:
    """The model whose logits are those of a MarianMT model, to the rounding of 32-bit floats.

    Positions are counted over real tokens, here as everywhere in this package: padding on the left, of which MarianMT
    counts every position, changes nothing.

    generate() searches by the rules of transformers, as MarianMT does (`length_penalty_type="length"`). Of Marian's
    generation configuration everything is kept (num_beams, length_penalty, bad_words_ids, token ids ...) but a
    num_beams of 1 and the limits: the output is at most `max_extra_tokens` (50) longer than the source. Layer dropout,
    which only training knows, is left out; label smoothing is this package's default.

    Args:
        path_or_model: a folder or a Hub id with weights in safetensors, or the model itself, which is not changed.

    Returns:
        The model in evaluation mode, with weights of its own, of the same type and on the same device.

    Raises:
        ValueError: if there is no MarianMT model, its weights are incomplete or pickled, or it is one that the paper's
            model cannot be: embeddings that are not one matrix for source, target and output, or not scaled by
            sqrt(d_model), or positions that are no sinusoid.
    """
    marian = load_source(MarianMTModel, path_or_model, "from_marian", "MarianMT")
    _check(marian)
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
    """The tokenizer of a MarianMT model: AutoTokenizer's, as it is, or the folder's tokenizer.json if that is all.

    In the second case the special tokens are those of config.json, and EOS is appended if the file itself appends
    nothing: every MarianMT model reads its source up to EOS.

    Raises:
        ValueError: if there is none, or it needs the sentencepiece package, which is not installed.
    """
    file = Path(path, "tokenizer.json")
    try:
        if file.is_file() and not file.with_name("tokenizer_config.json").is_file():
            return _wrap(Tokenizer.from_file(str(file)), read_config(path))
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # tokenizers raises nothing more special
        missing = "MarianTokenizer needs the package sentencepiece, which is not installed"
        reason = error if is_sentencepiece_available() else missing
        raise ValueError(f"{path}: no tokenizer could be loaded: {reason}") from error


def _check(marian: MarianMTModel) -> None:
    """Raise ValueError if the paper's model cannot be this one."""
    for field, paper in (
        ("share_encoder_decoder_embeddings", "one matrix embeds source and target"),
        ("tie_word_embeddings", "the embedding matrix is the output projection"),
        ("scale_embedding", "embeddings are multiplied by sqrt(d_model)"),
    ):
        if not getattr(marian.config, field):
            raise ValueError(f"{field} is False in this MarianMT model; in the paper's model {paper} (3.4)")
    sinusoid = SinusoidalPositions(marian.config.d_model)
    for name, stack in (("encoder", marian.model.encoder), ("decoder", marian.model.decoder)):
        table = stack.embed_positions.weight.float().cpu()
        expected = torch.empty_like(table)
        expected[:, marian_order(table.shape[1])] = sinusoid(torch.arange(table.shape[0]))
        # The tolerance is bfloat16's.
        if not torch.allclose(table, expected, rtol=0, atol=1e-2):
            raise ValueError(f"model.{name}.embed_positions.weight of this MarianMT model is not the sinusoid (3.5)")


def marian_order(d_model: int) -> torch.Tensor:
    """The dimension of Marian's that each of ours is: its sines, ours at 0, 2, 4 ..., then its cosines. (D,)"""
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2))).argsort()


def reorder(name: str, weight: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """A weight of a layer with the dimensions of the residual stream in our order.

    What reads the stream has them as its columns; what adds to it or normalises it, as its rows.
    """
    if re.search(r"\.(q_proj|k_proj|v_proj|fc1)\.", name):
        return weight[:, order] if name.endswith("weight") else weight
    return weight[order]


def _wrap(backend: Tokenizer, config: dict) -> PreTrainedTokenizerFast:
    names = ("pad_token", "bos_token", "eos_token")
    ids = {name: config.get(f"{name}_id") for name in names}
    tokens = {name: backend.id_to_token(token_id) for name, token_id in ids.items() if token_id is not None}
    eos = tokens.get("eos_token")
    if backend.post_processor is None and eos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {eos}", pair=f"$A {eos} $B:1 {eos}:1", special_tokens=[(eos, ids["eos_token"])]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=getattr(backend.model, "unk_token", None),
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **tokens,
    )
