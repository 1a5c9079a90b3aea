"""examples/translate.py: what goes in and what comes out, its options, and what it says of bad input."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from modeling_vanilla import VanillaForConditionalGeneration
from modeling_vanilla.cli import translate as script
from modeling_vanilla.generation_vanilla import check_generation_inputs
from modeling_vanilla.inference import (
    Ensemble,
    load_translator,
    pharaoh,
    score_pairs,
    translate,
    translate_nbest,
    word_alignments,
)
from modeling_vanilla.training.tokenizer import train_tokenizer

SENTENCES = [
    "a dog sees a cat",
    "",
    "the old man gives the small child a red apple",
    "  ",
    "Grüße\u2028안녕\x85🙂!",
    "a",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([sentence for sentence in SENTENCES if sentence.strip()] * 3, vocab_size=320)


@pytest.fixture
def make_folder(make_model, tokenizer, tmp_path):
    """A saved model and tokenizer; both may be another one."""

    def make(name: str = "model", seed: int = 0, tokenizer=tokenizer, **overrides) -> str:
        model = make_model(seed=seed, **{"vocab_size": len(tokenizer), **overrides})
        model.generation_config.max_extra_tokens = 3  # an untrained model rarely ends a sentence by itself
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return make


@pytest.fixture
def run(monkeypatch, capsysbinary):
    """Runs the script on some stdin; gives its exit code, stdout and stderr."""

    def run(*arguments, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = 0
        try:
            script.main([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = exit.code
        output, errors = capsysbinary.readouterr()
        return code, output.decode(), errors.decode()

    return run


def as_lines(sentences) -> bytes:
    return "".join(f"{sentence}\n" for sentence in sentences).encode()


def lines(text: str) -> list[str]:
    """Cut at line feeds alone, and at every one."""
    assert not text or text.endswith("\n")
    return text.split("\n")[:-1]


def test_one_line_in_one_line_out(make_folder, run, tmp_path):
    folder = make_folder()
    expected = [script.one_line(text) for text in translate(*load_translator([folder]), SENTENCES)]
    assert expected[1] == expected[3] == ""
    assert len(set(expected)) > 3
    code, output, errors = run(folder, stdin=as_lines(SENTENCES))
    assert (code, lines(output)) == (0, expected)
    assert "sentences/s" in errors
    # A file, its last line without an end, lines of another system, small batches.
    (tmp_path / "in").write_bytes(as_lines(SENTENCES).replace(b"\n", b"\r\n").removesuffix(b"\r\n"))
    arguments = ("--input", tmp_path / "in", "--output", tmp_path / "out", "--tokens_per_batch", 1)
    assert run(folder, *arguments)[:2] == (0, "")
    assert (tmp_path / "out").read_bytes().decode() == output
    assert run(folder)[:2] == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "model", "out"]


def test_line_ends_of_a_model_become_blanks(make_folder, run, monkeypatch):
    monkeypatch.setattr(script, "translate_pieces", lambda *_, **__: [["a\nb\r\nc\u2028d"]] * 2)
    assert run(make_folder(), stdin=b"x\ny\n")[1] == "a b c\u2028d\n" * 2


def test_search_options_reach_the_search(make_folder, run):
    folder = make_folder()
    model, tokenizer = load_translator([folder])
    settings = {"num_beams": 2, "length_penalty": 2.0, "max_extra_tokens": 6}
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    output = run(folder, *arguments, stdin=as_lines(SENTENCES))[1]
    assert lines(output) == [script.one_line(text) for text in translate(model, tokenizer, SENTENCES, **settings)]
    assert output != run(folder, stdin=as_lines(SENTENCES))[1]


def test_bf16(make_folder, run):
    folder = make_folder()
    model, tokenizer = load_translator([folder], dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    expected = [script.one_line(text) for text in translate(model, tokenizer, SENTENCES)]
    assert lines(run(folder, "--bf16", stdin=as_lines(SENTENCES))[1]) == expected


def test_nbest(make_folder, run):
    folder = make_folder()
    expected = [
        f"{number} ||| {script.one_line(text)} ||| {score:.6f}"
        for number, found in enumerate(translate_nbest(*load_translator([folder]), SENTENCES, 3))
        for text, score in found
    ]
    assert len(expected) == 4 * 3 + 2
    assert lines(run(folder, "--nbest", 3, stdin=as_lines(SENTENCES))[1]) == expected


def test_score(make_folder, run, tmp_path):
    folder = make_folder()
    targets = SENTENCES[::-1]
    (tmp_path / "targets").write_bytes(as_lines(targets))
    code, output, errors = run(folder, "--score", tmp_path / "targets", stdin=as_lines(SENTENCES))
    expected = score_pairs(*load_translator([folder]), SENTENCES, targets)
    rows = [line.split("\t") for line in lines(output)]
    assert code == 0
    assert [int(row[2]) for row in rows] == [pair.tokens for pair in expected]
    assert [float(row[0]) for row in rows] == pytest.approx([pair.log_prob for pair in expected], abs=1e-5)
    assert [float(row[1]) for row in rows] == pytest.approx([pair.perplexity for pair in expected], rel=1e-4)
    log_prob, tokens = sum(pair.log_prob for pair in expected), sum(pair.tokens for pair in expected)
    found = re.search(r"^log P (\S+), perplexity (\S+), (\d+) tokens$", errors, re.M)
    assert [float(value) for value in found.groups()] == pytest.approx(
        [log_prob, torch.tensor(-log_prob / tokens).exp().item(), tokens], rel=1e-4
    )


def test_reference_gives_both_bleus(make_folder, run, tmp_path):
    folder = make_folder()
    (tmp_path / "reference").write_text(run(folder, stdin=as_lines(SENTENCES))[1], encoding="utf-8", newline="")
    arguments = ("--reference", tmp_path / "reference", "--bleu_tokenize", "none")
    errors = run(folder, *arguments, stdin=as_lines(SENTENCES))[2]
    assert re.search(r"^bleu 100\.00 nrefs:1.*tok:none.*version:", errors, re.M)
    assert re.search(r"^bleu_compound_split 100\.00 nrefs:1.*tok:none\+compound-split", errors, re.M)


def test_alignments(make_folder, run, tmp_path):
    folder = make_folder()
    model, tokenizer = load_translator([folder])
    expected = [
        pharaoh(links) for links in word_alignments(model, tokenizer, SENTENCES, translate(model, tokenizer, SENTENCES))
    ]
    assert run(folder, "--alignments", tmp_path / "links", stdin=as_lines(SENTENCES))[0] == 0
    assert lines((tmp_path / "links").read_text()) == expected
    assert expected[1] == "" != expected[0]
    # Of given pairs, too.
    (tmp_path / "targets").write_bytes(as_lines(SENTENCES))
    arguments = ("--score", tmp_path / "targets", "--alignments", tmp_path / "links")
    assert run(folder, *arguments, stdin=as_lines(SENTENCES))[0] == 0
    given = word_alignments(model, tokenizer, SENTENCES, SENTENCES)
    assert lines((tmp_path / "links").read_text()) == [pharaoh(links) for links in given]


def test_long_lines_are_translated_in_pieces_with_a_warning(make_folder, run, tmp_path):
    folder = make_folder()
    pieces = ["a dog sees a cat, a small red dog.", "the old man gives a cat the apple.", "a red apple sees a man"]
    sources = ["a dog", " ".join(pieces), ""]
    model, tokenizer = load_translator([folder])
    limit = max(len(ids) for ids in tokenizer(pieces).input_ids)
    arguments = ("--max_source_tokens", limit, "--alignments", tmp_path / "links")
    code, output, errors = run(folder, *arguments, stdin=as_lines(sources))
    short, *translations = translate(model, tokenizer, ["a dog", *pieces])
    joined = " ".join(filter(None, translations))
    assert code == 0, errors
    assert lines(output) == [script.one_line(short), script.one_line(joined), ""]
    assert "warning: stdin, line 2: too long, translated in 3 pieces\n" in errors
    assert errors.count("warning") == 1
    # No word of the whole is out of range.
    links = [pair.split("-") for pair in lines((tmp_path / "links").read_text())[1].split()]
    assert max(int(source) for source, _ in links) < len(sources[1].split())
    assert max(int(target) for _, target in links) < len(joined.split())
    # The best of n is the same translation.
    nbest = lines(run(folder, "--nbest", 2, *arguments, stdin=as_lines(sources))[1])
    assert [line.split(" ||| ")[0] for line in nbest] == ["0", "0", "1", "1", "2"]
    assert nbest[2].startswith(f"1 ||| {script.one_line(joined)} ||| ")


def test_interactive_answers_each_line_before_it_reads_the_next(make_folder, monkeypatch, capsysbinary):
    folder = make_folder()
    expected = [script.one_line(text) for text in translate(*load_translator([folder]), SENTENCES[:3])]
    seen = []

    def type_lines():
        for sentence in SENTENCES[:3]:
            seen.append(capsysbinary.readouterr().out.decode())
            yield f"{sentence}\n".encode()
        seen.append(capsysbinary.readouterr().out.decode())

    class Terminal:
        buffer = type_lines()

    monkeypatch.setattr(sys, "stdin", Terminal())
    script.main([folder, "--interactive"])
    assert seen == ["", *(f"{text}\n" for text in expected)]


def test_several_models_translate_together(make_folder, run):
    folders = [make_folder("one"), make_folder("two", seed=1, d_model=16)]
    model, tokenizer = load_translator(folders)
    assert isinstance(model, Ensemble)
    expected = [script.one_line(text) for text in translate(model, tokenizer, SENTENCES)]
    assert lines(run(*folders, stdin=as_lines(SENTENCES))[1]) == expected


def test_nobody_reads_the_output(make_folder):
    process = subprocess.Popen(
        [sys.executable, script.__file__, make_folder()],
        cwd=Path(script.__file__).parents[1],
        env={"PYTHONPATH": str(Path(script.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    process.stdin.write(as_lines(SENTENCES))
    process.stdin.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=120) == 141
    assert "Traceback" not in errors
    assert "Error" not in errors


def test_ctrl_c(make_folder, run, monkeypatch, tmp_path):
    def interrupt(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "translate_pieces", interrupt)
    code, output, errors = run(make_folder(), "--output", tmp_path / "out", stdin=b"a\n")
    assert (code, output, errors) == (130, "", "error: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_is_no_file_is_not_replaced(make_folder, run, tmp_path):
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert run(make_folder(), "--output", tmp_path / "link", stdin=b"\n")[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "\n"
    assert run(tmp_path / "model", "--output", "/dev/null", stdin=b"\n")[0] == 0
    assert not Path("/dev/null").is_file()


# Bad input


def test_bad_input_is_one_line_and_exit_code_2(make_folder, run, tmp_path, tokenizer):
    folder = make_folder()
    other = make_folder("other", tokenizer=train_tokenizer(["xyz xyz"], vocab_size=270))
    bare = make_folder("bare")
    (tmp_path / "bare" / "tokenizer_config.json").unlink()
    small = make_folder("small", vocab_size=len(tokenizer) - 8)
    broken = make_folder("broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"no weights")
    two = tmp_path / "two"
    two.write_text("a\nb\n")
    latin = tmp_path / "latin"
    latin.write_bytes(b"a dog\nGr\xfc\xdfe\n")
    cases = [
        ([tmp_path / "none"], rf"model: {tmp_path}/none is no model folder, as it has no config\.json"),
        ([bare], rf"model: {bare} is a model without a tokenizer, as it has no tokenizer_config\.json"),
        ([broken], f"model: the weights of {broken} cannot be loaded: .+"),
        ([small], f"vocabulary: the tokenizer of {small} has {len(tokenizer)} tokens, the model {len(tokenizer) - 8}"),
        ([folder, other], f"vocabulary: {folder} and {other} have different ones, of {len(tokenizer)} and 264 tokens"),
        ([folder, "--input", tmp_path / "none"], f"{tmp_path}/none: cannot be read, No such file or directory"),
        ([folder, "--input", latin], f"{latin}, line 2: not UTF-8, .+"),
        ([folder, "--reference", two], f"{two} has 2 lines, the input 1"),
        ([folder, "--score", two], f"{two} has 2 lines, the input 1"),
        ([folder, "--reference", latin], f"{latin}, line 2: not UTF-8, .+"),
        ([folder, "--output", tmp_path / "no" / "out"], ".*No such file or directory: .+"),
        ([folder, "--num_beams", "0"], "num_beams must be a whole number of at least 1, not 0"),
        ([folder, "--length_penalty", "nan"], "length_penalty must be a finite number, not nan"),
        ([folder, "--max_extra_tokens", "-1"], "max_extra_tokens must be a whole number of at least 0, not -1"),
        ([folder, "--nbest", "9"], "nbest must be from 1 to the number of beams, 4, not 9"),
        ([folder, "--nbest", "0"], "nbest must be from 1 to the number of beams, 4, not 0"),
        ([folder, "--tokens_per_batch", "0"], "tokens_per_batch must be at least 1, not 0"),
        ([folder, "--max_source_tokens", "1"], "max_source_tokens must be at least 8, not 1"),
        ([folder, "--alignments", tmp_path / "links", "--alignment_layer", "3"], "layer must be from 0 to 2, not 3"),
        ([folder, "--device", "nowhere"], "device: nowhere cannot be used: .+"),
    ]
    before = sorted(path.name for path in tmp_path.iterdir())
    for arguments, message in cases:
        output = [] if "--output" in arguments else ["--output", tmp_path / "out"]
        code, stdout, errors = run(*arguments, *output, stdin=b"a dog\n")
        assert (code, stdout) == (2, ""), (arguments, errors)
        last = errors.rsplit("\r", 1)[-1].strip().splitlines()[-1]
        assert re.fullmatch(f"error: {message}", last), last
        assert "Traceback" not in errors
    code, stdout, errors = run(folder, stdin=b"a dog\n\xff\n")
    assert (code, stdout, errors) == (2, "", "error: stdin, line 2: not UTF-8, invalid start byte at byte 0\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["--length_penalty", "much"],
        ["--interactive", "--input", "x"],
        ["--interactive", "--score", "x"],
        ["--score", "x", "--nbest", "2"],
        ["--bleu_tokenize", "intl"],
    ],
)
def test_options_that_mean_nothing(run, arguments):
    code, output, errors = run("model", *arguments)
    assert (code, output) == (2, "")
    assert errors.splitlines()[-1].startswith("translate.py: error: " if "translate.py" in errors else "")


def test_weights_that_are_missing_are_not_made_up(make_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = make_folder()
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    weights.popitem()
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"^model: the weights of .* lack "):
        load_translator([folder])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_beams": 0}, "num_beams must be a whole number of at least 1, not 0"),
        ({"length_penalty_type": "log"}, "length_penalty_type must be one of gnmt, length, not 'log'"),
        ({"num_beams": 2.5}, "num_beams must be a whole number of at least 1, not 2.5"),
        ({"length_penalty": float("nan")}, "length_penalty must be a finite number, not nan"),
        ({"length_penalty": float("inf")}, "length_penalty must be a finite number, not inf"),
        ({"length_penalty": "0.6"}, "length_penalty must be a finite number, not '0.6'"),
        ({"max_extra_tokens": -1}, "max_extra_tokens must be a whole number of at least 0, not -1"),
        ({"max_extra_tokens": True}, "max_extra_tokens must be a whole number of at least 0, not True"),
        ({"input_ids": torch.ones(0, 3, dtype=torch.long)}, "not empty, not of shape (0, 3)"),
        ({"input_ids": torch.ones(2, 0, dtype=torch.long)}, "not empty, not of shape (2, 0)"),
        ({"input_ids": torch.ones(3, dtype=torch.long)}, "not empty, not of shape (3,)"),
        ({"input_ids": torch.tensor([[3, 41]])}, "from 0 to 40, as vocab_size is 41; 41 is not"),
        ({"input_ids": torch.tensor([[3, -1]])}, "from 0 to 40, as vocab_size is 41; -1 is not"),
        ({"attention_mask": torch.ones(1, 3)}, "attention_mask must have the shape of input_ids, (1, 2), not (1, 3)"),
    ],
)
def test_generate_names_what_is_wrong(make_model, given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_model().generate(**{"input_ids": torch.tensor([[3, 2]]), **given})


def test_generate_checks_what_counts(make_model):
    model: VanillaForConditionalGeneration = make_model()
    model.generation_config.length_penalty = float("nan")
    with pytest.raises(ValueError, match="length_penalty must be a finite number, not nan"):
        model.generate(torch.tensor([[3, 2]]))
    # What is given to the call goes before; a negative alpha means something, and None is no setting.
    output = model.generate(torch.tensor([[3, 2]]), length_penalty=-0.5, max_extra_tokens=None, max_new_tokens=2)
    assert output.shape[0] == 1
    check_generation_inputs(model.config, model.generation_config, None, length_penalty=1, num_beams=1)
