"""Small models of MarianMT, FSMT and fairseq with random weights, their logits by themselves, and their folders."""

import argparse
import io
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from transformers import FSMTConfig, FSMTForConditionalGeneration, MarianConfig, MarianMTModel, PreTrainedModel

Reference = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # source (S,), target (T,) -> logits (T, VOCAB)

VOCAB = 40
SIZES = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 36, "d_model": 24}
SIZES |= {"decoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 28, "max_position_embeddings": 64}


def randomise(model: PreTrainedModel) -> PreTrainedModel:
    """Move every weight off its initial value (norms and biases are 1 and 0); the model in evaluation mode."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def reference_of(model: PreTrainedModel) -> Reference:
    """With a cache, FSMT hides no later position."""
    return lambda source, target: model(input_ids=source[None], decoder_input_ids=target[None], use_cache=False).logits[
        0
    ]


# MarianMT

# As opus-mt has it: EOS is 0, the last token pads and starts the decoder, and is never to be generated.
OPUS = {"pad_token_id": VOCAB - 1, "decoder_start_token_id": VOCAB - 1, "bos_token_id": 0, "eos_token_id": 0}
OPUS |= {"activation_function": "swish", "forced_eos_token_id": 0}
TINY = {"pad_token_id": 0, "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2}
TINY |= {"activation_function": "relu", "forced_eos_token_id": None}


def make_marian(seed: int = 0, **overrides) -> MarianMTModel:
    torch.manual_seed(seed)
    settings = {"vocab_size": VOCAB, "scale_embedding": True, **SIZES, **OPUS, **overrides}
    marian = randomise(MarianMTModel(MarianConfig(**settings)))
    marian.final_logits_bias.normal_()
    with torch.no_grad():
        marian.model.encoder.embed_tokens.weight[marian.config.pad_token_id] = 0  # which in opus-mt starts the decoder
    marian.generation_config.bad_words_ids = [[marian.config.pad_token_id]]
    return marian


def write_marian(folder: Path, **overrides) -> Reference:
    """A folder with no tokenizer but a tokenizer.json, which appends no EOS."""
    marian = make_marian(seed=3, **overrides)
    marian.save_pretrained(folder)
    words = ["</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz".upper(), *"abcdefghijk", "<pad>"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["</s>", "<unk>", "<pad>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return reference_of(marian)


# FSMT

PIECES = ["<s>", "<pad>", "</s>", "<unk>", "a</w>", "house</w>", "h", "o", "u", "s", "e</w>", "Haus</w>", "ein</w>"]


def make_fsmt(seed: int = 0, **overrides) -> FSMTForConditionalGeneration:
    torch.manual_seed(seed)
    settings = {"src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB, "tie_word_embeddings": False, **SIZES, **overrides}
    return randomise(FSMTForConditionalGeneration(FSMTConfig(**settings)))


def write_fsmt(folder: Path) -> Reference:
    """As facebook's, with vocabularies, merges and settings."""
    fsmt = make_fsmt(src_vocab_size=len(PIECES), tgt_vocab_size=len(PIECES))
    fsmt.save_pretrained(folder)
    for name in ("vocab-src.json", "vocab-tgt.json"):
        (folder / name).write_text(json.dumps({piece: number for number, piece in enumerate(PIECES)}))
    (folder / "merges.txt").write_text("h o\nho u\nhou s\nhous e</w>\na </w>\n")
    (folder / "tokenizer_config.json").write_text('{"langs": ["en", "de"], "tokenizer_class": "FSMTTokenizer"}')
    return reference_of(fsmt)


# fairseq, by what its names and semantics say, written out in plain torch

FAIRSEQ_VOCAB, D, HEADS, LAYERS, FFN = 21, 16, 4, 2, 20
PAD, EOS = 1, 2
DICTIONARY = ["a", "ho@@", "use", "Haus", "ein", "h@@", "o@@", "u@@", "s@@", "e", "the", "dog"]
DICTIONARY += ["m1", "m2", "m3", "m4", "m5"]
MERGES = ["h o", "u s", "us e</w>", "H a", "Ha u", "Hau s</w>", "e i", "ei n</w>"]


def make_settings(**overrides) -> dict:
    """What fairseq's transformer_wmt_en_de saves of its settings, in short."""
    settings = {"arch": "transformer_wmt_en_de", "source_lang": "en", "target_lang": "de", "label_smoothing": 0.1}
    settings |= {"share_all_embeddings": True, "max_source_positions": 60, "max_target_positions": 60, "dropout": 0.3}
    sizes = {"embed_dim": D, "layers": LAYERS, "attention_heads": HEADS, "ffn_embed_dim": FFN}
    for stack in ("encoder", "decoder"):
        for name, value in {**sizes, "normalize_before": False, "learned_pos": False}.items():
            settings[f"{stack}_{name}"] = value
    return {**settings, **overrides}


def make_weights(seed: int = 0, tied: bool = True, learned: bool = False) -> OrderedDict:
    """Weights by the names that fairseq has had since 2019."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return 0.4 * torch.randn(*shape, generator=generator)

    weights = OrderedDict()
    embedding = draw(FAIRSEQ_VOCAB, D)
    for stack in ("encoder", "decoder"):
        weights[f"{stack}.version"] = torch.tensor([3.0])
        weights[f"{stack}.embed_tokens.weight"] = embedding if tied else draw(FAIRSEQ_VOCAB, D)
        if learned:
            weights[f"{stack}.embed_positions.weight"] = draw(60 + PAD + 1, D)
        else:
            weights[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
        attentions = ("self_attn", "encoder_attn")[: 1 if stack == "encoder" else 2]
        linears = {f"{a}.{part}_proj": (D, D) for a in attentions for part in ("k", "v", "q", "out")}
        linears |= {"fc1": (FFN, D), "fc2": (D, FFN)}
        for layer in (f"{stack}.layers.{number}" for number in range(LAYERS)):
            for name, shape in linears.items():
                weights[f"{layer}.{name}.weight"], weights[f"{layer}.{name}.bias"] = draw(*shape), draw(shape[0])
            for norm in (*attentions, "final"):
                weights[f"{layer}.{norm}_layer_norm.weight"] = 1 + draw(D)
                weights[f"{layer}.{norm}_layer_norm.bias"] = draw(D)
    if not tied:
        weights["decoder.output_projection.weight"] = draw(FAIRSEQ_VOCAB, D)
    return weights


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


def position_table(weights: OrderedDict, stack: str, length: int) -> torch.Tensor:
    """fairseq's positions 0, 1 ... of tokens that are no padding. (length, D)"""
    learned = weights.get(f"{stack}.embed_positions.weight")
    if learned is not None:
        return learned[PAD + 1 : PAD + 1 + length]
    half = D // 2
    positions = range(PAD + 1, PAD + 1 + length)
    angles = torch.tensor([[position / 10000 ** (i / (half - 1)) for i in range(half)] for position in positions])
    return torch.cat((angles.sin(), angles.cos()), dim=1)


def fairseq_logits(weights: OrderedDict, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The post-LN transformer by fairseq's names, one sentence at a time, without padding. (T, FAIRSEQ_VOCAB)"""

    def attend(name: str, x: torch.Tensor, y: torch.Tensor, causal: bool) -> torch.Tensor:
        projected = (linear(f"{name}.{part}_proj", z) for part, z in (("q", x), ("k", y), ("v", y)))
        q, k, v = (z.unflatten(1, (HEADS, -1)).transpose(0, 1) for z in projected)
        output = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return linear(f"{name}.out_proj", output.transpose(0, 1).flatten(1))

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (D,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def stack(name: str, tokens: torch.Tensor, memory: torch.Tensor | None) -> torch.Tensor:
        x = math.sqrt(D) * weights[f"{name}.embed_tokens.weight"][tokens] + position_table(weights, name, len(tokens))
        for layer in (f"{name}.layers.{number}" for number in range(LAYERS)):
            attended = attend(f"{layer}.self_attn", x, x, causal=memory is not None)
            x = norm(f"{layer}.self_attn_layer_norm", x + attended)
            if memory is not None:
                attended = attend(f"{layer}.encoder_attn", x, memory, causal=False)
                x = norm(f"{layer}.encoder_attn_layer_norm", x + attended)
            x = norm(f"{layer}.final_layer_norm", x + linear(f"{layer}.fc2", linear(f"{layer}.fc1", x).relu()))
        return x

    x = stack("decoder", target, stack("encoder", source, None))
    output = weights.get("decoder.output_projection.weight", weights["decoder.embed_tokens.weight"])
    return x @ output.T


def save(path: Path | io.BytesIO, weights: OrderedDict, settings: dict | None = None, **others) -> Path:
    """A checkpoint as fairseq's earlier versions wrote it."""
    args = argparse.Namespace(**(settings or make_settings()))
    torch.save({"args": args, "model": weights, "optimizer_history": [], "extra_state": {"epoch": 3}, **others}, path)
    return path


def fairseq_reference(weights: OrderedDict) -> Reference:
    return lambda source, target: fairseq_logits(weights, source, target)


def write_fairseq(folder: Path) -> Reference:
    """As the published archives are: model.pt, a dictionary for each language, and the merges."""
    folder.mkdir(exist_ok=True)
    save(folder / "model.pt", make_weights())
    for language in ("en", "de"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{token} 7\n" for token in DICTIONARY))
    (folder / "bpecodes").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in MERGES))
    return fairseq_reference(make_weights())


WRITERS = {"marian": write_marian, "fsmt": write_fsmt, "fairseq": write_fairseq}
