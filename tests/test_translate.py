"""`vanilla translate`: what goes in and what comes out, its options, and how it ends."""

import gzip
import json
import math
import os
import re
import sys
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
from helpers import as_lines, call, save_folder

from modeling_vanilla import Translator
from modeling_vanilla.cli import score
from modeling_vanilla.cli import translate as command
from modeling_vanilla.cli.translate import on_one_line
from modeling_vanilla.inference import pharaoh

SENTENCES = ["a dog sees a cat", "", "the old man gives the small child", "  ", "Grüße\u2028안녕\x85🙂!", "a"]
INPUT = as_lines(SENTENCES)
LONG = "a dog sees a cat, a small red dog. the old man gives a cat the apple."


@pytest.fixture
def translator(folder):
    return Translator.from_pretrained(folder)


def run(*arguments, stdin: bytes = INPUT) -> list[str]:
    """The lines that the command writes to stdout."""
    return lines(call(command.main, *arguments, stdin=stdin).succeeded.output)


def lines(text: str) -> list[str]:
    """Cut at line feeds alone, and at every one."""
    assert not text or text.endswith("\n")
    return text.split("\n")[:-1]


def test_files_in_and_out(folder, translator, tmp_path):
    """Lines of another system, the last without an end, in small batches."""
    expected = best(translator)
    assert (expected[1], expected[3]) == ("", "  ") and len(set(expected)) > 3
    (tmp_path / "in").write_bytes(INPUT.replace(b"\n", b"\r\n").removesuffix(b"\r\n"))
    assert run(folder, "--input", "-", "--output", "-") == expected
    options = ("--input", tmp_path / "in", "--output", tmp_path / "out", "--tokens_per_batch", 1)
    done = call(command.main, folder, *options).succeeded
    assert done.output == "" and "6 of 6 lines" in done.errors
    assert (tmp_path / "out").read_bytes() == as_lines(expected)
    run(folder, "--output", tmp_path / "out.gz")
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()) == as_lines(expected)
    assert run(folder, stdin=b"") == run(folder, "--output", os.devnull) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "model", "out", "out.gz"]


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_leaves_result_and_warnings(folder, quiet):
    done = call(command.main, folder, "--max_source_tokens", 9, *["--quiet"] * quiet, stdin=INPUT)
    said = done.errors.splitlines()
    assert done.output and (all(line.startswith("warning: stdin, line ") for line in said) and said != []) == quiet


def best(translator, **settings) -> list[str]:
    return [on_one_line(text) for text in translator.translate(SENTENCES, **settings)]


SEARCHES = [
    ((), {}, {"num_beams": 4}),
    (("--num_beams", 3, "--length_penalty", 2.0), {}, {"num_beams": 3, "length_penalty": 2.0}),
    (("--bf16",), {"dtype": torch.bfloat16}, {}),
]


@pytest.mark.parametrize(("options", "loading", "settings"), SEARCHES)
def test_nbest_by_every_option_of_the_search(folder, options, loading, settings):
    output, translator = run(folder, "--nbest", 3, *options), Translator.from_pretrained(folder, **loading)
    assert output == [
        f"{number} ||| {on_one_line(hypothesis.text)} ||| {hypothesis.score:.6f}"
        for number, nbest in enumerate(translator.nbest(SENTENCES, 3, **settings))
        for hypothesis in nbest
    ]
    assert len(output) == 4 * 3 + 2  # a blank line has one translation
    assert (output == run(folder, "--nbest", 3)) == (not options)


def test_several_models_are_an_ensemble(folder, make_model, tokenizer, tmp_path):
    other = make_model(seed=1, vocab_size=len(tokenizer), d_model=16)
    folders = [folder, save_folder(tmp_path / "other", other, tokenizer)]
    assert run(*folders) == best(Translator.from_pretrained(*folders)) != run(folder)


def test_score(folder, translator, tmp_path):
    targets = SENTENCES[::-1]
    (tmp_path / "targets").write_bytes(as_lines(targets))
    _, output, errors = call(score.main, folder, "--target", tmp_path / "targets", stdin=INPUT)
    pairs = translator.score(SENTENCES, targets)
    for line, pair in zip(lines(output), pairs, strict=True):
        expected = [pair.log_prob, pair.perplexity, pair.tokens]
        assert list(map(float, line.split("\t"))) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    log_prob, tokens = sum(pair.log_prob for pair in pairs), sum(pair.tokens for pair in pairs)
    total = re.search(r"^log P (\S+), perplexity (\S+), (\d+) tokens$", errors, re.M)
    assert list(map(float, total.groups())) == pytest.approx([log_prob, math.exp(-log_prob / tokens), tokens], rel=1e-4)


