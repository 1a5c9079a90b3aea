"""What every importer promises: the logits and settings of the source, its tokenizer, and refusals in one line."""

import argparse
import itertools
import json
import math
import re
from collections import OrderedDict
from pathlib import Path

import importers
import pytest
import torch
from helpers import call, pickled, text, without
from importers import make_fairseq, make_fsmt, make_marian, make_settings, reference_of, save
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_vanilla.cli import convert
from modeling_vanilla.interop import from_fairseq, from_fsmt, from_marian

# Logits and settings

# The sines are one more than the cosines.
ODD = {"activation_function": "gelu", "d_model": 15, "encoder_attention_heads": 1, "decoder_attention_heads": 5}


def marian(**overrides):
    model = make_marian(**overrides)
    return from_marian(model), reference_of(model)


def fsmt(**overrides):
    model = make_fsmt(**overrides)
    return from_fsmt(model), reference_of(model)


def fairseq(path: Path, spell=OrderedDict, settings: dict | None = None, **form):
    weights, reference = make_fairseq(**form)
    return from_fairseq(save(path, spell(weights), settings or make_settings())), reference


def fairseq_of_2021(path: Path):
    """Settings in groups, as its later versions have them, in the format of torch before 1.6."""
    settings, (weights, reference) = make_settings(), make_fairseq()
    smoothing = settings.pop("label_smoothing")
    cfg = {"model": argparse.Namespace(**settings), "criterion": {"label_smoothing": smoothing}}
    torch.save({"args": None, "cfg": cfg, "model": weights}, path, _use_new_zipfile_serialization=False)
    return from_fairseq(path), reference


DROPOUT = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
IMPORTED = {
    "opus-mt": lambda _: marian(**DROPOUT),
    "marian with <s>": lambda _: marian(**importers.TINY),
    "marian, odd d_model": lambda _: marian(**ODD),
    "fsmt": lambda _: fsmt(**DROPOUT),
    "fsmt, one matrix, odd d_model": lambda _: fsmt(tie_word_embeddings=True, **ODD),
    "fairseq of 2018": lambda path: fairseq(path, importers.in_old_names, tied=False),
    "fairseq of 2019": lambda path: fairseq(path, settings=make_settings(relu_dropout=0.1, attention_dropout=0.2)),
    "fairseq of 2021": fairseq_of_2021,
    "fairseq of 2022": lambda path: fairseq(path, importers.in_new_names),
    "fairseq, learned": lambda path: fairseq(path, settings=make_settings(**LEARNED), learned=True),
}


def make_rows(config) -> tuple[torch.Tensor, list[int], torch.Tensor]:
    """Sources (B, S) that end in EOS, padded on the right; their lengths; what the decoder has read so far (B, T)."""
    generator = torch.Generator().manual_seed(5)
    lengths = [11, 9, 7, 3]
    source = torch.randint(4, config.vocab_size - 1, (4, 11), generator=generator)
    target = torch.randint(4, config.vocab_size - 1, (4, 8), generator=generator)
    for row, length in enumerate(lengths):
        source[row, length - 1], source[row, length:] = config.eos_token_id, config.pad_token_id
    target[:, 0] = config.decoder_start_token_id
    return source, lengths, target


