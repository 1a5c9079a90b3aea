"""Translation over several processes: what one makes, and how they end."""

import multiprocessing
import os
import select
import signal
import sys
import time
from contextlib import suppress

import pytest
import torch
from helpers import as_lines, call, fork

from modeling_vanilla.cli import translate as command
from modeling_vanilla.inference.processes import batch_searcher
from modeling_vanilla.terminology_vanilla import Terminology
from modeling_vanilla.translation_vanilla import translate_texts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs forks")
LONG = "a dog sees a cat, a small red dog. the old man gives a cat the apple."
TEXTS = ["a dog sees a cat", "", LONG, "a small house", "  ", "the old man gives the small child an apple", "Grüße 🙂!"]


@pytest.mark.parametrize("threads", [1, 2], ids=["of one thread", "of two threads"])
def test_several_processes_translate_as_one(model, tokenizer, threads):
    """In batches of a piece each, after this process has had threads, which a fork has not."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    settings = {"nbest": 3, "max_source_tokens": 16, "prefix": ["a", "", "", "ein", "der", "", ""]}
    settings |= {"terms": Terminology([("cat", "Katze")], tokenizer), "tokens_per_batch": 1, "num_beams": 4}
    try:
        searchers = [batch_searcher(model, count) for count in (1, 3)]
        expected, found = (translate_texts(model, tokenizer, TEXTS, search_batches=s, **settings) for s in searchers)
    finally:
        torch.set_num_threads(before)
    assert len(expected[2].pieces) > 1 and len(expected[0].hypotheses) == 3
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.pieces, ours.best) == (theirs.pieces, theirs.best)
        for one, other in zip(ours.hypotheses, theirs.hypotheses, strict=True):
            assert one[::4] == other[::4] and one.tokens == other.tokens
            assert [one.score, *one.log_probs] == pytest.approx([other.score, *other.log_probs], abs=1e-5)


def test_what_cannot_be_several_processes(folder, model):
    for options, error in (
        (["--processes", 0], "processes must be at least 1, not 0"),
        (["--processes", 0, "--interactive"], "--processes cannot be combined with --interactive"),
    ):
        assert call(command.main, folder, *options, stdin=b"a dog\n").error == error
    with pytest.raises(ValueError, match="processes: 2 need Linux and a model on the CPU, this one is on meta"):
        batch_searcher(model.to("meta"), 2)


def test_the_error_of_one_is_the_error_of_all(folder, monkeypatch):
    def fail(*arguments):
        raise ValueError("no such thing")

    monkeypatch.setattr("modeling_vanilla.translation_vanilla._search", fail)
    done = call(command.main, folder, "--processes", 2, "--debug", stdin=b"a dog\na cat\n" * 300)
    assert done.code == 2 and done.errors.endswith("error: no such thing\n")
    assert "in fail" in done.errors and multiprocessing.active_children() == []


ENDS = [  # to this process and the one that has made it, to that alone, or to this alone
    ("SIGINT", [os.getpid, os.getppid], 130, "error: interrupted"),
    ("SIGTERM", [os.getppid], 143, "error: interrupted"),
    ("SIGKILL", [os.getppid], -9, ""),
    ("SIGKILL", [os.getpid], 2, "error: a process was killed; if for lack of memory, fewer --processes help"),
]


@pytest.mark.parametrize(("name", "receivers", "code", "said"), ENDS)
def test_a_signal_to_one_ends_all(folder, tmp_path, monkeypatch, name, receivers, code, said):
    """What any of the processes holds open is closed when the last of them has ended."""
    signum, (reading, writing) = getattr(signal, name), os.pipe()

    def search(*arguments):
        with suppress(FileExistsError):
            (tmp_path / "sent").touch(exist_ok=False)
            for receiver in receivers:
                os.kill(receiver(), signum)
        time.sleep(60)

    def translate():
        os.close(reading)
        if signum != signal.SIGKILL:
            signal.signal(signum, signal.SIG_DFL)  # a shell ignores it for what it starts in the background
        monkeypatch.setattr("modeling_vanilla.translation_vanilla._search", search)
        options = ("--processes", 3, "--quiet", "--tokens_per_batch", 1, "--output", tmp_path / "out")
        done = call(command.main, folder, *options, stdin=as_lines(TEXTS))
        assert done.errors.strip() == said and {path.name for path in tmp_path.iterdir()} == {"model", "sent"}
        os._exit(done.code)

    assert fork(translate) == code
    os.close(writing)
    assert select.select([reading], [], [], 20)[0]
    assert os.read(reading, 1) == b""
    os.close(reading)
