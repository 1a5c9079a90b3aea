"""What many test files do: run a command, save a small model with its tokenizer, and write and compare files."""

import io
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from toy_corpus import toy_corpus, write_corpus
from transformers import MarianConfig, MarianMTModel

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.corpus.tokenizer import train_tokenizer

ROOT = Path(__file__).parents[1]
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
# Of a model that is trained in a moment.
TINY = {"vocab_size": 320, **SIZES, **HEADS, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}

# A training of which a GPU, several processes and one process must make the same.
SAME_ANYWHERE = {
    **TINY,
    **{"preset": "tiny", "dropout": 0.0, "tokens_per_update": 500, "tokens_per_batch": 150, "warmup_steps": 2},
    **{"average_checkpoints": 1, "checkpoint_steps": 1, "validate_steps": 2, "max_steps": 3},
    # Where a gradient is all but 0, Adam steps along its rounding: the smaller the steps, the less that weighs.
    "learning_rate_scale": 0.05,
}
TEXTS = ["a dog sees a cat.", "the old man gives the small child a red apple", "a big dog has cats", "Grüße, 안녕, 🙂!"]
TEXTS += ["a small house", "the dog runs across the green meadow", "ein kleines Haus", "der Hund läuft, ein Mann sieht"]
TEXTS += ["Hunde Dogge Katze"]


class Done(NamedTuple):
    """How a command ended."""

    code: int
    output: str
    errors: str

    @property
    def succeeded(self) -> "Done":
        """Itself, where the command ended well."""
        assert self.code == 0, self.errors
        return self

    @property
    def error(self) -> str:
        """The line on stderr that says what was wrong, without its "error: "; what a progress bar wrote is skipped."""
        assert self.code == 2 and "Traceback" not in self.errors, self
        last = self.errors.rsplit("\r", 1)[-1].strip().splitlines()[-1]
        assert last.startswith("error: "), self
        return last.removeprefix("error: ")


def call(main: Callable, *arguments, stdin: bytes = b"") -> Done:
    """Run a command's main() with arguments in this process."""
    streams = {"stdin": io.BytesIO(stdin), "stdout": io.BytesIO(), "stderr": io.BytesIO()}
    wrapped = {name: io.TextIOWrapper(stream, "utf-8", newline="") for name, stream in streams.items()}
    code = 0
    with patch.multiple(sys, argv=[main.__module__, *map(str, arguments)], **wrapped):
        try:
            main()
        except SystemExit as end:
            code = end.code
        for name in ("stdout", "stderr"):
            wrapped[name].flush()
    return Done(code or 0, streams["stdout"].getvalue().decode(), streams["stderr"].getvalue().decode())


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """Of a process that imports this tree, takes one thread, keeps its caches in `folder` and asks no network."""
    caches = {"HF_HOME": str(folder / "hf"), "HF_DATASETS_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    path = os.pathsep.join(map(str, (ROOT, ROOT / "examples")))
    return {**os.environ, **caches, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}


def run_python(*arguments, cwd: Path, **variables: str) -> Done:
    """Run the interpreter with arguments, such as a script and its options, in a process of its own in folder `cwd`."""
    command, variables = [sys.executable, *map(str, arguments)], environment(cwd, **variables)
    streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    process = subprocess.run(command, cwd=cwd, env=variables, timeout=300, **streams)
    return Done(process.returncode, process.stdout, process.stderr)


def free_port() -> int:
    """A port of this machine on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def fork(work: Callable[[], object]) -> int:
    """Call `work` in a fork of this process: its exit code, 1 after an error, and below 0 if a signal ended it."""
    process = os.fork()
    if not process:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def run_elsewhere(script: str, *arguments, cwd: Path, **variables: str) -> dict:
    """Run a script in a process where this package cannot be imported: the JSON object that is its last line."""
    hidden = "import sys; sys.modules['modeling_vanilla'] = None\n"
    done = run_python("-P", "-c", hidden + script, *arguments, cwd=cwd, **variables).succeeded
    return json.loads(done.output.splitlines()[-1])


def make_tiny(vocab_size: int = 280, **settings) -> VanillaForConditionalGeneration:
    """A model of one layer, which ends a sentence soon: untrained, it rarely would by itself."""
    torch.manual_seed(0)
    model = VanillaForConditionalGeneration(VanillaConfig(**{"vocab_size": vocab_size, **SIZES, **settings})).eval()
    model.generation_config.max_extra_tokens = 3
    return model


def make_marian(vocab_size: int = 280, **settings) -> MarianMTModel:
    """A model of one layer of MarianMT's."""
    torch.manual_seed(0)
    special = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    return MarianMTModel(MarianConfig(vocab_size=vocab_size, **SIZES, **HEADS, **special, **settings)).eval()


def add_noise(model, scale: float = 0.2):
    """Move every weight that is learned off its initial value (norms and biases are 1 and 0); in evaluation mode."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += scale * torch.randn_like(parameter)
    return model.eval()


def make_tokenizer(texts: Iterable[str], vocab_size: int = 280):
    """A tokenizer of a few texts, which holds their words whole."""
    return train_tokenizer([text for text in texts if text.strip()] * 5, vocab_size=vocab_size)


def save_folder(folder: Path, model, tokenizer) -> Path:
    """A model folder, as training writes it."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def change_json(path: Path, **fields) -> None:
    """Give fields of a JSON object other values; one that is ... is taken out."""
    values = {**read_json(path), **fields}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}), encoding="utf-8")


