"""What holds for every text, length and batch: hypothesis looks for one for which it does not."""

import io
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from helpers import make_tiny, make_tokenizer, pad_right
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modeling_vanilla.files import decode_lines, write_text
from modeling_vanilla.inference import score_pairs, split_long, translate, word_alignments
from modeling_vanilla.training import DataOptions
from modeling_vanilla.training.data import load_pairs

settings.register_profile(
    "robust", deadline=None, database=None, derandomize=True, max_examples=60, suppress_health_check=list(HealthCheck)
)
settings.load_profile("robust")

TOKENIZER = make_tokenizer(["a small house and a dog", "ein kleines Haus und ein Hund"], 280)
MODEL = make_tiny(len(TOKENIZER))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
SENTENCE = st.text("ab hdogsmal,. üß", min_size=1, max_size=40).filter(str.strip)
IDS = st.lists(st.integers(4, 279), min_size=1, max_size=12).map(lambda ids: [*ids, 2])


@given(st.lists(TEXT.filter(lambda text: "\n" not in text), max_size=5), st.sampled_from(["\n", "\r\n"]))
def test_lines_are_read_as_they_were_written(lines, end):
    lines = [line.rstrip("\r").lstrip("\ufeff") for line in lines]
    content = "".join(f"{line}{end}" for line in lines).encode()
    assert list(decode_lines(io.BytesIO(content), "file")) == lines


@settings(max_examples=15)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
def test_pairs_are_read_as_they_were_written(pairs):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", f"{folder}/cache")
        path = Path(folder) / "train.jsonl"
        rows = [{"translation": {"en": source, "de": target}} for source, target in pairs]
        write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))
        found = load_pairs(DataOptions(train_file=str(path)))["train"]
        assert list(zip(found["source"], found["target"], strict=True)) == pairs


def search(rows, **settings) -> list[list[int]]:
    """What the search finds, without the padding."""
    ids = pad_right(rows)
    mask = (torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]).long()
    found = MODEL.generate(input_ids=ids, attention_mask=mask, **settings).tolist()
    return [[token for token in row if token != MODEL.config.pad_token_id] for row in found]


@settings(max_examples=25)
@given(st.lists(IDS, min_size=2, max_size=4), st.sampled_from([1, 3]))
def test_a_translation_does_not_depend_on_what_is_beside_it(rows, beams):
    together = search(rows, num_beams=beams)
    assert together == [found for row in rows for found in search([row], num_beams=beams)]
    assert search(rows[::-1], num_beams=beams) == together[::-1]


@settings(max_examples=25)
@given(st.lists(IDS, min_size=2, max_size=4), IDS)
def test_padding_on_either_side_changes_no_logits(rows, target):
    decoder = torch.tensor([target] * len(rows))
    right = pad_right(rows)
    mask = (torch.arange(right.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]).long()
    shifts = (mask == 0).sum(1).tolist()
    left = torch.stack([row.roll(shift) for row, shift in zip(right, shifts, strict=True)])
    left_mask = torch.stack([row.roll(shift) for row, shift in zip(mask, shifts, strict=True)])
    with torch.no_grad():
        logits = MODEL(input_ids=right, attention_mask=mask, decoder_input_ids=decoder).logits
        for number, row in enumerate(rows):
            ids = torch.tensor([row])
            alone = MODEL(input_ids=ids, decoder_input_ids=decoder[:1]).logits[0]
            torch.testing.assert_close(logits[number], alone, rtol=0, atol=1e-5)
        others = MODEL(input_ids=left, attention_mask=left_mask, decoder_input_ids=decoder).logits
    torch.testing.assert_close(others, logits, rtol=0, atol=1e-5)


@settings(max_examples=20)
@given(st.lists(SENTENCE, min_size=1, max_size=6), st.integers(60, 4096))
def test_a_text_is_translated_alike_in_any_batch(texts, tokens):
    assert translate(MODEL, TOKENIZER, texts, tokens_per_batch=tokens) == [
        translate(MODEL, TOKENIZER, [text])[0] for text in texts
    ]


@given(st.text("ab cd.,;! \u3000。ü", max_size=300), st.integers(8, 40))
def test_pieces_are_short_enough_and_lose_no_letter(text, limit):
    (pieces,) = split_long(MODEL, TOKENIZER, [text], limit)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert len(pieces) == 1 or all(len(TOKENIZER(piece).input_ids) <= limit for piece in pieces)


@settings(max_examples=25)
@given(st.lists(st.tuples(SENTENCE, SENTENCE), min_size=1, max_size=4))
def test_a_score_is_the_sum_of_the_logarithms(pairs):
    scores = score_pairs(MODEL, TOKENIZER, *zip(*pairs, strict=True))
    for (source, target), score in zip(pairs, scores, strict=True):
        labels = torch.tensor([TOKENIZER(text_target=target).input_ids])
        ids = torch.tensor([TOKENIZER(source).input_ids])
        shifted = torch.cat((torch.tensor([[MODEL.config.decoder_start_token_id]]), labels[:, :-1]), dim=1)
        with torch.no_grad():
            log_probs = MODEL(input_ids=ids, decoder_input_ids=shifted).logits.log_softmax(-1)
        expected = log_probs.gather(2, labels[..., None]).sum().item()
        assert math.isclose(score.log_prob, expected, rel_tol=1e-5) and score.tokens == labels.shape[1]
        assert math.isclose(score.perplexity, math.exp(-expected / labels.shape[1]), rel_tol=1e-4)


@settings(max_examples=20)
@given(SENTENCE, SENTENCE)
def test_alignments_name_words_that_are_there(source, target):
    (links,) = word_alignments(MODEL, TOKENIZER, [source], [target])
    assert all(0 <= s < len(source.split()) and 0 <= t < len(target.split()) for s, t in links)


def test_threads_on_one_model(record_property):
    """80 at once, which translate, score and align, find what each would find alone."""
    texts = [f"a small dog and {'house ' * (number % 7)}" for number in range(80)]

    def work(text):
        (translation,) = translate(MODEL, TOKENIZER, [text])
        (score,) = score_pairs(MODEL, TOKENIZER, [text], ["ein Hund"])
        (links,) = word_alignments(MODEL, TOKENIZER, [text], ["ein Hund"])
        return translation, round(score.log_prob, 3), links

    alone = [work(text) for text in texts]
    with ThreadPoolExecutor(80) as threads:
        together = list(threads.map(work, texts))
    record_property("threads", f"{sum(a == b for a, b in zip(alone, together, strict=True))} of {len(texts)}")
    assert together == alone
