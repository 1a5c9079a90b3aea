"""fairseq's transformers, brought in, compute what its names and semantics say, written out here in plain torch."""

import argparse
import io
import math
import pickle
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_vanilla.cli import convert as convert_checkpoint
from modeling_vanilla.interop import fairseq_tokenizer, from_fairseq

VOCAB, D, HEADS, LAYERS, FFN = 21, 16, 4, 2, 20
PAD, EOS = 1, 2
DICTIONARY = [
    "a",
    "ho@@",
    "use",
    "Haus",
    "ein",
    "h@@",
    "o@@",
    "u@@",
    "s@@",
    "e",
    "the",
    "dog",
    "m1",
    "m2",
    "m3",
    "m4",
    "m5",
]
MERGES = ["h o", "u s", "us e</w>", "H a", "Ha u", "Hau s</w>", "e i", "ei n</w>"]


def make_settings(**overrides) -> dict:
    """What fairseq's transformer_wmt_en_de saves of its settings, in short."""
    settings = {"arch": "transformer_wmt_en_de", "source_lang": "en", "target_lang": "de", "label_smoothing": 0.1}
    for stack in ("encoder", "decoder"):
        settings |= {
            f"{stack}_embed_dim": D,
            f"{stack}_layers": LAYERS,
            f"{stack}_attention_heads": HEADS,
            f"{stack}_ffn_embed_dim": FFN,
            f"{stack}_normalize_before": False,
            f"{stack}_learned_pos": False,
        }
    settings |= {"share_all_embeddings": True, "max_source_positions": 60, "max_target_positions": 60, "dropout": 0.3}
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
        for layer in range(LAYERS):
            name = f"{stack}.layers.{layer}"
            for attention in ("self_attn", "encoder_attn")[: 1 if stack == "encoder" else 2]:
                for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
                    weights[f"{name}.{attention}.{part}.weight"] = draw(D, D)
                    weights[f"{name}.{attention}.{part}.bias"] = draw(D)
                weights[f"{name}.{attention}_layer_norm.weight"] = 1 + draw(D)
                weights[f"{name}.{attention}_layer_norm.bias"] = draw(D)
            for linear, shape in (("fc1", (FFN, D)), ("fc2", (D, FFN))):
                weights[f"{name}.{linear}.weight"] = draw(*shape)
                weights[f"{name}.{linear}.bias"] = draw(shape[0])
            weights[f"{name}.final_layer_norm.weight"] = 1 + draw(D)
            weights[f"{name}.final_layer_norm.bias"] = draw(D)
    if not tied:
        weights["decoder.output_projection.weight"] = draw(VOCAB, D)
    return weights


def in_old_names(weights: OrderedDict) -> OrderedDict:
    """As fairseq saved them in 2018: fused projections, numbered norms, embed_out."""
    old = OrderedDict()
    numbers = {
        "encoder": ["self_attn_layer_norm", "final_layer_norm"],
        "decoder": ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"],
    }
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
            number = numbers[parts[0]].index(parts[-2])
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
    rows = []
    for position in range(PAD + 1, PAD + 1 + length):
        angles = [position / 10000 ** (i / (half - 1)) for i in range(half)]
        rows.append([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])
    return torch.tensor(rows)


