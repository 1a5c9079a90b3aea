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

    npm install @huggingface/transformers
    vanilla push runs/mine/model you/your-page --space --static --examples test.en

publishes a page that translates in the visitor's own browser, so that there is no server to pay for. The Space holds
the model in 8 bits, as `vanilla export --to transformers.js` writes it, and transformers.js from ./node_modules, where
npm has put it: the page loads nothing from elsewhere.

    vanilla push --search you/your-search

publishes the search, which other encoder-decoders of transformers then have by
generate(..., custom_generate="you/your-search", trust_remote_code=True).
"""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from .parser import CommandParser, add_examples, read_examples, run_command, warn


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("model", metavar="MODEL", type=Path, nargs="?", help="a model folder")
    parser.add_argument("repo", metavar="REPO", help="its name on the Hub, you/your-model")
    parser.add_argument("--results", type=Path, metavar="FILE", help="default: results.json beside a run's model/")
    parser.add_argument("--licence", help="of the weights, by its name on the Hub; the data decide it")
    parser.add_argument("--private", action="store_true", help="if REPO is new, nobody else sees it")
    parser.add_argument("--as", dest="format", choices=("marian",), help="publish it in another format")
    parser.add_argument("--space", action="store_true", help="publish a page to try the model")
    parser.add_argument("--static", action="store_true", help="with --space: it runs in the visitor's browser")
    parser.add_argument("--search", action="store_true", help="publish the search alone, for other models")
    add_examples(parser)
    run_command(parser, push, arguments)


def push(options: Namespace) -> None:
    """Publish what the options name: the search, a page, or the model in one of two formats."""
    from ..hub.publishing import publish_search

    _check(options)
    if options.search:
        commit = publish_search(options.repo, options.private)
    elif options.space:
        _publish_page(options)
        print(f"the Space {options.repo} is published")
        return
    else:
        commit = _publish_as(options) if options.format else _publish_model(options)
    print(f'{options.repo} is published; pin it with revision="{commit}"')


def _check(options: Namespace) -> None:
    """Raise ValueError for options that do not belong together."""
    if options.search:
        for name in ("model", "results", "licence", "format", "space", "static", "examples"):
            if getattr(options, name):
                raise ValueError(f"{name}: cannot be combined with --search, which publishes no model")
    elif options.model is None:
        raise ValueError("MODEL is missing: a model folder is needed, and the name REPO")
    for name, applies in (("examples", options.space), ("static", options.space), ("results", not options.space)):
        if getattr(options, name) and not applies:
            raise ValueError(f"--{name} {'cannot be combined with' if options.space else 'is an option of'} --space")
    if options.format and (options.space or options.results):
        raise ValueError(f"--as cannot be combined with {'--space' if options.space else '--results'}")


def _publish_page(options: Namespace) -> None:
    from ..hub.publishing import publish_space, publish_static_space
    from ..interop.folders import export

    settings = (read_examples(options.examples), options.licence, options.private)
    if options.static:
        write = partial(export, "transformers.js", options.model)
        publish_static_space(options.model, options.repo, write, Path("node_modules"), *settings)
    else:
        publish_space(options.model, options.repo, *settings)


def _publish_as(options: Namespace) -> str:
    from ..hub.publishing import publish_folder
    from ..interop.folders import export

    with TemporaryDirectory() as folder:
        exported = Path(folder, "model")
        for line in export(options.format, options.model, exported, licence=options.licence, model_id=options.repo):
            warn(line)
        return publish_folder(exported, options.repo, options.private)


def _publish_model(options: Namespace) -> str:
    from ..hub.model_card import results_of
    from ..hub.publishing import publish_model

    results = options.results or results_of(options.model)
    return publish_model(options.model, options.repo, results, options.licence, options.private)
