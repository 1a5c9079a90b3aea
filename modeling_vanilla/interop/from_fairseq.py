"""fairseq's transformer models (wmt14.en-fr, wmt16.en-de and their like): the same numbers from the same weights.

fairseq's Transformer is post-LN as the paper's. Its positions are another sinusoid: all sines before all cosines, at
frequencies 10000^(-i / (d_model / 2 - 1)) where the paper has 10000^(-2i / d_model), and counted from pad's number + 1.
No order of dimensions turns one into the other, so the table is written out, as learned positions.
"""

import argparse
import json
import math
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from transformers import FSMTTokenizer

from ..errors import one_line
from ..files import read_lines
from ..modeling_vanilla import VanillaForConditionalGeneration
from .pickles import load_pickle
from .weights import build

SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's ids 0, 1, 2, 3, which its dictionary files leave out
COPIES = re.compile(r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)")
MAX_POSITIONS = 2**17  # fairseq's own limits are 1024 to some thousands
# What a model can have that the paper's has not: fairseq's name, and what it means.
REFUSED = {
    "encoder_normalize_before": "LayerNorm comes before each sub-layer",
    "decoder_normalize_before": "LayerNorm comes before each sub-layer",
    "no_scale_embedding": "embeddings are not multiplied by sqrt(d_model)",
    "no_token_positional_embeddings": "there are no positions",
    "layernorm_embedding": "embeddings are normalised",
    "adaptive_input": "embeddings are of several widths",
    "cross_self_attention": "self- and cross-attention are one",
    "no_cross_attention": "there is no attention over the source",
    "character_embeddings": "embeddings come from characters",
}


def from_fairseq(path: str | PathLike) -> VanillaForConditionalGeneration:
    """The model whose logits are those of a fairseq transformer, to the rounding of 32-bit floats.

    generate() searches as the paper does. Positions end where fairseq's settings do (max_source_positions). Layer
    dropout, which only training knows, is left out.

    Args:
        path: a checkpoint (model.pt), or the folder with it. It is a pickle: only tensors, plain containers and
            argparse's Namespace are taken from it, and nothing in it is run.

    Returns:
        The model in evaluation mode.

    Raises:
        ValueError: if there is no such file, it holds anything else, it lacks something, or it is a model that the
            paper's cannot be.
    """
    file = Path(path, "model.pt") if Path(path).is_dir() else Path(path)
    checkpoint = _load(file)
    settings = _settings(file, checkpoint)
    try:
        fields = vanilla_fields(settings)
        weights = rename(checkpoint["model"], limit=file.stat().st_size)
        _check_shared(settings, weights)
        model = build(fields, with_positions(fields, weights))
    except Exception as error:  # settings and weights that nobody has checked make torch raise almost anything
        lacks = "no transformer of fairseq's, as it lacks " if isinstance(error, KeyError) else ""
        raise ValueError(f"{file}: {lacks}{one_line(error)}") from error
    model.generation_config.bad_words_ids = [[model.config.pad_token_id]]  # fairseq's search never takes it, either
    return model


