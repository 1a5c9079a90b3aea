"""fairseq's transformers, brought in, compute what its names and semantics say, written out here in plain torch."""

import argparse
import io
import math
import os
import pickle
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from helpers import call
from torch.nn import functional
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_vanilla.cli import convert
from modeling_vanilla.interop import fairseq_tokenizer, from_fairseq

VOCAB, D, HEADS, LAYERS, FFN = 21, 16, 4, 2, 20
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
    embedding = draw(VOCAB, D)
    for stack in ("encoder", "decoder"):
        weights[f"{stack}.version"] = torch.tensor([3.0])
        weights[f"{stack}.embed_tokens.weight"] = embedding if tied else draw(VOCAB, D)
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
        weights["decoder.output_projection.weight"] = draw(VOCAB, D)
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
            fused = [weights[f"{prefix}.{one}.{parts[-1]}"] for one in ("q_proj", "k_proj", "v_proj")]
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
    """The post-LN transformer by fairseq's names, one sentence at a time, without padding. (T, VOCAB)"""

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


def assert_same_logits(ours, weights: OrderedDict) -> None:
    generator = torch.Generator().manual_seed(3)
    lengths = [9, 6, 3]
    source = torch.randint(4, VOCAB, (3, 9), generator=generator)
    target = torch.randint(4, VOCAB, (3, 7), generator=generator)
    target[:, 0] = EOS
    for row, length in enumerate(lengths):
        source[row, length - 1], source[row, length:] = EOS, PAD
    with torch.no_grad():
        logits = ours(input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target).logits
    for row, length in enumerate(lengths):
        expected = fairseq_logits(weights, source[row, :length], target[row])
        assert expected.std() > 0.5  # else the comparison says little
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-4)


# Logits


@pytest.mark.parametrize("spell", [OrderedDict, in_old_names, in_new_names], ids=["2019", "2018", "2022"])
@pytest.mark.parametrize("tied", [True, False], ids=["one matrix", "three matrices"])
def test_the_logits_are_fairseqs(tmp_path, tied, spell):
    weights = make_weights(tied=tied)
    settings = make_settings(share_all_embeddings=tied)
    ours = from_fairseq(save(tmp_path / "model.pt", spell(weights), settings))
    assert not ours.training and ours.config.tie_word_embeddings is tied
    assert_same_logits(ours, weights)


def test_learned_positions_are_taken_over(tmp_path):
    weights = make_weights(learned=True)
    settings = make_settings(encoder_learned_pos=True, decoder_learned_pos=True)
    assert_same_logits(from_fairseq(save(tmp_path / "model.pt", weights, settings)), weights)


def test_settings_of_later_versions_are_read(tmp_path):
    weights = make_weights()
    settings = make_settings()
    languages = {name: settings.pop(name) for name in ("source_lang", "target_lang")}
    smoothing = settings.pop("label_smoothing")
    cfg = {"model": argparse.Namespace(**settings), "task": languages, "criterion": {"label_smoothing": smoothing}}
    torch.save({"args": None, "cfg": cfg, "model": weights}, tmp_path / "model.pt")
    ours = from_fairseq(tmp_path)
    assert_same_logits(ours, weights)
    assert (ours.config.label_smoothing, ours.config.dropout) == (0.1, 0.3)


def test_a_checkpoint_of_old_torch_is_read(tmp_path):
    weights = make_weights()
    checkpoint = {"args": argparse.Namespace(**make_settings()), "model": weights}
    torch.save(checkpoint, tmp_path / "model.pt", _use_new_zipfile_serialization=False)
    assert_same_logits(from_fairseq(tmp_path / "model.pt"), weights)


def test_the_configuration_is_fairseqs(tmp_path):
    ours = from_fairseq(save(tmp_path / "model.pt", make_weights(), make_settings(relu_dropout=0.2)))
    expected = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "dropout": 0.3}
    expected |= {"activation_dropout": 0.2, "label_smoothing": 0.1, "max_position_embeddings": 60}
    expected |= {"position_embedding_type": "learned"}
    assert ours.config.to_dict() == ours.config.to_dict() | expected
    search = {"bad_words_ids": [[PAD]], "num_beams": 4, "length_penalty": 0.6}
    assert ours.generation_config.to_dict() == ours.generation_config.to_dict() | search


# Folders


@pytest.fixture
def folder(tmp_path) -> Path:
    """As the published archives are: model.pt, a dictionary for each language, and the merges."""
    pytest.importorskip("sacremoses")
    folder = tmp_path / "wmt16.en-de"
    folder.mkdir()
    save(folder / "model.pt", make_weights())
    for language in ("en", "de"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{token} 7\n" for token in DICTIONARY))
    (folder / "bpecodes").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in MERGES))
    return folder


def test_the_tokenizer_is_subword_nmts(folder):
    """The merges by hand: "house" becomes ho@@ use, whose numbers are their lines behind the four special tokens."""
    tokenizer = fairseq_tokenizer(folder)
    assert tokenizer("a house").input_ids == [4 + DICTIONARY.index(token) for token in ("a", "ho@@", "use")] + [EOS]
    assert tokenizer("a zebra").input_ids[1] == 3
    assert tokenizer.decode([8, 7, EOS], skip_special_tokens=True) == "ein Haus"
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, len(tokenizer)) == (PAD, EOS, VOCAB)


def test_counts_beside_the_merges_are_left_out(folder):
    before = fairseq_tokenizer(folder)("a house").input_ids
    (folder / "bpecodes").write_text("".join(f"{merge} {9 - n}\n" for n, merge in enumerate(MERGES)))
    (folder / "bpecodes").rename(folder / "code")
    assert fairseq_tokenizer(folder)("a house").input_ids == before