def fairseq_logits(weights: OrderedDict, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The post-LN transformer by fairseq's names, one sentence at a time, without padding. (T, VOCAB)"""

    def attend(name: str, query: torch.Tensor, memory: torch.Tensor, causal: bool) -> torch.Tensor:
        get = lambda part, kind: weights[f"{name}.{part}.{kind}"]  # noqa: E731
        mask = torch.ones(len(query), len(memory), dtype=torch.bool).triu(1) if causal else None
        output, _ = functional.multi_head_attention_forward(
            query[:, None],
            memory[:, None],
            memory[:, None],
            D,
            HEADS,
            None,
            torch.cat([get(part, "bias") for part in ("q_proj", "k_proj", "v_proj")]),
            None,
            None,
            False,
            0.0,
            get("out_proj", "weight"),
            get("out_proj", "bias"),
            training=False,
            attn_mask=mask,
            use_separate_proj_weight=True,
            q_proj_weight=get("q_proj", "weight"),
            k_proj_weight=get("k_proj", "weight"),
            v_proj_weight=get("v_proj", "weight"),
        )
        return output[:, 0]

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
    config = ours.config
    special = (config.bos_token_id, config.pad_token_id, config.eos_token_id, config.decoder_start_token_id)
    assert special == (0, 1, 2, 2)
    assert (config.dropout, config.activation_dropout, config.label_smoothing) == (0.3, 0.2, 0.1)
    assert (config.max_position_embeddings, config.position_embedding_type) == (60, "learned")
    assert ours.generation_config.bad_words_ids == [[PAD]]
    assert (ours.generation_config.num_beams, ours.generation_config.length_penalty) == (4, 0.6)


# Folders


@pytest.fixture
def folder(tmp_path) -> Path:
    """As the published archives are: model.pt, a dictionary for each language, and the merges."""
    folder = tmp_path / "wmt16.en-de"
    folder.mkdir()
    save(folder / "model.pt", make_weights())
    for language in ("en", "de"):
        (folder / f"dict.{language}.txt").write_text("".join(f"{token} 7\n" for token in DICTIONARY))
    (folder / "bpecodes").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in MERGES))
    return folder


def test_the_tokenizer_is_subword_nmts(folder):
    """The merges by hand: "house" becomes ho@@ use, whose numbers are their lines behind the four special tokens."""
    pytest.importorskip("sacremoses")
    tokenizer = fairseq_tokenizer(folder)
    house = [4 + DICTIONARY.index("ho@@"), 4 + DICTIONARY.index("use")]
    assert tokenizer("a house").input_ids == [4, *house, EOS]
    assert tokenizer("a zebra").input_ids[1] == 3
    assert tokenizer.decode([8, 7, EOS], skip_special_tokens=True) == "ein Haus"
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, len(tokenizer)) == (PAD, EOS, VOCAB)


def test_counts_beside_the_merges_are_left_out(folder):
    pytest.importorskip("sacremoses")
    before = fairseq_tokenizer(folder)("a house").input_ids
    (folder / "bpecodes").write_text("".join(f"{merge} {9 - n}\n" for n, merge in enumerate(MERGES)))
    (folder / "bpecodes").rename(folder / "code")
    assert fairseq_tokenizer(folder)("a house").input_ids == before


def test_the_script_converts_a_folder_with_its_tokenizer(folder, tmp_path):
    pytest.importorskip("sacremoses")
    convert_checkpoint.main(["--from", "fairseq", str(folder), str(tmp_path / "converted")])
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "converted").eval()
    assert_same_logits(ours, make_weights())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "converted")
    inputs = tokenizer(["a house", "the dog"], padding=True, return_tensors="pt")
    assert inputs.input_ids.tolist() == fairseq_tokenizer(folder)(["a house", "the dog"], padding=True).input_ids
    assert tokenizer.batch_decode(ours.generate(**inputs, max_new_tokens=3), skip_special_tokens=True)


# What cannot be brought in


class Meter:
    """Stands for what fairseq's own classes are: an object that a pickle would build."""


def trailing(weights: OrderedDict) -> OrderedDict:
    weights["encoder.layer_norm.weight"] = torch.ones(D)
    return weights


def lacking(name: str):
    def spoil(weights: OrderedDict) -> OrderedDict:
        del weights[name]
        return weights

    return spoil