def fairseq_tokenizer(path: str | PathLike) -> FSMTTokenizer:
    """The tokenizer of a fairseq model, Moses and subword-nmt, as transformers' FSMTTokenizer has both.

    Args:
        path: the folder with dict.LANG.txt of both languages, the merges (bpecodes, or code) and the checkpoint, which
            says which language is the source.

    Raises:
        ValueError: if a file is missing or not what it should be, the languages have different dictionaries, or
            sacremoses is not installed.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    file = folder / "model.pt" if Path(path).is_dir() else Path(path)
    checkpoint = _load(file)
    settings = _settings(file, checkpoint)
    languages = [settings.get(name) for name in ("source_lang", "target_lang")]
    if None in languages:
        raise ValueError(f"{file}: its settings name no source_lang and target_lang")
    dictionaries = [
        _dictionary(folder / f"dict.{language}.txt", checkpoint["model"].get(f"{stack}.embed_tokens.weight"))
        for language, stack in zip(languages, ("encoder", "decoder"), strict=True)
    ]
    if dictionaries[0] != dictionaries[1]:
        names = " and ".join(f"dict.{language}.txt" for language in languages)
        raise ValueError(f"{folder}: {names} differ; a model of this package has one vocabulary (5.1)")
    with TemporaryDirectory() as part:
        vocabulary, merges = Path(part, "vocabulary.json"), Path(part, "merges.txt")
        vocabulary.write_text(json.dumps(dictionaries[0]), encoding="utf-8")
        merges.write_text(_merges(folder), encoding="utf-8")
        try:
            return FSMTTokenizer(languages, str(vocabulary), str(vocabulary), str(merges), eos_token="</s>")
        except ImportError as error:
            raise ValueError("FSMTTokenizer needs the package sacremoses, which is not installed") from error


def vanilla_fields(settings: Mapping) -> dict:
    """VanillaConfig's fields from fairseq's settings.

    Raises:
        KeyError: if a setting is missing.
        ValueError: if the paper's model cannot be this one.
    """
    for name, meaning in REFUSED.items():
        if settings.get(name):
            raise ValueError(f"{name} is True: {meaning}, which the paper's model cannot be")
    widths = {settings.get(name) for name in ("encoder_embed_dim", "decoder_embed_dim", "decoder_output_dim")} - {None}
    if len(widths) > 1:
        raise ValueError(f"encoder_embed_dim, decoder_embed_dim and decoder_output_dim differ: {sorted(widths)}")
    if settings.get("adaptive_softmax_cutoff") is not None:
        raise ValueError("adaptive_softmax_cutoff is set: the output is no single projection (3.4)")
    sizes = {}
    for stack in ("encoder", "decoder"):
        sizes[f"{stack}_layers"] = settings[f"{stack}_layers"]
        sizes[f"{stack}_attention_heads"] = settings[f"{stack}_attention_heads"]
        sizes[f"{stack}_ffn_dim"] = settings[f"{stack}_ffn_embed_dim"]
    return {
        **sizes,
        "d_model": settings["encoder_embed_dim"],
        "dropout": settings.get("dropout", 0.1),
        "attention_dropout": settings.get("attention_dropout") or 0.0,
        "activation_dropout": settings.get("activation_dropout") or settings.get("relu_dropout") or 0.0,
        "activation_function": settings.get("activation_fn") or "relu",
        "label_smoothing": settings.get("label_smoothing") or 0.0,
        "max_position_embeddings": min(
            settings.get("max_source_positions") or 1024, settings.get("max_target_positions") or 1024
        ),
        "position_embedding_type": "learned",
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }


def with_positions(fields: dict, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights with both tables of positions, from the first real position on: learned ones, or the sinusoid."""
    weights, first, count = dict(weights), fields["pad_token_id"] + 1, fields["max_position_embeddings"]
    if count > MAX_POSITIONS:
        raise ValueError(f"max_source_positions and max_target_positions {count} are beyond {MAX_POSITIONS}")
    for stack in ("encoder", "decoder"):
        name = f"{stack}.embed_positions.weight"
        learned = weights.get(name)
        table = sinusoid(first + count, fields["d_model"]) if learned is None else learned
        weights[name] = table[first : first + count]
    return weights


def _check_shared(settings: Mapping, weights: Mapping) -> None:
    """Raise ValueError if a weight is missing that could be mistaken for one that the model does not have."""
    shared = settings.get("share_all_embeddings") or settings.get("share_decoder_input_output_embed")
    for needed, name in (
        (settings.get("encoder_learned_pos"), "encoder.embed_positions.weight"),
        (settings.get("decoder_learned_pos"), "decoder.embed_positions.weight"),
        (not shared, "decoder.output_projection.weight"),
    ):
        if needed and name not in weights:
            raise ValueError(f"the weights lack {name}")