def test_the_script_converts_a_folder_with_its_tokenizer(folder, tmp_path):
    call(convert.main, "--from", "fairseq", folder, tmp_path / "converted")
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "converted").eval()
    assert_same_logits(ours, make_weights())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "converted")
    inputs = tokenizer(["a house", "the dog"], padding=True, return_tensors="pt")
    assert inputs.input_ids.tolist() == fairseq_tokenizer(folder)(["a house", "the dog"], padding=True).input_ids
    assert tokenizer.batch_decode(ours.generate(**inputs, max_new_tokens=3), skip_special_tokens=True)


# What cannot be brought in


class Meter:
    """Stands for what fairseq's own classes are: an object that a pickle would build."""


SEPARATE = {"share_all_embeddings": False}


@pytest.mark.parametrize(
    ("settings", "changed", "message"),
    [
        ({"encoder_normalize_before": True}, {}, "encoder_normalize_before is True: LayerNorm comes before"),
        ({"no_scale_embedding": True}, {}, "no_scale_embedding is True"),
        ({"layernorm_embedding": True}, {}, "layernorm_embedding is True"),
        ({"adaptive_softmax_cutoff": "100"}, {}, "adaptive_softmax_cutoff is set"),
        ({"decoder_embed_dim": 8}, {}, r"encoder_embed_dim, decoder_embed_dim and .* differ: \[8, 16\]"),
        ({"decoder_ffn_embed_dim": 24}, {}, r"decoder.layers.0.ffn.fc1.weight is of shape \(20, 16\)"),
        (SEPARATE, {}, "the weights lack decoder.output_projection.weight"),
        ({"encoder_learned_pos": True}, {}, "the weights lack encoder.embed_positions.weight"),
        ({}, {"encoder.layer_norm.weight": torch.ones(D)}, "encoder.layer_norm.weight is a weight that the paper's"),
        ({}, {"decoder.layers.1.fc1.bias": None}, "the weights lack decoder.layers.1.fc1.bias"),
        ({}, {"encoder.embed_tokens.weight": None}, "the weights lack encoder.embed_tokens.weight"),
        (SEPARATE, {"encoder.embed_tokens.weight": torch.zeros(24, D)}, "the source has a vocabulary of 24 tokens"),
    ],
)
def test_what_the_papers_model_cannot_be_is_refused(tmp_path, settings, changed, message):
    """Weights changed, or left out where None."""
    weights = {**make_weights(tied=settings != SEPARATE or not changed), **changed}
    weights = OrderedDict((name, weight) for name, weight in weights.items() if weight is not None)
    path = save(tmp_path / "model.pt", weights, make_settings(**settings))
    with pytest.raises(ValueError, match=f"model.pt: {message}"):
        from_fairseq(path)


def with_an_object(folder: Path) -> None:
    save(folder / "model.pt", make_weights(), extra={"meter": Meter()})


def with_a_command(folder: Path) -> None:
    class Command:
        def __reduce__(self):
            return exec, (f"open({str(folder / 'ran')!r}, 'w')",)

    (folder / "model.pt").write_bytes(pickle.dumps(Command()))


def with_other_order(folder: Path) -> None:
    file = folder / "dict.de.txt"
    file.write_text("".join(f"{line}\n" for line in reversed(file.read_text().splitlines())))


def with_more_tokens(folder: Path) -> None:
    for file in folder.glob("dict.*.txt"):
        file.write_text(file.read_text() + "more 1\n")


@pytest.mark.parametrize(
    ("spoil", "file", "message"),
    [
        (with_an_object, "/model.pt", "holds .*Meter; of a pickle only tensors, plain containers"),
        (with_a_command, "/model.pt", "holds .*exec; of a pickle only|cannot be read"),
        (lambda folder: os.truncate(folder / "model.pt", 9000), "/model.pt", "cannot be read"),
        (lambda folder: torch.save({"x": 1}, folder / "model.pt"), "/model.pt", "no checkpoint of fairseq's"),
        (lambda folder: torch.save({"model": {}}, folder / "model.pt"), "/model.pt", "neither 'args' nor 'cfg'"),
        (lambda folder: (folder / "model.pt").unlink(), "/model.pt", "no such file"),
        (lambda folder: (folder / "dict.de.txt").unlink(), "/dict.de.txt", "cannot be read"),
        (lambda folder: (folder / "dict.en.txt").write_text("a b c\n"), "/dict.en.txt, line 1", "not a token and"),
        (lambda folder: (folder / "dict.en.txt").write_text("a 1\na 2\n"), "/dict.en.txt", "a token is there twice"),
        (lambda folder: (folder / "bpecodes").unlink(), "", "no merges"),
        (lambda folder: (folder / "bpecodes").write_text("abc\n"), "/bpecodes", "not the merges of subword-nmt"),
        (with_other_order, "", "dict.en.txt and dict.de.txt differ; a model of this package has one vocabulary"),
        (with_more_tokens, "/dict.en.txt", "has 22 tokens, the model 21"),
    ],
)
def test_bad_folders_get_one_line_and_leave_nothing(folder, tmp_path, spoil, file, message):
    spoil(folder)
    error = call(convert.main, "--from", "fairseq", folder, tmp_path / "out").error
    assert error.startswith(f"{folder}{file}: ") and re.search(message, error)
    assert [path.name for path in tmp_path.iterdir()] == ["wmt16.en-de"]
    assert not (folder / "ran").exists()
