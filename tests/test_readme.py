"""README's code blocks and commands, run as they stand in a folder of their own, with small sizes around them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, as_lines, environment, make_marian, make_tokenizer
from toy_corpus import toy_corpus, write_corpus

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
# What cannot run in a test, and why.
NOT_RUN = {
    "make ": "runs these tests, or for minutes",
    "python3.11 -m venv": "makes an environment",
    "pip install": "changes the environment",
    "accelerate launch": "needs eight GPUs (test_accelerate_configs.py launches it on CPUs)",
    "vanilla push": "needs the Hub (test_push_to_hub.py has a server)",
    "--from fsmt": "needs a model of FSMT (test_interop_fsmt.py makes one)",
    "--from fairseq": "needs a model of fairseq (test_interop_fairseq.py makes one)",
    'model="you/your-model"': "needs the Hub (test_push_to_hub.py has a server)",
}
# Runs before a block of Python and a command: training stops after five checkpoints, one every ten updates.
SMALL = """
import modeling_vanilla.training as training
check = training.TrainingOptions.__post_init__
def small(self):
    self.max_steps = min(self.max_steps, 50)
    self.tokens_per_update = self.tokens_per_batch = 500
    check(self)
training.TrainingOptions.__post_init__ = small
"""
COMMANDS = {
    "vanilla": f"#!{sys.executable}\n{SMALL}\nfrom modeling_vanilla.__main__ import main\nmain()\n",
    "python": f"""#!/bin/sh
case "$1" in
*finetune*) set -- "$@" --max_steps 2 ;;
*toy_corpus*) set -- "$@" --validation 8 --test 8 ;;
esac
exec {sys.executable} "$@"
""",
}


def runs(command: str) -> bool:
    return not any(part in command for part in NOT_RUN)


def shell(block: str) -> str:
    """The commands of a block that can run; the first that fails ends them."""
    return "\n".join(["set -e", *filter(runs, block.replace("\\\n", " ").splitlines())])


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder with the files that README speaks of."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "bin").mkdir()
    for name, text in COMMANDS.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o700)
    corpus = toy_corpus(800, 8, 8)
    write_corpus(corpus, tmp_path)
    for split, pairs in corpus.items():
        for language, texts in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{split.replace('validation', 'valid')}.{language}").write_bytes(as_lines(texts))
    opus = tmp_path / "path" / "to" / "opus-mt-en-de"
    make_tokenizer(["a small house"]).save_pretrained(opus)
    make_marian(scale_embedding=True).save_pretrained(opus)
    return tmp_path


@pytest.mark.slow
def test_the_blocks_run_one_after_the_other(place):
    path = os.pathsep.join((str(place / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    mine = place / "runs" / "mine"
    for language, block in BLOCKS:
        if language == "python" and not runs(block):
            continue
        if "train_translation(" in block:
            shutil.rmtree(mine, ignore_errors=True)
        arguments = ["bash", "-c", shell(block)] if language == "bash" else [sys.executable, "-c", SMALL + block]
        done = subprocess.run(
            arguments, cwd=place, env=environment(place, PATH=path), capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        if (mine / "model").exists() and not (place / "runs" / "quickstart").exists():
            (place / "runs" / "quickstart").symlink_to(mine)


def test_what_is_not_run_is_still_in_readme():
    assert [part for part in NOT_RUN if part not in "".join(block for _, block in BLOCKS)] == []
    assert sum(runs(block) for _, block in BLOCKS) >= 8


def test_every_file_that_readme_links_is_there():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", TEXT)
    assert links and [link for link in links if not (ROOT / link).exists()] == []
