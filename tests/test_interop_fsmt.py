"""FSMT models, brought in, compute and search as transformers' FSMTForConditionalGeneration does."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers import call
from test_interop_marian import SIZES, VOCAB, assert_same_logits, make_batch, randomise
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    FSMTConfig,
    FSMTForConditionalGeneration,
    MarianConfig,
)

from modeling_vanilla.cli import convert
from modeling_vanilla.interop import from_fsmt

PAD, EOS = 1, 2


def make_fsmt(seed: int = 0, **overrides) -> FSMTForConditionalGeneration:
    """A small FSMT of random weights in evaluation mode."""
    torch.manual_seed(seed)
    settings = {"src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB, "tie_word_embeddings": False, **SIZES, **overrides}
    fsmt = FSMTForConditionalGeneration(FSMTConfig(**settings))
    randomise(fsmt)
    return fsmt.eval()


@pytest.mark.parametrize(
    ("overrides", "tied"),
    [
        ({}, False),
        ({"tie_word_embeddings": True}, True),
        ({"activation_function": "gelu", "d_model": 18, "encoder_attention_heads": 3}, False),
        ({"d_model": 15, "encoder_attention_heads": 5, "decoder_attention_heads": 3}, False),
    ],
    ids=["three matrices", "one matrix", "gelu, other heads", "odd d_model"],
)
def test_the_logits_are_fsmts(overrides, tied):
    fsmt = make_fsmt(**overrides)
    ours = from_fsmt(fsmt)
    assert not ours.training and ours.config.tie_word_embeddings is tied
    assert (ours.lm_head.weight is ours.get_input_embeddings().weight) is tied
    assert_same_logits(ours, fsmt, make_batch(fsmt.config), tolerance=1e-4)


def test_greedy_translations_are_fsmts():
    fsmt = make_fsmt(seed=3)
    batch = make_batch(fsmt.config)
    del batch["decoder_input_ids"]
    expected = torch.full((len(batch["input_ids"]), 1), EOS)
    for _ in range(10):  # not by FSMT's generate(), which in transformers 5.10.1 departs from its own forward()
        with torch.no_grad():
            logits = fsmt(**batch, decoder_input_ids=expected, use_cache=False).logits[:, -1]
        expected = torch.cat((expected, logits.argmax(dim=-1, keepdim=True)), dim=1)
    ours = from_fsmt(fsmt).generate(**batch, num_beams=1, max_new_tokens=10, forced_eos_token_id=None)
    assert ours.tolist() == expected.tolist()
    assert len({tuple(row) for row in ours.tolist()}) > 1


def test_the_search_is_fsmts_but_for_its_limits():
    fsmt = make_fsmt()
    fsmt.generation_config.length_penalty = 1.3
    expected = {"length_penalty": 1.3, "length_penalty_type": "length", "max_extra_tokens": 50, "max_length": None}
    expected |= {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": EOS}
    config = vars(from_fsmt(fsmt).generation_config)
    assert config == config | expected


# Folders

PIECES = ["<s>", "<pad>", "</s>", "<unk>", "a</w>", "house</w>", "h", "o", "u", "s", "e</w>", "Haus</w>", "ein</w>"]
MERGES = ["h o", "ho u", "hou s", "hous e</w>", "a </w>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An FSMT model as facebook's, with its vocabularies, merges and settings."""
    folder = tmp_path_factory.mktemp("fsmt")
    make_fsmt(src_vocab_size=len(PIECES), tgt_vocab_size=len(PIECES)).save_pretrained(folder)
    for name in ("vocab-src.json", "vocab-tgt.json"):
        (folder / name).write_text(json.dumps({piece: number for number, piece in enumerate(PIECES)}))
    (folder / "merges.txt").write_text("\n".join(MERGES) + "\n")
    (folder / "tokenizer_config.json").write_text('{"langs": ["en", "de"], "tokenizer_class": "FSMTTokenizer"}')
    return folder


def test_the_script_converts_a_folder_with_its_tokenizer(folder, tmp_path):
    pytest.importorskip("sacremoses")
    call(convert.main, "--from", "fsmt", folder, tmp_path / "converted")
    assert [path.name for path in tmp_path.iterdir()] == ["converted"]
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "converted").eval()
    theirs = FSMTForConditionalGeneration.from_pretrained(folder).eval()
    batch = {"input_ids": torch.tensor([[4, 5, 2]]), "decoder_input_ids": torch.tensor([[2, 11, 12]])}
    assert_same_logits(ours, theirs, batch, tolerance=1e-4)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "converted")
    assert tokenizer("a house").input_ids == AutoTokenizer.from_pretrained(folder)("a house").input_ids == [4, 5, 2]
    assert tokenizer.decode([12, 11, 2], skip_special_tokens=True) == "ein Haus"
    assert tokenizer.eos_token_id == EOS


def with_other_order(folder: Path) -> None:
    vocabulary = {piece: number for number, piece in enumerate(reversed(PIECES))}
    (folder / "vocab-tgt.json").write_text(json.dumps(vocabulary))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: MarianConfig().save_pretrained(folder), ": model_type in config.json is 'marian', not 'fsmt'"),
        (lambda folder: (folder / "vocab-tgt.json").unlink(), "/vocab-tgt.json: cannot be read"),
        (with_other_order, ": vocab-src.json and vocab-tgt.json differ; a model of this package has one vocabulary"),
    ],
)
def test_bad_folders_get_one_line_and_leave_nothing(folder, tmp_path, spoil, message):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    spoil(copy)
    assert call(convert.main, "--from", "fsmt", copy, tmp_path / "out").error.startswith(f"{copy}{message}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"scale_embedding": False}, r"^scale_embedding is False .*\(3\.4\)$"),
        ({"tgt_vocab_size": 44}, r"^the source has a vocabulary of 40 tokens, the target one of 44"),
    ],
)
def test_what_the_papers_model_cannot_be_is_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        from_fsmt(make_fsmt(**overrides))
