"""README's code blocks and commands, run as they stand in a folder of their own, with small sizes around them."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(
    r"^```(bash|python)\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
# What cannot run in a test, and why.
NOT_RUN = {
    "make ": "runs these tests, or for minutes",
    "pip install": "changes the environment",
    "accelerate launch": "needs eight GPUs (test_accelerate_configs.py launches it on CPUs)",
    "vanilla push": "needs the Hub (test_push_to_hub.py has a server)",
    "--from fsmt": "needs a model of FSMT (test_interop_fsmt.py makes one)",
    "--from fairseq": "needs a model of fairseq (test_interop_fairseq.py makes one)",
    'model="you/your-model"': "needs the Hub (test_push_to_hub.py has a server)",
}
# Runs before a block or a command: training stops after a few updates.
SMALL = """
import modeling_vanilla.training as training
check = training.TrainingOptions.__post_init__
def small(self):
    self.max_steps = min(self.max_steps, 3)
    self.tokens_per_update = self.tokens_per_batch = 500
    check(self)
training.TrainingOptions.__post_init__ = small
"""
VANILLA = f"#!{sys.executable}\n{SMALL}\nfrom modeling_vanilla.__main__ import main\nmain()\n"
PYTHON = f"""#!/bin/sh
case "$1" in *finetune*) exec {sys.executable} "$@" --max_steps 2 ;; esac
exec {sys.executable} "$@"
"""


def runs(command: str) -> bool:
    return not any(part in command for part in NOT_RUN)


def commands(block: str) -> list[str]:
    """The commands of a block of shell, continued lines joined."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the files that README speaks of."""
    from transformers import MarianConfig, MarianMTModel

    from modeling_vanilla.training.tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("readme")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "bin").mkdir()
    for name, text in (("vanilla", VANILLA), ("python", PYTHON)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(stat.S_IRWXU)
    subprocess.run([sys.executable, "examples/toy_corpus.py", "--output_dir", "."], cwd=folder, check=True)
    import json

    for split, short in (("train", "train"), ("validation", "valid"), ("test", "test")):
        path = folder / f"{split}.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()[: 800 if split == "train" else 8]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        for language in ("en", "de"):
            text = "".join(json.loads(line)["translation"][language] + "\n" for line in lines)
            (folder / f"{short}.{language}").write_text(text, encoding="utf-8")
    opus = folder / "path" / "to" / "opus-mt-en-de"
    train_tokenizer(["a small house"] * 5, vocab_size=280).save_pretrained(opus)
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    special = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "scale_embedding": True}
    MarianMTModel(MarianConfig(vocab_size=280, **sizes, **heads, **special)).save_pretrained(opus)
    return folder


@pytest.mark.slow
def test_the_blocks_run_one_after_the_other(place):
    environment = {
        **os.environ,
        "PATH": f"{place / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_DATASETS_CACHE": str(place / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    python, done = SMALL, 0
    for language, block in BLOCKS:
        if language == "bash":
            script = "set -e\n" + "\n".join(filter(runs, commands(block)))
            arguments = ["bash", "-c", script]
        elif runs(block):
            # A block stands on those before it.
            python += block
            shutil.rmtree(place / "runs" / "mine", ignore_errors=True) if "train_translation(" in block else None
            arguments = [sys.executable, "-c", python]
        else:
            continue
        result = subprocess.run(arguments, cwd=place, env=environment, capture_output=True, text=True, timeout=600)
        assert result.returncode == 0, f"{block}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
        done += 1
        if not (place / "runs" / "quickstart").exists() and (place / "runs" / "mine" / "model").exists():
            (place / "runs" / "quickstart").symlink_to(place / "runs" / "mine")
    assert done >= 10


def test_what_is_not_run_is_still_in_readme():
    text = "".join(block for _, block in BLOCKS)
    assert [part for part in NOT_RUN if part not in text] == []


def test_every_file_that_readme_links_is_there():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert links and [link for link in links if not (ROOT / link).exists()] == []