def change_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a file of safetensors."""
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


# What may be wrong with a folder, done to it


def pickled(folder: Path) -> None:
    """Its weights are a pickle."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def text(name: str, content: str) -> Callable[[Path], int]:
    return lambda folder: (folder / name).write_text(content)


def as_lines(texts: Iterable[str]) -> bytes:
    """The texts as the lines of a file."""
    return "".join(f"{text}\n" for text in texts).encode()


def tree(folder: Path) -> dict[str, bytes | None]:
    """All below a folder: of each file its content, of each folder None."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def as_options(options: dict) -> list[str]:
    """Options by name as a command takes them. One that is None is not given, one that is True has no value."""
    given = {name: value for name, value in options.items() if value is not None}
    return [str(word) for name, value in given.items() for word in (f"--{name}", value) if word is not True]


def write_toy_corpus(folder: Path, **sizes: int) -> dict[str, str]:
    """Write a toy corpus of so many pairs; the options that name its files."""
    names = ("train_file", "validation_file", "test_file")
    return dict(zip(names, map(str, write_corpus(toy_corpus(**sizes), folder / "corpus")), strict=True))


def tensors(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Those of each safetensors file below a folder."""
    return {str(path.relative_to(folder)): load_file(path) for path in folder.rglob("*.safetensors")}


def assert_same_weights(found: Path, expected: Path, name: str = "model", atol: float = 0) -> None:
    """The tensors of two folders are the same, to the bit unless `atol` is given."""
    values, others = (load_file(folder / f"{name}.safetensors") for folder in (found, expected))
    torch.testing.assert_close(values, others, rtol=0, atol=atol)


def one_by_one(model, tokenizer, texts: Iterable[str], **settings) -> list[str]:
    """Translate each text by itself, without padding, straight through generate()."""
    ids = [model.generate(**tokenizer(text, return_tensors="pt"), **settings)[0] for text in texts]
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def pad_right(rows: list[list[int]]) -> torch.Tensor:
    """Token ids as one batch, padded with 0 to the longest row. (B, width)"""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


def batch_of(sources: list[list[int]]) -> dict[str, torch.Tensor]:
    """The sources padded, and their mask; a 0 within a source is a token."""
    lengths, input_ids = torch.tensor([len(source) for source in sources]), pad_right(sources)
    return {"input_ids": input_ids, "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()}