def rename(weights: Mapping[str, torch.Tensor], limit: int) -> dict[str, torch.Tensor]:
    """The weights by the names of fairseq's later versions.

    Until 2019 an attention had W^Q, W^K and W^V in one in_proj_weight, norms were numbered, and an output projection of
    its own was called embed_out. What fairseq saves among the weights and is none is left out: versions, and the copies
    of its own matrices that each layer of the encoder has had beside them since 2022.

    Args:
        limit: the most bytes of a weight.
    """
    norms = {
        "encoder": ("self_attn_layer_norm", "final_layer_norm"),
        "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    }
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if name.endswith((".version", "._float_tensor")) or COPIES.fullmatch(name):
            continue
        if tensor.numel() * tensor.element_size() > limit:  # a view can repeat one value without end
            raise ValueError(f"{name} is of shape {tuple(tensor.shape)}, larger than its file")
        if fused := re.fullmatch(r"(.*)\.in_proj_(weight|bias)", name):
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                renamed[f"{fused[1]}.{part}_proj.{fused[2]}"] = rows
            continue
        if numbered := re.fullmatch(r"(encoder|decoder)\.layers\.(\d+)\.layer_norms\.(\d)\.(\w+)", name):
            stack, layer, norm, kind = numbered.groups()
            name = f"{stack}.layers.{layer}.{norms[stack][int(norm)]}.{kind}"
        renamed["decoder.output_projection.weight" if name == "decoder.embed_out" else name] = tensor
    return renamed


def sinusoid(positions: int, d_model: int) -> torch.Tensor:
    """fairseq's table (positions, D)."""
    half = d_model // 2
    frequency = torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))
    angle = torch.arange(positions)[:, None] * frequency
    # An odd d_model leaves the last dimension without a position.
    return nn.functional.pad(torch.cat((angle.sin(), angle.cos()), dim=1), (0, d_model % 2))


def _load(file: Path) -> dict:
    checkpoint = load_pickle(file)
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), Mapping):
        raise ValueError(f"{file}: no checkpoint of fairseq's, as it holds no 'model'")
    return checkpoint


def _settings(file: Path, checkpoint: Mapping) -> dict:
    """fairseq's settings: the 'args' of its earlier versions, the 'cfg' of its later ones, as one dictionary."""
    groups = [checkpoint.get("args")]
    if groups[0] is None:
        cfg = _plain(checkpoint.get("cfg"))
        groups = [cfg.get(name) for name in ("criterion", "task", "model")]
    settings: dict = {}
    for group in groups:
        settings.update(_plain(group))
    if not settings:
        raise ValueError(f"{file}: no checkpoint of fairseq's, as it holds neither 'args' nor 'cfg'")
    return settings


def _plain(group) -> dict:
    """The settings of a group that are plain values; no other setting concerns the model."""
    group = vars(group) if isinstance(group, argparse.Namespace) else group
    kinds = str | bool | int | float | Mapping | argparse.Namespace
    items = group.items() if isinstance(group, Mapping) else ()
    return {name: value for name, value in items if isinstance(value, kinds)}


def _dictionary(file: Path, embedding: torch.Tensor | None) -> dict[str, int]:
    """Tokens and their numbers from a dictionary of fairseq's, one for each row of the embedding, if there is one.

    They are spelled as FSMTTokenizer does, which marks where a word ends ("</w>"), subword-nmt where it goes on ("@@").
    """
    tokens = list(SPECIAL_TOKENS)
    for number, line in enumerate(read_lines(file), start=1):
        token, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not token or not count.isdigit():
            raise ValueError(f"{file}, line {number}: not a token and its count: {line!r}")
        tokens.append(token.removesuffix("@@") if token.endswith("@@") else token + "</w>")
    numbers = {token: number for number, token in enumerate(tokens)}
    if len(numbers) < len(tokens):
        raise ValueError(f"{file}: a token is there twice")
    if embedding is not None and len(numbers) != len(embedding):
        raise ValueError(f"{file}: has {len(numbers)} tokens, the model {len(embedding)}")
    return numbers


def _merges(folder: Path) -> str:
    """The merges of subword-nmt or fastBPE, without the counts that the latter adds."""
    file = next((folder / name for name in ("bpecodes", "code") if (folder / name).is_file()), None)
    if file is None:
        raise ValueError(f"{folder}: no merges, as it has neither bpecodes nor code")
    pairs = [line.split()[:2] for line in read_lines(file) if not line.startswith("#version")]
    if any(len(pair) < 2 for pair in pairs):
        raise ValueError(f"{file}: not the merges of subword-nmt, two pieces a line")
    return "".join(f"{left} {right}\n" for left, right in pairs)
