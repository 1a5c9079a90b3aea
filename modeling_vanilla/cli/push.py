"""Publish a trained model on the Hub: weights, code, tokenizer, generation configuration and model card.

    hf auth login
    vanilla push runs/mine/model you/your-model --licence cc-by-4.0

MODEL is a model folder with its tokenizer, REPO its name on the Hub; the repository is created if there is none. The
model card is filled from results.json, which `vanilla train` writes beside a run's model/; that of another folder, such
as `vanilla convert` and `vanilla average` write, claims no results. All files arrive in one commit or none.

    vanilla push runs/mine/model you/your-marian --as marian --licence cc-by-4.0

publishes it as a MarianMT instead, as `vanilla export --to marian` writes it, which people load without this package.

    vanilla push runs/mine/model you/your-page --space --examples test.en

publishes the page of `vanilla demo` as a Space instead. The Space holds the model, this package's code and the
examples, and needs no other repository; anybody may read them, unless it is --private.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..files import read_json
from ..hub import publishing
from ..interop.folders import export
from .parser import CommandParser, add_examples, read_examples, run_command, warn


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("model", metavar="MODEL", type=Path, help="a model folder")
    parser.add_argument("repo", metavar="REPO", help="its name on the Hub, you/your-model")
    parser.add_argument("--licence", help="of the weights, by its name on the Hub; the data decide it")
    parser.add_argument("--private", action="store_true", help="if REPO is new, nobody else sees it")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--as", dest="format", choices=("marian",), help="publish it in another format")
    what.add_argument("--space", action="store_true", help="publish a page to try the model")
    parser.add_argument("--despite_gate", action="store_true", help="even if no model of its run passed the gate")
    add_examples(parser)
    run_command(parser, push, arguments)


def push(options: Namespace) -> None:
    """Publish what the options name: a page, or the model in one of two formats."""
    model, repo, licence, space = options.model, options.repo, options.licence, options.space
    publishing.check_repo(repo)
    results = model.resolve().with_name("results.json")
    if not options.despite_gate and results.is_file() and read_json(results).get("passed") is False:
        raise ValueError(f"{model}: its run made no model to serve; --despite_gate publishes it")
    if options.examples and not space:
        raise ValueError(f"--examples {options.examples}: only a page (--space) shows them")
    examples = read_examples(options.examples)
    with TemporaryDirectory() as name:
        folder = Path(name)
        if space:
            publishing.write_space(folder, model, repo, examples, licence)
        elif options.format:
            for line in export(options.format, model, folder, card={"licence": licence, "model_id": repo}):
                warn(line)
        else:
            publishing.write_model(folder, model, repo, licence)
        commit = publishing.publish_folder(folder, repo, options.private, space)
    print(f"the Space {repo} is published" if space else f'{repo} is published; pin it with revision="{commit}"')
