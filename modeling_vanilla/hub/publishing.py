"""A model folder and its card, published on the Hugging Face Hub in one commit."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import validate_repo_id

from ..inference import load_translator
from ..io import read_json
from .model_card import write_model_card

_REASONS = {
    401: "the token is not valid: hf auth login, or HF_TOKEN",
    403: "the token has no right to write there",
    404: "there is no such repository, or the token may not see it",
}


def publish_model(model: Path, repo: str, results: Path, licence: str | None = None, private: bool = False) -> str:
    """Publish the folder `model` as `repo`, with a card filled from the file `results`.

    Args:
        repo: OWNER/NAME; it is created if there is none, for its owner alone if it is to be private.
        results: results.json of the run that trained the model.
        licence: of the weights, by its name on the Hub.

    Returns:
        The commit, to which people can pin what they load.

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
        _write_files(Path(folder), model, repo, results, licence)
        return _commit(Path(folder), repo, private)


def _write_files(folder: Path, model: Path, repo: str, results: Path, licence: str | None) -> None:
    """Write all that is to be published to `folder`."""
    loaded, tokenizer = load_translator([model], dtype="auto")
    loaded.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = _read_results(results)
    if facts.get("parameters") != loaded.num_parameters():
        raise ValueError(
            f"{results}: of a model of {facts.get('parameters')} parameters; {model} has {loaded.num_parameters()}"
        )
    try:
        write_model_card(folder, loaded.config, facts, model_id=repo, licence=licence)
    except KeyError as error:
        raise ValueError(f"{results}: lacks {error}, which `vanilla train` writes") from error


def _read_results(path: Path) -> dict:
    if not path.is_file():
        raise ValueError(f"{path}: no such file, which the model card is filled from; --results names another")
    return read_json(path)


def _commit(folder: Path, repo: str, private: bool) -> str:
    """Upload the files of `folder` as one commit, and return it."""
    api = HfApi()
    files = [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        # Not upload_folder, which may make several commits: half of a model could then be all that is there.
        return api.create_commit(repo, files, commit_message="Publish the model").oid
    except HfHubHTTPError as error:
        reason = _REASONS.get(error.response.status_code, str(error))
        raise OSError(f"{repo}: not published: {reason}") from error
    except (HTTPError, RuntimeError, OSError) as error:
        print(file=sys.stderr)  # the client does not end the line of its progress bar
        raise OSError(f"{repo}: not published: {api.endpoint}: {error.__cause__ or error}") from error
