"""MarianMT (the opus-mt models of Helsinki-NLP) as this package's model: the same numbers from the same weights.

Both are post-LN Transformers. They differ in where the sinusoid lies: Marian has all sines, then all cosines, where the
paper has them by turns. Nothing else depends on the order of d_model's dimensions, so every weight that reads or writes
the residual stream is reordered, once, and the model itself stays the paper's.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer, processors
from torch import nn
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    MarianMTModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import is_sentencepiece_available

from ..configuration_vanilla import VanillaConfig
from ..generation_vanilla import default_generation_config
from ..layers_vanilla import SinusoidalPositions
from ..modeling_vanilla import VanillaForConditionalGeneration

SAME_FIELDS = (
    "vocab_size",
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "activation_function",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "use_cache",
)
# What Marian's search says of lengths, and cannot say here: its limits are numbers, not the source's length plus some;
# and an EOS forced at the limit would come at the end of the longest sentence of a batch, so that a translation
# depended on its batch mates.
OTHER_SEARCH = ("max_length", "max_new_tokens", "forced_eos_token_id")


@torch.no_grad()
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
    output_bias = marian.final_logits_bias[0]
    config = VanillaConfig(
        **{field: getattr(marian.config, field) for field in SAME_FIELDS},
        attention_bias=True,
        output_bias=bool(output_bias.any()),
        layer_norm_eps=1e-5,  # torch's default, which Marian leaves as it is
    )
    model = VanillaForConditionalGeneration(config).to(marian.device, marian.dtype)
    order = _order(config.d_model)
    model.get_input_embeddings().weight.copy_(marian.model.shared.weight[:, order])
    for ours, theirs in zip(_layers(model.model), _layers(marian.model), strict=True):
        _copy_layer(ours, theirs, order)
    if config.output_bias:
        model.lm_head.bias.copy_(output_bias)
    model.generation_config = keep_search(marian.generation_config, config)
    return model.eval()


def marian_tokenizer(path: str | PathLike) -> PreTrainedTokenizerBase:
    """The tokenizer of a MarianMT model: AutoTokenizer's, as it is, or the folder's tokenizer.json if that is all.

    In the second case the special tokens are those of config.json, and EOS is appended if the file itself appends
    nothing: every MarianMT model reads its source up to EOS.

    Raises:
        ValueError: if there is none, or it needs the sentencepiece package, which is not installed.
    """
    file = Path(path, "tokenizer.json")
    if file.is_file() and not file.with_name("tokenizer_config.json").is_file():
        return _wrap(Tokenizer.from_file(str(file)), read_config(path))
    try:
        return AutoTokenizer.from_pretrained(path)
    except (ImportError, OSError, TypeError, ValueError) as error:
        missing = "MarianTokenizer needs the package sentencepiece, which is not installed"
        raise ValueError(
            f"{path}: no tokenizer could be loaded: {error if is_sentencepiece_available() else missing}"
        ) from error


def load_source(
    cls: type[PreTrainedModel], path: str | PathLike | PreTrainedModel, importer: str, name: str
) -> PreTrainedModel:
    """A model of a class of transformers, from a folder or a Hub id with weights in safetensors, or the model itself.

    Args:
        importer: the function that was called, and name: the kind of model, for the messages.

    Raises:
        ValueError: if there is no such model, or its weights are incomplete or pickled.
    """
    if isinstance(path, cls):
        return path
    if not isinstance(path, str | PathLike):
        article = "an" if cls.__name__[0] in "AEFIO" else "a"
        raise ValueError(f"{importer} takes a folder, a Hub id or {article} {cls.__name__}, not {type(path).__name__}")
    model_type, expected = read_config(path).get("model_type"), cls.config_class.model_type
    if model_type != expected:
        raise ValueError(f"{path}: model_type in config.json is {model_type!r}, not {expected!r}")
    if Path(path, "pytorch_model.bin").is_file() and not any(Path(path).glob("*.safetensors")):
        raise ValueError(
            f"{path}: pytorch_model.bin is a pickle, which is not opened here; if you trust it, load it with "
            f"{cls.__name__}.from_pretrained and give {importer} the model"
        )
    try:
        model, info = cls.from_pretrained(path, use_safetensors=True, output_loading_info=True)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{path}: no {name} model could be loaded: {error}") from error
    if info["missing_keys"]:
        raise ValueError(f"{path}: the weights lack {', '.join(sorted(info['missing_keys']))}")
    return model


def read_config(path: str | PathLike) -> dict:
    """config.json of a folder or a Hub id; ValueError if there is none."""
    try:
        config = PreTrainedConfig.get_config_dict(path)[0]
    except OSError as error:
        raise ValueError(f"{path}: neither a folder with a config.json nor a model of the Hub: {error}") from error
    if not config:
        raise ValueError(f"{path}: a folder without a config.json")
    return config


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
        expected[:, _order(table.shape[1])] = sinusoid(torch.arange(table.shape[0]))
        # The tolerance is bfloat16's.
        if not torch.allclose(table, expected, rtol=0, atol=1e-2):
            raise ValueError(f"model.{name}.embed_positions.weight of this MarianMT model is not the sinusoid (3.5)")


def _order(d_model: int) -> torch.Tensor:
    """The dimension of Marian's that each of ours is: its sines, ours at 0, 2, 4 ..., then its cosines. (D,)"""
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2))).argsort()


