"""fairseq's transformer models: the same numbers from the same weights.

The WMT14 models of Ott et al. 2018, wmt14.en-fr and wmt16.en-de, are published as fairseq's pickles alone. transformers
has others of fairseq's as FSMT, wmt19 and the distilled wmt16: see from_fsmt.py.

fairseq's Transformer is post-LN as the paper's. Its positions are another sinusoid: all sines before all cosines, at
frequencies 10000^(-i / (d_model / 2 - 1)) where the paper has 10000^(-2i / d_model), and counted from pad's number + 1.
No order of dimensions turns one into the other, so the table is written out, as learned positions.
"""

import json
import math
import re
from argparse import Namespace
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import FSMTTokenizer

from ..errors import one_line
from ..files import read_lines
from ..modeling_vanilla import VanillaForConditionalGeneration
from .weights import build

SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's ids 0, 1, 2, 3, which its dictionary files leave out
# Copies of its own matrices, which each layer of the encoder has had since 2022.
COPIES = re.compile(r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)")
# Arguments of fairseq under which its model is not the paper's.
REFUSED = ["encoder_normalize_before", "decoder_normalize_before", "no_scale_embedding", "layernorm_embedding"]
REFUSED += ["no_token_positional_embeddings", "adaptive_input", "adaptive_softmax_cutoff", "cross_self_attention"]
REFUSED += ["no_cross_attention", "character_embeddings"]


def from_fairseq(path: str | PathLike) -> VanillaForConditionalGeneration:
    """The model whose logits are those of a fairseq transformer, to the rounding of 32-bit floats.

    generate() searches as the paper does. Positions end where fairseq's arguments do (max_source_positions). Layer
    dropout, which only training uses, is left out.

    Args:
        path: a checkpoint (model.pt), or the folder with it. It is a pickle: only tensors, plain containers and
            argparse's Namespace are taken from it, and nothing in it is run.

    Returns:
        The model in evaluation mode.

    Raises:
        ValueError: if there is no such file, it holds other classes, it lacks something, or the paper's model cannot
            express it.
    """
    file, weights, args = _load(path)
    try:
        fields = vanilla_fields(args)
        model = build(fields, with_positions(fields, rename(weights)))
    except Exception as error:  # arguments and weights that nobody has checked make torch raise almost anything
        lacks = "not a transformer of fairseq's, as it lacks " if isinstance(error, KeyError) else ""
        raise ValueError(f"{file}: {lacks}{one_line(error)}") from error
    model.generation_config.bad_words_ids = [[model.config.pad_token_id]]  # fairseq's search never takes it, either
    return model


def fairseq_tokenizer(path: str | PathLike) -> FSMTTokenizer:
    """The tokenizer of a fairseq model, Moses and subword-nmt, as transformers' FSMTTokenizer has both.

    Args:
        path: the folder with dict.LANG.txt of both languages, the merges (bpecodes, or code) and the checkpoint, which
            says which language is the source.

    Raises:
        ValueError: if a file is missing, the languages have different dictionaries, or sacremoses is not installed.
    """
    file, _, args = _load(path)
    languages = [args.get("source_lang"), args.get("target_lang")]
    if None in languages:
        raise ValueError(f"{file}: its arguments name no source_lang or no target_lang")
    vocabulary, target = (_dictionary(file.with_name(f"dict.{language}.txt")) for language in languages)
    if vocabulary != target:
        names = " and ".join(f"dict.{language}.txt" for language in languages)
        raise ValueError(f"{file.parent}: {names} differ; a model of this package has one vocabulary (5.1)")
    codes = file.with_name("bpecodes" if file.with_name("bpecodes").is_file() else "code")
    # A line of fastBPE also has a count, which is left out.
    pairs = [" ".join(line.split()[:2]) for line in read_lines(codes) if not line.startswith("#version")]
    with TemporaryDirectory() as folder:
        tokens, merges = Path(folder, "vocabulary.json"), Path(folder, "merges.txt")
        tokens.write_text(json.dumps(vocabulary), encoding="utf-8")
        merges.write_text("\n".join(pairs) + "\n", encoding="utf-8")
        try:
            return FSMTTokenizer(languages, str(tokens), str(tokens), str(merges), eos_token="</s>")
        except ImportError as error:
            raise ValueError("FSMTTokenizer needs the package sacremoses, which is not installed") from error


