"""Samples have the probabilities of the model, and a seed gives the same ones again."""

from collections import Counter

import pytest
import torch
from helpers import as_lines, call, save_folder

from modeling_vanilla import Translator
from modeling_vanilla.cli import translate as command

TEXTS = [
    "a dog sees a cat",
    "",
    "the old man gives the small child a red apple",
    "a",
    "der Hund läuft",
    "a small house",
]
TEXTS = [text and f"{word} {text}" for word in ("a", "the", "dog") for text in TEXTS]
SAMPLE = {"do_sample": True, "num_beams": 1, "top_k": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_model, tokenizer):
    model = make_model(vocab_size=len(tokenizer))
    model.generation_config.max_extra_tokens = 2
    return save_folder(tmp_path_factory.mktemp("sampling") / "model", model, tokenizer)


@pytest.fixture(params=["torch", "ctranslate2"])
def translator(request, folder):
    pytest.importorskip(request.param)
    return Translator.from_pretrained(folder, engine=request.param)


@pytest.mark.parametrize(
    "given", [{"top_k": 0}, {"temperature": 3.0, "top_k": 5}, {"temperature": 0.5}, {"top_k": None}]
)
def test_samples_have_the_probabilities_of_the_model(translator, folder, given):
    """Of the first token; without top_k it is 50, as in transformers, and with None all."""
    exact, count = Translator.from_pretrained(folder), 3000
    inputs = exact.tokenizer(TEXTS[:1], return_tensors="pt")
    with torch.no_grad():
        start = torch.tensor([[exact.model.config.decoder_start_token_id]])
        logits = exact.model(**inputs, decoder_input_ids=start).logits[0, -1] / given.get("temperature", 1.0)
    kept = logits >= logits.topk(given.get("top_k", 50) or len(logits)).values[-1]
    expected = count * logits.masked_fill(~kept, -torch.inf).softmax(dim=-1)
    (found,) = translator.nbest(TEXTS[:1], count, do_sample=True, num_beams=1, max_new_tokens=1, seed=0, **given)
    drawn = Counter((*one.ids, exact.tokenizer.pad_token_id)[1] for one in found)  # padding at the end is left out
    observed = torch.tensor([float(drawn[token]) for token in range(len(logits))])
    assert not observed[~kept].any()
    often = expected > 5
    # The sum of (observed - expected)^2 / expected is near the number of terms, its standard deviation sqrt(2 terms).
    terms = int(often.sum())
    assert terms > 1 and ((observed - expected)[often] ** 2 / expected[often]).sum() < terms + 5 * (2 * terms) ** 0.5


def test_samples_count_as_rows_of_a_batch(folder, monkeypatch):
    translator, sizes = Translator.from_pretrained(folder), []
    translator.model.get_decoder().embed_tokens.register_forward_hook(lambda *given: sizes.append(len(given[2])))
    translator.nbest(TEXTS, 20, tokens_per_batch=400, **SAMPLE)
    assert 20 < max(sizes) <= 400 / 3  # each text has three tokens or more


def test_a_sample_depends_on_the_seed_and_the_text_alone(folder):
    translator = Translator.from_pretrained(folder)
    given = SAMPLE | {"seed": 1}
    found = translator.translate(TEXTS, **given)
    assert len({*found}) > len(TEXTS) / 2 and found[1] == ""
    assert found == [translator.translate([text], **given)[0] for text in TEXTS]
    assert found[::-1] == translator.translate(TEXTS[::-1], tokens_per_batch=40, **given)
    assert found != translator.translate(TEXTS, **SAMPLE, seed=2)
    several = translator.nbest(TEXTS[:1], 3, **given)[0]
    assert len({one.ids for one in several}) == 3 and found[0] in {one.text for one in several}


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_a_seed_gives_the_same_samples(folder, engine, tmp_path):
    """By the engine torch in any block; by ctranslate2 in the same command of one thread."""
    pytest.importorskip(engine)

    def run(texts, *more, how=("--sample",)):
        (tmp_path / "in").write_bytes(as_lines(texts))
        given = ("--engine", engine, *how, "--input", tmp_path / "in", "--lines_per_block", 6, *more)
        given = (*given, "--inter_threads", 1) if engine == "ctranslate2" else given
        return call(command.main, folder, *given)

    whole, other = run(TEXTS).succeeded.output, run(TEXTS, "--seed", 1)
    assert whole == run(TEXTS, "--seed", 0, "--temperature", 1.0).output
    if engine == "torch":
        assert whole != other.succeeded.output and whole == run(TEXTS, "--lines_per_block", 5).output
        assert whole.split("\n")[6:12] == run(TEXTS[6:12]).output.split("\n")[:6]
    else:
        assert other.error == "seed 1: ctranslate2 has one for each process, and this one has drawn by seed 0"
    assert run(TEXTS, "--top_k", 1).output == run(TEXTS, how=("--num_beams", 1)).succeeded.output


def test_a_seed_without_samples_of_one_beam_is_an_error(translator):
    with pytest.raises(ValueError, match="seed 1: needs do_sample=True and num_beams=1"):
        translator.translate(TEXTS, seed=1, do_sample=True)
