"""Small models of MarianMT, FSMT and fairseq with random weights, their logits by themselves, and their folders."""

import argparse
import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
from helpers import add_noise
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    FSMTConfig,
    FSMTForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

Reference = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # source (S,), target (T,) -> logits (T, VOCAB)

VOCAB = 40
SIZES = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 36, "d_model": 24}
SIZES |= {"decoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 28, "max_position_embeddings": 64}


def reference_of(model: PreTrainedModel) -> Reference:
    """With a cache, FSMT hides no later position."""
    return lambda source, target: model(source[None], decoder_input_ids=target[None], use_cache=False).logits[0]


# MarianMT

# As opus-mt has it: EOS is 0, the last token pads and starts the decoder, and is never to be generated.
OPUS = {"pad_token_id": VOCAB - 1, "decoder_start_token_id": VOCAB - 1, "bos_token_id": 0, "eos_token_id": 0}
OPUS |= {"activation_function": "swish", "forced_eos_token_id": 0}
TINY = {"pad_token_id": 0, "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2}
TINY |= {"activation_function": "relu", "forced_eos_token_id": None}


def make_marian(seed: int = 0, **overrides) -> MarianMTModel:
    torch.manual_seed(seed)
    settings = {"vocab_size": VOCAB, "scale_embedding": True, **SIZES, **OPUS, **overrides}
    marian = add_noise(MarianMTModel(MarianConfig(**settings)))
    marian.final_logits_bias.normal_()
    with torch.no_grad():
        marian.model.encoder.embed_tokens.weight[marian.config.pad_token_id] = 0  # which in opus-mt starts the decoder
    marian.generation_config.bad_words_ids = [[marian.config.pad_token_id]]
    return marian


def write_marian(folder: Path) -> Reference:
    marian = make_marian(seed=3)
    marian.save_pretrained(folder)
    words = ["</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz".upper(), *"abcdefghijk", "<pad>"]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    return reference_of(marian)


# FSMT

PIECES = ["<s>", "<pad>", "</s>", "<unk>", "a</w>", "house</w>", "h", "o", "u", "s", "e</w>", "Haus</w>", "ein</w>"]


def make_fsmt(seed: int = 0, **overrides) -> FSMTForConditionalGeneration:
    torch.manual_seed(seed)
    settings = {"src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB, "tie_word_embeddings": False, **SIZES, **overrides}
    fsmt = FSMTForConditionalGeneration(FSMTConfig(**settings))
    for stack in (fsmt.model.encoder, fsmt.model.decoder):
        stack.embed_positions.requires_grad_(False)
    return add_noise(fsmt)


def write_fsmt(folder: Path) -> Reference:
    """As facebook's, with vocabularies, merges and settings."""
    fsmt = make_fsmt(src_vocab_size=len(PIECES), tgt_vocab_size=len(PIECES))
    fsmt.save_pretrained(folder)
    for name in ("vocab-src.json", "vocab-tgt.json"):
        (folder / name).write_text(json.dumps({piece: number for number, piece in enumerate(PIECES)}))
    (folder / "merges.txt").write_text("h o\nho u\nhou s\nhous e</w>\na </w>\n")
    (folder / "tokenizer_config.json").write_text('{"langs": ["en", "de"], "tokenizer_class": "FSMTTokenizer"}')
    return reference_of(fsmt)


# fairseq, whose Transformer FSMT is in transformers, by the same names

LAYERS, D, FFN = SIZES["encoder_layers"], SIZES["d_model"], SIZES["encoder_ffn_dim"]
DICTIONARY = ["a", "ho@@", "use", "Haus", "ein", "h@@", "o@@", "u@@", "s@@", "e", "m1", "m2", "m3", "m4", "m5"]
MERGES = ["h o", "u s", "us e</w>", "H a", "Ha u", "Hau s</w>", "e i", "ei n</w>"]


def make_settings(**overrides) -> dict:
    """What fairseq's transformer_wmt_en_de saves of its settings, in short."""
    settings = {"arch": "transformer_wmt_en_de", "source_lang": "en", "target_lang": "de", "label_smoothing": 0.1}
    settings |= {"share_all_embeddings": True, "max_source_positions": 60, "max_target_positions": 60, "dropout": 0.3}
    for stack in ("encoder", "decoder"):
        settings |= {f"{stack}_{name}": SIZES[f"{stack}_{name}"] for name in ("layers", "attention_heads")}
        settings |= {f"{stack}_embed_dim": D, f"{stack}_ffn_embed_dim": SIZES[f"{stack}_ffn_dim"]}
        settings |= {f"{stack}_normalize_before": False, f"{stack}_learned_pos": False}
    return {**settings, **overrides}


def make_fairseq(tied: bool = True, learned: bool = False) -> tuple[OrderedDict, Reference]:
    """Weights by the names that fairseq has had since 2019, and FSMT with the same."""
    vocabulary = dict.fromkeys(("src_vocab_size", "tgt_vocab_size"), 4 + len(DICTIONARY))
    fsmt = make_fsmt(**vocabulary, max_position_embeddings=60, tie_word_embeddings=tied)
    if learned:
        for stack in (fsmt.model.encoder, fsmt.model.decoder):
            nn.init.normal_(stack.embed_positions.weight)
    weights = OrderedDict((name.removeprefix("model."), weight) for name, weight in fsmt.state_dict().items())
    for stack in ("encoder", "decoder"):
        weights[f"{stack}.version"] = torch.tensor([3.0])
        if not learned:
            del weights[f"{stack}.embed_positions.weight"]
            weights[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    if tied:
        del weights["decoder.output_projection.weight"]
    return weights, reference_of(fsmt)


def in_old_names(weights: OrderedDict) -> OrderedDict:
    """As fairseq saved them in 2018: fused projections, numbered norms, embed_out."""
    old = OrderedDict()
    numbers = {"encoder": ["self_attn", "final"], "decoder": ["self_attn", "encoder_attn", "final"]}
    for name, tensor in weights.items():
        parts = name.split(".")
        if name == "decoder.output_projection.weight":
            old["decoder.embed_out"] = tensor
        elif parts[-2] == "q_proj":
            prefix = ".".join(parts[:-2])
            fused = [weights[f"{prefix}.{part}.{parts[-1]}"] for part in ("q_proj", "k_proj", "v_proj")]
            old[f"{prefix}.in_proj_{parts[-1]}"] = torch.cat(fused)
        elif parts[-2] in ("k_proj", "v_proj"):
            continue
        elif parts[-2].endswith("layer_norm"):
            number = numbers[parts[0]].index(parts[-2].removesuffix("_layer_norm"))
            old[".".join([*parts[:-2], "layer_norms", str(number), parts[-1]])] = tensor
        else:
            old[name] = tensor
    return old


def in_new_names(weights: OrderedDict) -> OrderedDict:
    """As fairseq has saved them since 2022: with copies, of zeros until they are used, in the encoder's layers."""
    new = OrderedDict(weights)
    for layer in range(LAYERS):
        for name, shape in (("in_proj", (3 * D, D)), ("out_proj", (D, D)), ("fc1", (FFN, D)), ("fc2", (D, FFN))):
            new[f"encoder.layers.{layer}.{name}_weight"] = torch.zeros(shape)
            new[f"encoder.layers.{layer}.{name}_bias"] = torch.zeros(shape[0])
    return new


def save(path: Path, weights: OrderedDict, settings: dict | None = None, **others) -> Path:
    """A checkpoint as fairseq's earlier versions wrote it."""
    args = argparse.Namespace(**(settings or make_settings()))
    torch.save({"args": args, "model": weights, "optimizer_history": [], "extra_state": {"epoch": 3}, **others}, path)
    return path


def write_fairseq(folder: Path) -> Reference:
    """As the published archives are: model.pt, a dictionary for each language, and the merges."""
    weights, reference = make_fairseq()
    save(folder / "model.pt", weights)
    for language in ("en", "de"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{token} 7\n" for token in DICTIONARY))
    (folder / "bpecodes").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in MERGES))
    return reference


WRITERS = {"marian": write_marian, "fsmt": write_fsmt, "fairseq": write_fairseq}