def vanilla_fields(args: Mapping) -> dict:
    """VanillaConfig's fields from fairseq's arguments.

    Raises:
        KeyError: if a setting is missing.
        ValueError: if the paper's model cannot be this one.
    """
    for name in REFUSED:
        if args.get(name):
            raise ValueError(f"{name} is {args[name]}, which the paper's model does not have")
    stacks = {}
    for stack in ("encoder", "decoder"):
        stacks[f"{stack}_attention_heads"] = args[f"{stack}_attention_heads"]
        stacks[f"{stack}_ffn_dim"] = args[f"{stack}_ffn_embed_dim"]
    return stacks | {
        "d_model": args["encoder_embed_dim"],
        "dropout": args.get("dropout", 0.1),
        "attention_dropout": args.get("attention_dropout") or 0.0,
        "activation_dropout": args.get("activation_dropout") or args.get("relu_dropout") or 0.0,
        "activation_function": args.get("activation_fn") or "relu",
        "label_smoothing": args.get("label_smoothing") or 0.0,
        "max_position_embeddings": min(args.get(f"max_{side}_positions", 1024) for side in ("source", "target")),
        "position_embedding_type": "learned",
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }


def with_positions(fields: dict, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights with both tables of positions, learned or sinusoid, from the first real position on."""
    weights, first, count = dict(weights), fields["pad_token_id"] + 1, fields["max_position_embeddings"]
    for name in ("encoder.embed_positions.weight", "decoder.embed_positions.weight"):
        table = weights[name] if name in weights else sinusoid(first + count, fields["d_model"])
        weights[name] = table[first : first + count]
    return weights


def rename(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights by the names of fairseq's later versions.

    Until 2019 an attention had W^Q, W^K and W^V in one in_proj_weight, norms were numbered, and an output projection of
    its own was called embed_out. Entries that are no weights (versions) and COPIES are left out.
    """
    norms = {
        "encoder": ("self_attn_layer_norm", "final_layer_norm"),
        "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    }
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if name.endswith((".version", "._float_tensor")) or COPIES.fullmatch(name):
            continue
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
    return torch.cat((angle.sin(), angle.cos()), dim=1)


def _load(path: str | PathLike) -> tuple[Path, Mapping[str, torch.Tensor], dict]:
    """The file of a checkpoint, its weights, and its arguments: 'args' of earlier versions, 'cfg' of later ones."""
    file = Path(path, "model.pt") if Path(path).is_dir() else Path(path)
    try:
        with torch.serialization.safe_globals([Namespace]):
            checkpoint = torch.load(file, map_location="cpu", weights_only=True)
        cfg = checkpoint.get("cfg") or {}
        groups = [checkpoint.get("args"), *(cfg.get(name) for name in ("criterion", "task", "model"))]
        args: dict = {}
        for group in groups:
            args |= vars(group) if isinstance(group, Namespace) else group or {}
        return file, checkpoint["model"], args
    except Exception as error:  # a damaged pickle makes torch raise almost anything
        taken = "tensors, plain containers and argparse.Namespace"
        raise ValueError(f"{file}: is no checkpoint of {taken} alone: {one_line(error)}") from error


def _dictionary(file: Path) -> dict[str, int]:
    """Tokens and their numbers from a dictionary of fairseq's, which has a token and its count a line.

    They are spelled as FSMTTokenizer does, which marks where a word ends ("</w>"), subword-nmt where it goes on ("@@").
    """
    lines = (line.removesuffix(" #fairseq:overwrite").rpartition(" ")[0] for line in read_lines(file))
    tokens = [token.removesuffix("@@") if token.endswith("@@") else token + "</w>" for token in lines]
    return {token: number for number, token in enumerate([*SPECIAL_TOKENS, *tokens])}
