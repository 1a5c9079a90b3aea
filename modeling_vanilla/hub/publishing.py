"""A model folder, with its card or as a Space to try it in, published on the Hugging Face Hub in one commit."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import are_progress_bars_disabled, validate_repo_id
from transformers import PreTrainedModel

from ..files import read_json, write_text
from ..inference import load_translator
from .model_card import source_metadata, write_card_of_run

# What a Space runs, on the port that it has to.
_APP = '''"""The page of `vanilla demo` for the model beside this file."""

from modeling_vanilla.cli.demo import main

main(["model", "--examples", "examples.txt", "--host", "0.0.0.0", "--port", "7860"])
'''
# What a Space installs beside gradio, which the front matter of its README names.
_REQUIREMENTS = ("torch", "transformers", "tokenizers", "safetensors", "filelock", "matplotlib")
# What the page of a static Space runs, in the folder that npm installs packages to.
_TRANSFORMERS_JS = "@huggingface/transformers"
_LIBRARIES = [
    f"{_TRANSFORMERS_JS}/dist/transformers.min.js",
    *(f"onnxruntime-web/dist/ort-wasm-simd-threaded.{ending}" for ending in ("mjs", "wasm")),
]
# The search and what it imports.
_SEARCH_FILES = [f"{name}_vanilla.py" for name in ("generation", "search", "cache", "configuration")]
_REASONS = {
    401: "the token is not valid: hf auth login, or HF_TOKEN",
    403: "the token has no right to write there",
    404: "there is no such repository, or the token may not see it",
}


def publish_model(
    model: Path, repo: str, results: Path | None = None, licence: str | None = None, private: bool = False
) -> str:
    """Publish the folder `model` as `repo`, with a card.

    Args:
        repo: OWNER/NAME; it is created if there is none, for its owner alone if it is to be private.
        results: results.json of the run that trained the model; None for one that was converted and not trained.
        licence: of the weights, by its name on the Hub; by default that of the model that this one was made from.

    Returns:
        The commit, to which people can pin what they load.

    Raises:
        ValueError: if there is no token, `repo` is no name, or the model, its tokenizer or the results cannot be read
            or are not of one run.
        OSError: if the Hub refuses or cannot be reached; the message says why, and nothing is published.
    """
    _check_repo(repo)
    with TemporaryDirectory() as folder:
        loaded = _copy_model(model, Path(folder))
        write_card_of_run(Path(folder), loaded, model, results, model_id=repo, licence=licence)
        return _commit(Path(folder), repo, private=private)


def open_repo(repo: str, private: bool) -> None:
    """Create `repo` if there is none, so that a long training does not find out at its end that it cannot publish.

    The errors are as for `publish_model`.
    """
    _check_repo(repo)
    with _refusals(repo):
        HfApi().create_repo(repo, private=private, exist_ok=True)


def publish_best(folder: Path, repo: str) -> str:
    """Publish the files of the folder on the branch "best" of `repo`, which is there; else as `publish_model`."""
    with _refusals(repo):
        HfApi().create_branch(repo, branch="best", exist_ok=True)
    return _commit(folder, repo, revision="best", private=True)


def publish_folder(folder: Path, repo: str, private: bool = False) -> str:
    """Publish the files of a folder as they are; else as `publish_model`."""
    _check_repo(repo)
    return _commit(folder, repo, private=private)


def publish_space(
    model: Path, repo: str, examples: Sequence[str] = (), licence: str | None = None, private: bool = False
) -> str:
    """Publish the page of `vanilla demo` as the Space `repo`: the model's folder, this package's code and an app.py.

    The Space needs no other repository. It installs the versions of the libraries that are installed here.

    Args:
        examples: texts to choose from on the page. The others and the errors are as for `publish_model`.
    """
    _check_repo(repo)
    with TemporaryDirectory() as folder:
        _write_space(Path(folder), model, repo, examples, licence)
        return _commit(Path(folder), repo, private=private, repo_type="space", space_sdk="gradio")


def publish_static_space(
    model: Path,
    repo: str,
    export: Callable[[Path], object],
    packages: Path,
    examples: Sequence[str] = (),
    licence: str | None = None,
    private: bool = False,
) -> str:
    """Publish a page that translates in the visitor's own browser as the Space `repo`, which needs no server.

    The page loads nothing from elsewhere: the Space holds the model in 8 bits, and transformers.js.

    Args:
        export: writes the model for transformers.js to a new folder.
        packages: node_modules, where `npm install @huggingface/transformers` has put the library. The others and the
            errors are as for `publish_space`.

    Raises:
        ValueError: also if `packages` lacks a file of the library.
    """
    _check_repo(repo)
    for name in _LIBRARIES:
        if not (packages / name).is_file():
            raise ValueError(f"{packages / name}: no such file; npm install {_TRANSFORMERS_JS} writes it")
    with TemporaryDirectory() as name:
        folder = Path(name)
        export(folder / "model")
        for path in (folder / "model/onnx").iterdir():
            if not path.stem.endswith("_quantized"):
                path.unlink()
        for path in [*(Path(__file__).parent / "static").iterdir(), *(packages / name for name in _LIBRARIES)]:
            shutil.copyfile(path, folder / path.name)
        _write_examples(folder, examples)
        package = read_json(packages / _TRANSFORMERS_JS / "package.json")
        _write_readme(folder, "static.md", model, repo, licence, version=package.get("version", ""))
        return _commit(folder, repo, private=private, repo_type="space", space_sdk="static")


def publish_search(repo: str, private: bool = False) -> str:
    """Publish the search as `repo`, for generate(custom_generate=repo) of other models; else as `publish_model`."""
    _check_repo(repo)
    with TemporaryDirectory() as folder:
        write_search(Path(folder), repo)
        return _commit(Path(folder), repo, private=private)


def write_search(folder: Path, repo: str) -> None:
    """Write the search to a folder, as transformers' custom_generate loads it: flat files of this package, unchanged.

    repo: the name that its README gives.
    """
    here, target = Path(__file__).parent, folder / "custom_generate"
    target.mkdir(parents=True)
    for name in _SEARCH_FILES:
        shutil.copyfile(here.parent / name, target / name)
    write_text(target / "generate.py", 'from .generation_vanilla import generate\n\n__all__ = ["generate"]\n')
    write_text(folder / "README.md", (here / "search.md").read_text(encoding="utf-8").replace("{repo}", repo))


def _check_repo(repo: str) -> None:
    """Raise ValueError if this is no name of a repository, or there is no token to publish with."""
    validate_repo_id(repo)
    if "/" not in repo:
        raise ValueError(f"repo: {repo} lacks its owner, as in you/{repo}")
    if get_token() is None:
        raise ValueError("no token to publish with: hf auth login, or HF_TOKEN")


def _write_space(folder: Path, model: Path, repo: str, examples: Sequence[str], licence: str | None) -> None:
    """Write all that a Space needs to `folder`."""
    _copy_model(model, folder / "model")
    shutil.copytree(
        Path(__file__).parent.parent, folder / "modeling_vanilla", ignore=shutil.ignore_patterns("__pycache__")
    )
    write_text(folder / "app.py", _APP)
    _write_examples(folder, examples)
    pins = (f"{name}=={version(name).partition('+')[0]}\n" for name in _REQUIREMENTS)
    write_text(folder / "requirements.txt", "".join(pins))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    _write_readme(folder, "space.md", model, repo, licence, gradio=version("gradio"), python=python)


def _write_examples(folder: Path, examples: Sequence[str]) -> None:
    write_text(folder / "examples.txt", "".join(f"{example}\n" for example in examples))


def _write_readme(folder: Path, template: str, model: Path, repo: str, licence: str | None, **facts: str) -> None:
    """README.md of a Space, with the licence that is given or that the model names."""
    inherited = source_metadata(model).get("license")
    licence = licence or (inherited if isinstance(inherited, str) else None)
    facts["title"] = json.dumps(repo.partition("/")[2])
    facts["licence"] = f"license: {json.dumps(licence)}\n" if licence else ""
    text = (Path(__file__).parent / template).read_text(encoding="utf-8")
    write_text(folder / "README.md", text.format(**facts))


def _copy_model(model: Path, folder: Path) -> PreTrainedModel:
    """Write the model and the tokenizer of a folder, as far as they can be loaded, to another one."""
    loaded, tokenizer = load_translator([model], "cpu", "auto")
    loaded.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return loaded


def _commit(folder: Path, repo: str, repo_type: str = "model", revision: str | None = None, **settings) -> str:
    """Upload the files of `folder` as one commit, and return it. settings: of create_repo."""
    api = HfApi()
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [CommitOperationAdd(path.relative_to(folder).as_posix(), path) for path in paths]
    with _refusals(repo):
        api.create_repo(repo, repo_type=repo_type, exist_ok=True, **settings)
        # Not upload_folder, which may make several commits: half of a model could then be all that is there.
        message = "Publish the model"
        return api.create_commit(repo, files, commit_message=message, repo_type=repo_type, revision=revision).oid


@contextmanager
def _refusals(repo: str) -> Iterator[None]:
    """Say in one line, as an OSError, why the Hub refuses or cannot be reached."""
    try:
        yield
    except HfHubHTTPError as error:
        reason = _REASONS.get(error.response.status_code, str(error))
        raise OSError(f"{repo}: not published: {reason}") from error
    except (HTTPError, RuntimeError, OSError) as error:
        if not are_progress_bars_disabled():
            print(file=sys.stderr)  # the client does not end the line of its progress bar
        raise OSError(f"{repo}: not published: {HfApi().endpoint}: {error.__cause__ or error}") from error