def _layers(model: nn.Module) -> list[nn.Module]:
    return [*model.encoder.layers, *model.decoder.layers]


def _copy_layer(ours: nn.Module, theirs: nn.Module, order: torch.Tensor) -> None:
    """A layer of the encoder or, with its cross-attention, of the decoder."""
    self_attn = theirs.self_attn
    _copy_reader(ours.self_attn.qkv_proj, [self_attn.q_proj, self_attn.k_proj, self_attn.v_proj], order)
    _copy_writer(ours.self_attn.out_proj, self_attn.out_proj, order)
    _copy_writer(ours.self_attn_add_norm, theirs.self_attn_layer_norm, order)
    if hasattr(theirs, "encoder_attn"):
        cross_attn = theirs.encoder_attn
        _copy_reader(ours.cross_attn.q_proj, [cross_attn.q_proj], order)
        _copy_reader(ours.cross_attn.kv_proj, [cross_attn.k_proj, cross_attn.v_proj], order)
        _copy_writer(ours.cross_attn.out_proj, cross_attn.out_proj, order)
        _copy_writer(ours.cross_attn_add_norm, theirs.encoder_attn_layer_norm, order)
    _copy_reader(ours.ffn.fc1, [theirs.fc1], order)
    _copy_writer(ours.ffn.fc2, theirs.fc2, order)
    _copy_writer(ours.ffn_add_norm, theirs.final_layer_norm, order)


def _copy_reader(ours: nn.Linear, theirs: Sequence[nn.Linear], order: torch.Tensor) -> None:
    """A projection of the residual stream, or several fused: its columns are reordered."""
    ours.weight.copy_(torch.cat([linear.weight for linear in theirs])[:, order])
    ours.bias.copy_(torch.cat([linear.bias for linear in theirs]))


def _copy_writer(ours: nn.Linear | nn.LayerNorm, theirs: nn.Linear | nn.LayerNorm, order: torch.Tensor) -> None:
    """What adds to the residual stream or normalises it: its rows are reordered."""
    ours.weight.copy_(theirs.weight[order])
    ours.bias.copy_(theirs.bias[order])


def keep_search(theirs: GenerationConfig, config: VanillaConfig) -> GenerationConfig:
    """How a model of transformers searches, but for its limits: see `from_marian`."""
    kept = {name: value for name, value in theirs.to_diff_dict().items() if name not in OTHER_SEARCH}
    if kept.get("num_beams") == 1:
        del kept["num_beams"]  # what transformers does unasked: nobody's choice
    kept.pop("_from_model_config", None)
    result = default_generation_config(config)
    result.update(**{"length_penalty_type": "length", "length_penalty": 1.0, **kept})
    return result


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
