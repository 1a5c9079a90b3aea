"""Publish a trained model on the Hub: weights, code, tokenizer, generation configuration and model card.

    hf auth login
    vanilla push runs/mine/model you/your-model --licence cc-by-4.0

MODEL is a model folder with its tokenizer, REPO its name on the Hub; the repository is created if there is none. The
model card is filled from results.json, which `vanilla train` writes beside the folder. All files arrive in one commit
or none.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from ..hub.publishing import publish_model
from .parser import CommandParser, run_command


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("model", metavar="MODEL", type=Path, help="a model folder")
    parser.add_argument("repo", metavar="REPO", help="its name on the Hub, you/your-model")
    parser.add_argument("--results", type=Path, metavar="FILE", help="default: the results.json beside MODEL")
    parser.add_argument("--licence", help="of the weights, by its name on the Hub; the data decide it")
    parser.add_argument("--private", action="store_true", help="if REPO is new, nobody else sees it")
    run_command(parser, push, arguments)


def push(options: Namespace) -> None:
    results = options.results or options.model.resolve().parent / "results.json"
    commit = publish_model(options.model, options.repo, results, options.licence, options.private)
    print(f'{options.repo} is published; pin it with revision="{commit}"')
