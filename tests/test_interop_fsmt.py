"""FSMT models, brought in, compute and search as transformers' FSMTForConditionalGeneration does."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, FSMTConfig, FSMTForConditionalGeneration, pipeline

from modeling_vanilla.cli import convert as convert_checkpoint
from modeling_vanilla.interop import from_fsmt, fsmt_tokenizer

VOCAB = 40
PAD, EOS = 1, 2


def make_fsmt(seed: int = 0, **overrides) -> FSMTForConditionalGeneration:
    """A small FSMT in evaluation mode, every weight moved off its initial value (norms and biases are 1 and 0)."""
    torch.manual_seed(seed)
    settings = {
        "src_vocab_size": VOCAB,
        "tgt_vocab_size": VOCAB,
        "d_model": 24,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 36,
        "decoder_ffn_dim": 28,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }
    fsmt = FSMTForConditionalGeneration(FSMTConfig(**{**settings, **overrides}))
    with torch.no_grad():
        for name, parameter in fsmt.named_parameters():
            if "embed_positions" not in name:
                parameter += 0.2 * torch.randn_like(parameter)
    return fsmt.eval()


def make_batch(rows: int = 4, longest: int = 11) -> dict[str, torch.Tensor]:
    """Sources of unequal lengths, padded on the right, that end in EOS; and what the decoder has read so far."""
    generator = torch.Generator().manual_seed(5)
    source = torch.randint(4, VOCAB, (rows, longest), generator=generator)
    target = torch.randint(4, VOCAB, (rows, longest - 3), generator=generator)
    for row in range(rows):
        source[row, longest - 2 * row - 1] = EOS
        source[row, longest - 2 * row :] = PAD
    target[:, 0] = EOS
    return {"input_ids": source, "attention_mask": (source != PAD).long(), "decoder_input_ids": target}


def assert_same_logits(ours, fsmt, batch: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        theirs = fsmt(**batch, use_cache=False).logits  # with a cache, it hides no later position
        torch.testing.assert_close(ours(**batch).logits, theirs, rtol=0, atol=1e-4)
    assert theirs.std() > 0.5  # else the comparison says little


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
    assert_same_logits(ours, fsmt, make_batch())


def test_greedy_translations_are_fsmts():
    fsmt = make_fsmt(seed=2)
    batch = make_batch()
    del batch["decoder_input_ids"]
    settings = {"num_beams": 1, "max_new_tokens": 10, "forced_eos_token_id": None}
    ours = from_fsmt(fsmt).generate(**batch, **settings, length_penalty=None)
    assert ours.tolist() == fsmt.generate(**batch, **settings).tolist()
    assert len({tuple(row) for row in ours.tolist()}) > 1


def test_the_search_is_fsmts_but_for_its_limits():
    fsmt = make_fsmt()
    fsmt.generation_config.length_penalty = 1.3
    config = from_fsmt(fsmt).generation_config
    assert (config.length_penalty, config.max_extra_tokens, config.max_length) == (1.3, 50, None)
    assert config.length_penalty_type == "length"
    assert (config.pad_token_id, config.eos_token_id, config.decoder_start_token_id) == (PAD, EOS, EOS)


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
    convert_checkpoint.main(["--from", "fsmt", str(folder), str(tmp_path / "converted")])
    assert [path.name for path in tmp_path.iterdir()] == ["converted"]
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "converted").eval()
    theirs = FSMTForConditionalGeneration.from_pretrained(folder).eval()
    batch = {"input_ids": torch.tensor([[4, 5, 2]]), "decoder_input_ids": torch.tensor([[2, 11, 12]])}
    assert_same_logits(ours, theirs, batch)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "converted")
    assert tokenizer("a house").input_ids == AutoTokenizer.from_pretrained(folder)("a house").input_ids == [4, 5, 2]
    assert tokenizer.decode([12, 11, 2], skip_special_tokens=True) == "ein Haus"
    assert tokenizer.eos_token_id == EOS
    translation = pipeline("translation", model=str(tmp_path / "converted"))("a house", max_new_tokens=4)
    assert isinstance(translation[0]["translation_text"], str)


def of_another_type(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "marian"}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (of_another_type, "model_type in config.json is 'marian', not 'fsmt'"),
        (lambda folder: (folder / "vocab-tgt.json").unlink(), "no tokenizer could be loaded"),
    ],
)
def test_bad_folders_get_one_line_and_leave_nothing(folder, tmp_path, capfd, spoil, message):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    spoil(copy)
    with pytest.raises(SystemExit) as stopped:
        convert_checkpoint.main(["--from", "fsmt", str(copy), str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith(f"error: {copy}: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


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


def test_a_tokenizer_of_another_kind_is_refused(folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ValueError, match="tokenizer"):
        fsmt_tokenizer(tmp_path)