@torch.no_grad()
def assert_same_logits(ours, reference: importers.Reference, tolerance: float = 1e-4) -> None:
    """Ours in one batch, and the source's one sentence at a time, without padding."""
    source, lengths, target = make_rows(ours.config)
    mask = (torch.arange(source.shape[1]) < torch.tensor(lengths)[:, None]).long()
    logits = ours(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    for row, length in enumerate(lengths):
        expected = reference(source[row, :length], target[row])
        assert expected.std() > 0.5  # else the comparison says little
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", IMPORTED)
def test_logits_and_dropout_are_the_sources(tmp_path, name):
    ours, reference = IMPORTED[name](tmp_path / "model.pt")
    assert not ours.training
    assert (ours.lm_head.weight is ours.get_input_embeddings().weight) is ours.config.tie_word_embeddings
    if name in ("opus-mt", "fsmt", "fairseq of 2019"):
        assert {name: getattr(ours.config, name) for name in DROPOUT} == DROPOUT
    assert_same_logits(ours, reference)


@pytest.mark.parametrize(("make", "import_"), [(make_marian, from_marian), (make_fsmt, from_fsmt)])
def test_the_settings_of_the_search_are_kept_but_for_its_limits(make, import_):
    source = make()
    kept = {"num_beams": 6, "length_penalty": 1.3, "bad_words_ids": [[7]], "renormalize_logits": True}
    source.generation_config.update(max_length=512, **kept)
    ours = vars(import_(source).generation_config)
    expected = {**kept, "length_penalty_type": "length", "max_extra_tokens": 50, "max_length": None}
    assert {name: ours[name] for name in expected} == expected


def test_fairseqs_search_is_the_papers(tmp_path):
    ours, _ = fairseq(tmp_path / "model.pt")
    search = {"bad_words_ids": [[1]], "num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "gnmt"}
    assert ours.generation_config.to_dict() == ours.generation_config.to_dict() | search


# Folders


def write(library: str, folder: Path) -> importers.Reference:
    """Write a folder of the library that is named: the logits of its model."""
    if library != "marian":
        pytest.importorskip("sacremoses")
    folder.mkdir()
    return importers.WRITERS[library](folder)


TOKENIZED = [
    ("marian", ["A c", "D"], [[2, 30, 0], [5, 0, importers.VOCAB - 1]], ([2, 30, 0], "Ac")),
    ("fsmt", ["a house", "a"], [[4, 5, 2], [4, 2, 1]], ([12, 11, 2], "ein Haus")),
    # "house" becomes ho@@ use by the merges; numbers are lines of the dictionary behind four special tokens.
    ("fairseq", ["a house", "a q"], [[4, 5, 6, 2], [4, 3, 2, 1]], ([8, 7, 2], "ein Haus")),
]


@pytest.mark.parametrize(("library", "texts", "ids", "decoded"), TOKENIZED)
def test_a_folder_is_converted_with_its_tokenizer(tmp_path, library, texts, ids, decoded):
    source, destination = tmp_path / library, tmp_path / "new" / "model"
    reference = write(library, source)
    assert call(convert.main, "--from", library, source, destination).code == 0
    assert [path.name for path in destination.parent.iterdir()] == ["model"]
    model = AutoModelForSeq2SeqLM.from_pretrained(destination).eval()
    assert_same_logits(model, reference)
    tokenizer = AutoTokenizer.from_pretrained(destination)
    assert tokenizer(texts, padding=True).input_ids == ids
    assert tokenizer.decode(decoded[0], skip_special_tokens=True) == decoded[1]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (model.config.pad_token_id, model.config.eos_token_id)


# MarianMT alone: its beam search and its sentencepiece tokenizer


RULES = [*itertools.product([-1, 0.0, 0.6], [False, True, "never"], [{}]), (0.6, False, importers.TINY)]


@pytest.mark.parametrize(("alpha", "early_stopping", "overrides"), RULES)
def test_beam_search_finds_what_marian_finds(alpha, early_stopping, overrides):
    """By the formula and the rules of transformers, which an imported model keeps.

    A limit ends some sentences, others end before it, and the model would like to generate the pad token.
    """
    for seed in range(4):
        marian = make_marian(seed=seed, **overrides)
        eos, pad = marian.config.eos_token_id, marian.config.pad_token_id
        marian.final_logits_bias[0, [eos, pad]] += torch.tensor([1.5, 3])
        source, *_ = make_rows(marian.config)
        batch = {"input_ids": source, "attention_mask": (source != pad).long()}
        settings = {"num_beams": 4, "length_penalty": alpha, "early_stopping": early_stopping}
        settings |= {"max_new_tokens": 12, "forced_eos_token_id": None, "num_return_sequences": 3}
        scored = settings | {"return_dict_in_generate": True, "output_scores": True}
        ours, theirs = from_marian(marian), marian.generate(**batch, **scored)
        assert sentences(ours.generate(**batch, **settings), eos) == sentences(theirs.sequences, eos)
        ours = ours.generate(**batch, **scored)
        torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, rtol=1e-5, atol=1e-4)


def sentences(rows: torch.Tensor, eos: int) -> list[list[int]]:
    """What stands between the decoder's start token and EOS."""
    rows = [row[1:] for row in rows.tolist()]
    return [row[: row.index(eos)] if eos in row else row for row in rows]


def test_marians_own_tokenizer_is_carried_over(tmp_path):
    """opus-mt's: two sentencepiece models and one vocabulary."""
    sentencepiece = pytest.importorskip("sentencepiece")
    for side, line in (("source", "a small house stands there"), ("target", "ein kleines haus steht dort")):
        options = {"vocab_size": 20, "hard_vocab_limit": False, "minloglevel": 2, "model_prefix": str(tmp_path / side)}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter([line] * 20), **options)
        (tmp_path / f"{side}.model").rename(tmp_path / f"{side}.spm")
    pieces = ["</s>", "<unk>"]
    for side in ("source", "target"):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / f"{side}.spm"))
        pieces += [piece for piece in map(processor.id_to_piece, range(len(processor))) if piece not in pieces]
    pieces.append("<pad>")
    (tmp_path / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (tmp_path / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    last = len(pieces) - 1
    make_marian(vocab_size=len(pieces), pad_token_id=last, decoder_start_token_id=last).save_pretrained(tmp_path)
    assert call(convert.main, "--from", "marian", tmp_path, tmp_path / "converted").succeeded
    folders = (tmp_path, tmp_path / "converted")
    theirs, ours = (AutoTokenizer.from_pretrained(path)("a house", text_target="ein haus") for path in folders)
    assert dict(ours) == dict(theirs)
    assert ours.input_ids[-1] == ours["labels"][-1] == 0
    (tmp_path / "target.spm").unlink()
    error = call(convert.main, "--from", "marian", tmp_path, tmp_path / "again").error
    assert error == f"{tmp_path}: no tokenizer could be loaded: no target.spm"


# What cannot be brought in


def made_again(make, **settings):
    """Another model in its place."""
    return lambda folder: make(**settings).save_pretrained(folder)


def saved_again(changed: dict | None = None, **settings):
    """A checkpoint of fairseq's with other weights and settings."""
    weights = make_fairseq()[0] | (changed or {})
    return lambda folder: save(folder / "model.pt", weights, make_settings(**settings))


NOT_FINITE = {"encoder.layers.0.fc1.bias": torch.full((importers.SIZES["encoder_ffn_dim"],), math.nan)}
REVERSED = "".join(f"{token} 7\n" for token in reversed(importers.DICTIONARY))
BAD_FOLDERS = [
    ("marian", pickled, "{folder}: .*no file named model.safetensors"),
    # The class of the tokenizer is that of opus-mt then, whose files are not here.
    ("marian", without("tokenizer_config.json"), "{folder}: no tokenizer .*: no source.spm, target.spm, vocab.json$"),
    ("fsmt", without("merges.txt"), "{folder}: no tokenizer could be loaded: no merges.txt$"),
    # What the paper's model cannot be.
    ("marian", made_again(make_marian, scale_embedding=False), r"scale_embedding is False .*\(3\.4\)$"),
    ("fsmt", made_again(make_fsmt, tgt_vocab_size=44), r"the weight model.decoder.embed_tokens.weight is of shape"),
    ("fairseq", saved_again(source_lang=None), "{file}: its arguments name no source_lang or no target_lang$"),
    ("fairseq", saved_again(adaptive_softmax_cutoff="100"), "{file}: adaptive_softmax_cutoff is 100, which"),
    ("fairseq", text("dict.de.txt", REVERSED), "{folder}: dict.en.txt and dict.de.txt differ; a model .* has one"),
    # What a pickle can hold.
    ("fairseq", lambda at: save(at / "model.pt", make_fairseq()[0], x=Path()), "{file}: is no checkpoint of tensors"),
    ("fairseq", saved_again(NOT_FINITE), "{file}: .*fc1.bias .*NaN"),
]


@pytest.mark.parametrize(("library", "spoil", "message"), BAD_FOLDERS)
def test_bad_folders_get_one_line_and_leave_nothing(tmp_path, library, spoil, message):
    folder = tmp_path / library
    write(library, folder)
    spoil(folder)
    error = call(convert.main, "--from", library, folder, tmp_path / "out").error
    named = message.replace("{file}", "{folder}/model.pt").replace("{folder}", re.escape(str(folder)))
    assert re.match(named, error)
    assert not (tmp_path / "out").exists()
