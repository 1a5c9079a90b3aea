"""Publish a model that train_translation.py has made: weights, code, tokenizer, generation configuration, model card.

    hf auth login
    python examples/push_to_hub.py runs/mine/model you/your-model --licence cc-by-4.0

MODEL is a model folder with its tokenizer, REPO its name on the Hub; the repository is created if it is not there. The
model card is filled from results.json, which a run leaves beside the folder. All files arrive in one commit or none.
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import validate_repo_id

from ..hub.model_card import write_model_card
from ..inference import load_translator
from ..io import one_line_errors

REASONS = {
    401: "the token is not valid: hf auth login, or HF_TOKEN",
    403: "the token has no right to write there",
    404: "there is no such repository, or the token may not see it",
}


def push(model: Path, repo: str, results: Path, licence: str | None = None, private: bool = False) -> str:
    """Publish the folder `model` as `repo`, with a card from the file `results`.

    Returns:
        The commit, by which people can pin what they load.

    Raises:
        ValueError: if there is no token, `repo` is no name, or the model, its tokenizer or the results cannot be read
            or are not of one run.
        OSError: if the Hub refuses or cannot be reached; the message says why, and nothing is published.
    """
    validate_repo_id(repo)
    if "/" not in repo:
        raise ValueError(f"repo: {repo} lacks its owner, as in you/{repo}")
    if get_token() is None:
        raise ValueError("no token to publish with: hf auth login, or HF_TOKEN")
    with TemporaryDirectory() as folder:
        stage(model, Path(folder), repo, results, licence)
        return publish(Path(folder), repo, private)


def stage(model: Path, folder: Path, repo: str, results: Path, licence: str | None) -> None:
    """Write all that is to be published to `folder`."""
    loaded, tokenizer = load_translator([model], dtype="auto")
    loaded.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    card = read_results(results)
    if card.get("parameters") != loaded.num_parameters():
        raise ValueError(
            f"{results}: of a model of {card.get('parameters')} parameters; {model} has {loaded.num_parameters()}"
        )
    try:
        write_model_card(folder, loaded.config, card, model_id=repo, licence=licence)
    except KeyError as error:
        raise ValueError(f"{results}: lacks {error}, which train_translation.py writes") from error


def read_results(path: Path) -> dict:
    """What train_translation.py has written of a run."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file, which the model card is filled from; --results names another")
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    if not isinstance(results, dict):
        raise ValueError(f"{path}: holds a {type(results).__name__}, not the results of a run")
    return results


def publish(folder: Path, repo: str, private: bool) -> str:
    """Upload the files of `folder` as one commit, and return it."""
    api = HfApi()
    files = [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        # Not upload_folder, which may make several commits: half of a model could then be all that is there.
        return api.create_commit(repo, files, commit_message="Publish the model").oid
    except HfHubHTTPError as error:
        reason = REASONS.get(error.response.status_code, str(error))
        raise OSError(f"{repo}: not published: {reason}") from error
    except (HTTPError, RuntimeError, OSError) as error:
        print(file=sys.stderr)  # the client leaves its progress bar open
        raise OSError(f"{repo}: not published: {api.endpoint}: {error.__cause__ or error}") from error


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", type=Path, help="a model folder")
    parser.add_argument("repo", metavar="REPO", help="its name on the Hub, you/your-model")
    parser.add_argument("--results", type=Path, help="default: the results.json beside MODEL")
    parser.add_argument("--licence", help="of the weights, by its name on the Hub; the data decide it")
    parser.add_argument("--private", action="store_true", help="if REPO is new, nobody else sees it")
    options = parser.parse_args(arguments)
    with one_line_errors():
        results = options.results or options.model.resolve().parent / "results.json"
        commit = push(options.model, options.repo, results, options.licence, options.private)
        print(f'{options.repo} is published; pin it with revision="{commit}"')


if __name__ == "__main__":
    main()
