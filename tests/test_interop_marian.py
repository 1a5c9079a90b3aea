"""MarianMT, brought in: what no other importer has, its beam search and its sentencepiece tokenizer."""

import json

import pytest
import torch
from helpers import call
from importers import TINY, make_marian
from test_interop_importers import make_rows
from transformers import AutoTokenizer

from modeling_vanilla.cli import convert
from modeling_vanilla.interop import from_marian


@pytest.mark.parametrize("overrides", [{}, TINY], ids=["opus-mt", "relu"])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("alpha", [-1, 0.0, 0.6])
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
        ours = from_marian(marian)
        theirs = sentences(marian.generate(**batch, **settings), eos)
        assert sentences(ours.generate(**batch, **settings), eos) == theirs
        settings |= {"return_dict_in_generate": True, "output_scores": True}
        theirs, ours = marian.generate(**batch, **settings), ours.generate(**batch, **settings)
        torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, rtol=1e-5, atol=1e-4)


def sentences(rows: torch.Tensor, eos: int) -> list[list[int]]:
    """What stands between the decoder's start token and EOS."""
    rows = [row[1:] for row in rows.tolist()]
    return [row[: row.index(eos)] if eos in row else row for row in rows]


def test_marians_own_tokenizer_is_carried_over(tmp_path):
    """opus-mt's: two sentencepiece models and one vocabulary."""
    sentencepiece = pytest.importorskip("sentencepiece")
    for side, text in (("source", "a small house stands there"), ("target", "ein kleines haus steht dort")):
        options = {"vocab_size": 20, "hard_vocab_limit": False, "minloglevel": 2, "model_prefix": str(tmp_path / side)}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter([text] * 20), **options)
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
    call(convert.main, "--from", "marian", tmp_path, tmp_path / "converted")
    theirs = AutoTokenizer.from_pretrained(tmp_path)("a house", text_target="ein haus")
    ours = AutoTokenizer.from_pretrained(tmp_path / "converted")("a house", text_target="ein haus")
    assert dict(ours) == dict(theirs)
    assert ours.input_ids[-1] == ours["labels"][-1] == 0
    (tmp_path / "target.spm").unlink()
    error = call(convert.main, "--from", "marian", tmp_path, tmp_path / "again").error
    assert error == f"{tmp_path}: no tokenizer could be loaded: no target.spm"
