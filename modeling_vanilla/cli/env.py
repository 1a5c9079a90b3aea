"""What a report of a fault should say: the versions of this package and of its libraries, and the machine.

    vanilla env

It names no file, and nothing is sent.
"""

import os
import platform
from argparse import Namespace
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import torch

from .parser import CommandParser, run_command

_PACKAGES = ("modeling-vanilla", "torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "accelerate")
_EXTRAS = ("datasets", "sacrebleu", "ctranslate2", "onnx", "onnxruntime", "gradio", "peft", "torchao")


def main(arguments: Sequence[str] | None = None) -> None:
    run_command(CommandParser(__doc__), env, arguments)


def env(options: Namespace) -> None:
    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    facts = {
        "platform": platform.platform(),
        "Python": platform.python_version(),
        **{package: _version_of(package) for package in (*_PACKAGES, *_EXTRAS)},
        "processor": f"{platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} cores",
        "accelerator": ", ".join(devices) or accelerator or "none",
    }
    for name, fact in facts.items():
        print(f"{name}: {fact}")


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
