"""A long input in blocks: the same bytes however long a block is, and after any kill."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from helpers import ROOT, add_noise, as_lines, call, environment, make_tiny, save_folder

from modeling_vanilla.cli import translate as command
from modeling_vanilla.files import locked

WORDS = ["a", "dog", "sees", "the", "old", "man", "cat"]
LINES = [" ".join(random.Random(row).choices(WORDS, k=1 + row % 6)) for row in range(40)]
LINES[7] = LINES[20] = ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    model = add_noise(make_tiny(len(tokenizer)), scale=1.0)
    return save_folder(tmp_path_factory.mktemp("blocks") / "model", model, tokenizer)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(as_lines(LINES))
    return path


def options(folder, source, output, *more):
    return [folder, "--input", source, "--output", output, "--max_extra_tokens", 3, "--num_beams", 2, *more]


def pipe(lines):
    """A file that can be read once, always under the same name."""
    reader, writer = os.pipe()
    os.write(writer, as_lines(lines))
    os.close(writer)
    return f"/dev/fd/{os.dup2(reader, 60)}"


def rounded(output: str) -> str:
    """Batches of other sizes round the scores in another way."""
    return re.sub(r"-?[0-9]+\.[0-9]+(e-[0-9]+)?", lambda number: f"{float(number[0]):.2f}", output)


def test_blocks_change_nothing(folder, source, tmp_path):
    """Lines, n-best lists with their numbers, JSON, prefixes, references and alignments."""
    (tmp_path / "prefix").write_bytes(as_lines(["der"] * len(LINES)))
    for more in (["--nbest", 2], ["--json"], ["--prefix", tmp_path / "prefix", "--alignments", tmp_path / "links"]):
        results = []
        for size in (1000, 7):
            given = [*options(folder, source, tmp_path / "out", *more), "--lines_per_block", size]
            done = call(command.main, *given, "--reference", pipe(LINES)).succeeded
            bleu = [line for line in done.errors.splitlines() if line.startswith("bleu")]
            links = (tmp_path / "links").read_bytes() if "--alignments" in more else b""
            results.append((rounded((tmp_path / "out").read_text()), links, bleu))
        assert results[0] == results[1] and bleu
        streamed = call(command.main, *given[:1], *given[5:], stdin=source.read_bytes())
        assert rounded(streamed.succeeded.output) == results[0][0]
    assert not list(tmp_path.glob("out.*"))


def test_it_goes_on_where_it_was_ended(folder, source, tmp_path):
    """Blocks that are kept are not translated again; a change of settings, terms or input is refused."""
    given = [*options(folder, source, tmp_path / "out"), "--lines_per_block", 10, "--prefix", tmp_path / "prefix"]
    (tmp_path / "prefix").write_bytes(as_lines([""] * len(LINES)))
    expected = call(command.main, *given[:1], *given[5:], stdin=source.read_bytes()).succeeded.output.splitlines()
    (tmp_path / "prefix").write_bytes(as_lines([*[""] * 25, "</s>", *[""] * 14]))

    def ended(*more, term="a dog\tHund") -> str:
        return call(command.main, *given, "--terms", pipe([term]), *more).error

    assert "prefix, line 26: " in ended() and not (tmp_path / "out").exists()
    kept = tmp_path / "out.blocks"
    (kept / "1/output").write_bytes(as_lines(["kept"] * 10))  # to be told from what is translated again
    assert f"{kept / '0'}: is of another input or setting" in ended("--num_beams", 3)
    assert "is of another input or setting" in ended(term="a dog\tKatze")
    source.write_bytes(as_lines(["other", *LINES[1:]]))
    assert f"{kept / '0'}: is of another input" in ended()
    source.write_bytes(as_lines([*LINES[:10], "other", *LINES[11:]]))
    assert f"{kept / '1'}: is of another input" in ended()
    source.write_bytes(as_lines(LINES))
    (kept / "of the user").write_text("stays")
    shutil.copytree(kept / "1", kept / "4")  # as of a longer input
    (tmp_path / "prefix").write_bytes(as_lines([""] * len(LINES)))
    assert call(command.main, *given, "--terms", pipe(["a dog\tHund"])).succeeded
    found = (tmp_path / "out").read_text().splitlines()
    assert found[10:20] == ["kept"] * 10 and len(found) == len(expected)
    assert [path.name for path in kept.iterdir()] == ["of the user"]


def test_lengths_that_differ(folder, source, tmp_path):
    (tmp_path / "few").write_bytes(as_lines(LINES[:-1]))
    assert "39" in call(command.main, folder, "--input", source, "--prefix", tmp_path / "few").error


def start(arguments, folder, **variables):
    words = [sys.executable, "-m", "modeling_vanilla", "translate", *map(str, arguments)]
    return subprocess.Popen(words, cwd=ROOT, env=environment(folder, **variables), start_new_session=True)


def test_a_second_process_is_refused(folder, source, tmp_path):
    with locked("--output", tmp_path / "out.blocks"):
        error = call(command.main, *options(folder, source, tmp_path / "out")).error
    assert error == f"--output: {tmp_path / 'out.blocks'} is in use by another process"


@pytest.mark.slow
def test_kills_at_random_times(folder, source, tmp_path):
    source.write_bytes(as_lines(LINES * 25))
    more = ["--lines_per_block", 25, "--quiet"]
    assert start(options(folder, source, tmp_path / "whole", *more), tmp_path).wait(120) == 0
    given = options(folder, source, tmp_path / "killed", *more)
    random.seed(0)
    for _ in range(3):
        process = start(given, tmp_path)
        while process.poll() is None and not (tmp_path / "killed.blocks").exists():
            time.sleep(0.05)
        time.sleep(random.uniform(0, 1))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert start(given, tmp_path).wait(120) == 0
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "whole").read_bytes()
