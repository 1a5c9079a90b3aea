"""What is published on the Hugging Face Hub: written to a folder, which is uploaded as one commit."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import get_session, validate_repo_id
from transformers import PreTrainedModel

from ..errors import one_line
from ..files import write_text
from ..loading import load_model, load_tokenizer, save_tokenizer
from .model_card import source_metadata, write_card_of_run

SECONDS = 60  # that the Hub may take for an answer; its client would wait for ever
# What a Space runs, on the port that it has to.
_APP = '''"""The page of `vanilla demo` for the model beside this file."""

from modeling_vanilla.cli.demo import main

main(["model", "--examples", "examples.txt", "--host", "0.0.0.0", "--port", "7860"])
'''
# What a Space installs beside gradio, which the front matter of its README names.
_REQUIREMENTS = ("torch", "transformers", "tokenizers", "safetensors", "filelock", "sentencex", "matplotlib")


def publish_model(model: Path, repo: str, private: bool = False) -> str:
    """Publish the folder of a model with a card; arguments and errors as for `write_model` and `publish_folder`."""
    with TemporaryDirectory() as folder:
        write_model(Path(folder), model, repo)
        return publish_folder(Path(folder), repo, private)


def publish_folder(folder: Path, repo: str, private: bool = False, space: bool = False) -> str:
    """Upload the files of a folder as one commit, and return it.

    Args:
        repo: OWNER/NAME; it is created if there is none, for its owner alone if it is to be private.
        space: whether it is a Space, a page to try a model, in place of a model.

    Raises:
        ValueError: if there is no token, or `repo` is no name.
        OSError: if the Hub refuses or cannot be reached; the message says why, and nothing is published.
    """
    open_repo(repo, private, space)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [CommitOperationAdd(path.relative_to(folder).as_posix(), path) for path in paths]
    with _refusals(repo):
        # Not upload_folder, which may make several commits: half of a model could then be all that is there.
        kind = "space" if space else "model"
        return HfApi().create_commit(repo, files, commit_message="Publish the model", repo_type=kind).oid


def open_repo(repo: str, private: bool, space: bool = False) -> None:
    """Create `repo` if there is none; arguments and errors as for `publish_folder`.

    A long training calls it first, so as not to find out at its end that it cannot publish.
    """
    check_repo(repo)
    with _refusals(repo):
        kind = "space" if space else "model"
        HfApi().create_repo(repo, repo_type=kind, private=private, exist_ok=True, space_sdk="gradio" if space else None)


def check_repo(repo: str) -> None:
    """Raise ValueError if this is no name of a repository, or there is no token to publish with."""
    validate_repo_id(repo)
    if "/" not in repo:
        raise ValueError(f"repo: {repo} lacks its owner, as in you/{repo}")
    if get_token() is None:
        raise ValueError("no token to publish with: hf auth login, or HF_TOKEN")


def write_model(folder: Path, model: Path, repo: str, licence: str | None = None) -> None:
    """Write the model and the tokenizer of the folder `model` to another folder, with a card.

    Args:
        repo: the name by which people will load it.
        licence: of the weights, by its name on the Hub; by default that of the model that this one was made from.

    Raises:
        ValueError: if the model, its tokenizer or the results of its run cannot be read.
    """
    loaded = _copy_model(model, folder)
    write_card_of_run(folder, loaded, model, model_id=repo, licence=licence)


def write_space(folder: Path, model: Path, repo: str, examples: Sequence[str] = (), licence: str | None = None) -> None:
    """Write the page of `vanilla demo` as a Space: the model's folder, this package's code and an app.py.

    The Space needs no other repository. It installs the versions of the libraries that are installed here.

    Args:
        repo: its name on the Hub.
        examples: texts to choose from on the page.
        licence: by default that of the model that this one was made from.

    Raises:
        ValueError: if the model cannot be loaded.
    """
    _copy_model(model, folder / "model")
    package = Path(__file__).parent.parent
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    write_text(folder / "app.py", _APP)
    pins = (f"{name}=={version(name).partition('+')[0]}\n" for name in _REQUIREMENTS)
    write_text(folder / "requirements.txt", "".join(pins))
    write_text(folder / "examples.txt", "".join(f"{example}\n" for example in examples))
    licence = licence or source_metadata(model).get("license")
    facts = {
        "title": json.dumps(repo.partition("/")[2]),
        "licence": f"license: {json.dumps(licence)}\n" if licence else "",
        "gradio": version("gradio"),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    text = Path(__file__).with_name("space.md").read_text(encoding="utf-8")
    write_text(folder / "README.md", text.format(**facts))


def _copy_model(model: Path, folder: Path) -> PreTrainedModel:
    """Load the model and the tokenizer of a folder, and write them to another one."""
    tokenizer = load_tokenizer(model)  # first, as it says what is wrong with a folder that is no model's
    loaded = load_model(model, "auto")
    loaded.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return loaded


@contextmanager
def _refusals(repo: str) -> Iterator[None]:
    """Turn an error of the Hub into an OSError that says in one line why it refuses or cannot be reached."""
    get_session().timeout = SECONDS
    try:
        yield
    except (HfHubHTTPError, HTTPError, RuntimeError, OSError) as error:
        raise OSError(f"{repo}: not published: {one_line(error.__cause__ or error)}") from error
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise OSError(f"{repo}: not published: {constants.ENDPOINT} does not answer as the Hub does") from error