@pytest.mark.parametrize(
    ("settings", "spoil", "message"),
    [
        ({"encoder_normalize_before": True}, None, "encoder_normalize_before is True: LayerNorm comes before"),
        ({"no_scale_embedding": True}, None, "no_scale_embedding is True"),
        ({"layernorm_embedding": True}, None, "layernorm_embedding is True"),
        ({"adaptive_softmax_cutoff": "100"}, None, "adaptive_softmax_cutoff is set"),
        ({"decoder_embed_dim": 8}, None, r"encoder_embed_dim, decoder_embed_dim and .* differ: \[8, 16\]"),
        ({"decoder_ffn_embed_dim": 24}, None, r"decoder.layers.0.ffn.fc1.weight is of shape \(20, 16\)"),
        ({"share_all_embeddings": False}, None, "the weights lack decoder.output_projection.weight"),
        ({"encoder_learned_pos": True}, None, "the weights lack encoder.embed_positions.weight"),
        ({}, trailing, "encoder.layer_norm.weight is a weight that the paper's model does not have"),
        ({}, lacking("decoder.layers.1.fc1.bias"), "the weights lack decoder.layers.1.fc1.bias"),
        ({}, lacking("encoder.embed_tokens.weight"), "the weights lack encoder.embed_tokens.weight"),
    ],
)
def test_what_the_papers_model_cannot_be_is_refused(tmp_path, settings, spoil, message):
    weights = spoil(make_weights()) if spoil else make_weights()
    path = save(tmp_path / "model.pt", weights, make_settings(**settings))
    with pytest.raises(ValueError, match=f"model.pt: {message}"):
        from_fairseq(path)


def test_vocabularies_of_two_sizes_are_refused(tmp_path):
    weights = make_weights(tied=False)
    weights["encoder.embed_tokens.weight"] = torch.zeros(VOCAB + 3, D)
    with pytest.raises(ValueError, match="the source has a vocabulary of 24 tokens, the target one of 21"):
        from_fairseq(save(tmp_path / "model.pt", weights, make_settings(share_all_embeddings=False)))


def with_an_object(folder: Path) -> None:
    save(folder / "model.pt", make_weights(), extra={"meter": Meter()})


def with_a_command(folder: Path) -> None:
    class Command:
        def __reduce__(self):
            return exec, (f"open({str(folder / 'ran')!r}, 'w')",)

    (folder / "model.pt").write_bytes(pickle.dumps(Command()))


def truncated(folder: Path) -> None:
    data = (folder / "model.pt").read_bytes()
    (folder / "model.pt").write_bytes(data[: len(data) // 2])


def with_more_tokens(folder: Path) -> None:
    for file in folder.glob("dict.*.txt"):
        file.write_text(file.read_text() + "more 1\n")


@pytest.mark.parametrize(
    ("spoil", "file", "message"),
    [
        (with_an_object, "/model.pt", "holds .*Meter; of a pickle only tensors, plain containers"),
        (with_a_command, "/model.pt", "holds .*exec; of a pickle only|cannot be read"),
        (truncated, "/model.pt", "cannot be read"),
        (lambda folder: (folder / "model.pt").write_bytes(b"no pickle"), "/model.pt", "cannot be read"),
        (lambda folder: torch.save({"x": 1}, folder / "model.pt"), "/model.pt", "no checkpoint of fairseq's"),
        (lambda folder: torch.save({"model": {}}, folder / "model.pt"), "/model.pt", "neither 'args' nor 'cfg'"),
        (lambda folder: (folder / "model.pt").unlink(), "/model.pt", "no such file"),
        (lambda folder: (folder / "dict.de.txt").unlink(), "/dict.de.txt", "cannot be read"),
        (lambda folder: (folder / "dict.en.txt").write_text("a b c\n"), "/dict.en.txt, line 1", "not a token and"),
        (lambda folder: (folder / "dict.en.txt").write_text("a 1\na 2\n"), "/dict.en.txt", "a token is there twice"),
        (lambda folder: (folder / "bpecodes").unlink(), "", "no merges"),
        (lambda folder: (folder / "bpecodes").write_text("abc\n"), "/bpecodes", "not the merges of subword-nmt"),
        (with_more_tokens, "", "the tokenizer has 22 tokens, the model 21"),
    ],
)
def test_bad_folders_get_one_line_and_leave_nothing(folder, tmp_path, capfd, spoil, file, message):
    pytest.importorskip("sacremoses")
    spoil(folder)
    with pytest.raises(SystemExit) as stopped:
        convert_checkpoint.main(["--from", "fairseq", str(folder), str(tmp_path / "out")])
    assert stopped.value.code == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: {folder}{file}: ")
    assert re.search(message, line)
    assert [path.name for path in tmp_path.iterdir()] == ["wmt16.en-de"]
    assert not (folder / "ran").exists()