def test_references_give_each_bleu(make_model, tokenizer, tmp_path):
    """What sacreBLEU gives for references that have a word more than the translations, and for others beside them."""
    model = make_model(seed=1, vocab_size=len(tokenizer), tie_word_embeddings=False)  # it writes several words
    folder = save_folder(tmp_path / "model", model, tokenizer)
    found = run(folder, "--max_extra_tokens", 4)
    references = [[f"{text} dog" for text in found], [f"{text} cat cat" for text in found[::-1]]]
    for name, texts in zip(("one", "two"), references, strict=True):
        (tmp_path / name).write_bytes(as_lines(texts))
    options = ("--max_extra_tokens", 4, "--bleu_tokenize", "none", "--reference", tmp_path / "one", tmp_path / "two")
    errors = call(command.main, folder, *options, stdin=INPUT).errors
    expected = sacrebleu.corpus_bleu(found, references, tokenize="none", force=True).score
    assert 1 < expected < 99
    # Alike where there are neither compounds nor quotes.
    for name in ("bleu", "bleu_compound_split"):
        assert re.search(rf"^{name} {expected:.2f} nrefs:2\S*tok:none", errors, re.M)


@pytest.mark.parametrize("given", [False, True], ids=["translations", "given pairs"])
def test_alignments(folder, translator, tmp_path, given):
    (tmp_path / "targets").write_bytes(INPUT)
    targets = SENTENCES if given else translator.translate(SENTENCES)
    main, options = (score.main, ("--target", tmp_path / "targets")) if given else (command.main, ())
    assert call(main, folder, "--alignments", tmp_path / "links", *options, stdin=INPUT).code == 0
    expected = [pharaoh(links) for links in translator.align(SENTENCES, targets)]
    assert lines((tmp_path / "links").read_text()) == expected
    assert expected[1] == "" != expected[0]


def test_json_has_tokens_scores_and_alignment(folder, translator, tmp_path):
    """Each line, one that is translated in pieces, too, and a blank one; the parts are tested where they are made."""
    texts = [*SENTENCES, LONG]
    options = ("--max_source_tokens", 16, "--alignments", tmp_path / "links")
    written = [json.loads(line) for line in run(folder, "--json", *options, stdin=as_lines(texts))]
    expected = translator.nbest(texts, 1, max_source_tokens=16)
    for line, (best,), links in zip(written, expected, lines((tmp_path / "links").read_text()), strict=True):
        assert (line["translation"], line["tokens"]) == (best.text, [*best.tokens])
        assert [line["score"], *line["log_probs"]] == pytest.approx([best.score, *best.log_probs], abs=1e-4)
        assert pharaoh(line["alignment"]) == links
    lists = ("tokens", "log_probs", "alignment", "differing")
    assert written[1] == {"translation": "", "score": 0.0, **{name: [] for name in lists}}


def test_warnings_name_the_lines(folder):
    done = call(command.main, folder, "--max_source_tokens", "16", stdin=as_lines(["a dog", LONG, "", *[LONG] * 3]))
    (warning,) = re.findall("warning: stdin, (.*)", done.errors)
    assert warning == f"line 2, 4, 5: too long, translated in pieces of at most 16 tokens: {LONG[:60]!r} and 3 more"


def test_a_block_of_one_line_is_answered_before_the_next_is_read(folder, translator, monkeypatch, capsysbinary):
    seen = []

    def type_lines():
        for line in INPUT.splitlines(keepends=True):
            seen.append(capsysbinary.readouterr().out.decode())
            yield line

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=type_lines(), isatty=lambda: False))
    command.main([str(folder), "--lines_per_block", "1"])
    assert [*seen, capsysbinary.readouterr().out.decode()] == ["", *(f"{text}\n" for text in best(translator))]


# Bad input


BAD_INPUT = [
    (["--output", "out", "--reference", "two"], "two has 2 lines, the input 1"),
    (["--output", "out", "--alignments", "./out"], "--output and --alignments are both out"),
    (["--num_beams", str(10**20)], "argument --num_beams: must be from .*, not 10{20}; see --help"),
    (["--json", "--nbest", "2"], "--json cannot be combined with --nbest"),
    (["--top_k", "5"], "--top_k needs --sample"),
    (["--sample", "--num_beams", "2"], "--num_beams cannot be combined with --sample"),
]


@pytest.mark.parametrize(("options", "message"), BAD_INPUT)
def test_bad_input_is_one_line_and_nothing_is_written(folder, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two").write_text("a\nb\n")
    done = call(command.main, folder, *options, stdin=b"a dog\n")
    assert re.fullmatch(message, done.error) and done.output == ""
    assert {path.name for path in tmp_path.iterdir()} == {"model", "two"}
