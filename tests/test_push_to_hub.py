"""`vanilla push`: what is published, in one commit or none, and that the client of the Hub loads it."""

import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest
import yaml
from helpers import Done, as_lines, call, environment, make_tiny, make_tokenizer, save_folder
from huggingface_hub import HfApi, ModelCard, constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from test_model_card import RESULTS
from transformers import pipeline

from modeling_vanilla.cli.push import main
from modeling_vanilla.hub.model_card import write_model_card

REPO = "somebody/a-model"
SENTENCES = ["a small house", "the dog runs across the green meadow"]


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


class Hub:
    """What the client does to publish, in the form of its own cache, from which it then loads.

    commits: of each repository its commits, each (name, {path: content}).
    """

    def __init__(self, cache: Path):
        self.cache = cache
        self.commits: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.private: set[str] = set()

    def create_repo(self, repo: str, *, repo_type: str, exist_ok: bool, private: bool, space_sdk: str | None = None):
        assert exist_ok and (repo_type == "space") == (space_sdk == "gradio")
        self.commits.setdefault(repo, [])
        if private:
            self.private.add(repo)

    def create_commit(self, repo: str, operations: list, *, repo_type: str, commit_message: str):
        files = {add.path_in_repo: Path(add.path_or_fileobj).read_bytes() for add in operations}
        name = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[repo].append((name, files))
        folder = self.cache / f"{repo_type}s--{repo.replace('/', '--')}"
        write_files(folder / "snapshots" / name, files)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs/main").write_text(name)
        return SimpleNamespace(oid=name)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """An empty Hub, which this process takes for the real one, and a token to write there."""
    hub = Hub(tmp_path / "cache")
    for name in ("create_repo", "create_commit"):
        monkeypatch.setattr(HfApi, name, getattr(hub, name))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    return hub


@pytest.fixture(scope="module")
def model():
    return make_tiny()


@pytest.fixture(scope="module")
def run(model, tmp_path_factory) -> Path:
    """As training leaves a run."""
    run = tmp_path_factory.mktemp("run")
    save_folder(run / "model", model, make_tokenizer(SENTENCES))
    (run / "results.json").write_text(json.dumps({**RESULTS, "parameters": model.num_parameters()}))
    return run


DISCONNECTED = HTTPError("disconnected")


def refusal(status: int) -> HfHubHTTPError:
    return HfHubHTTPError("no", response=SimpleNamespace(status_code=status, headers={}, request=None))


def push(run, *options) -> Done:
    return call(main, run / "model", REPO, *options)


# Publishing


def test_all_files_arrive_in_one_commit(hub, run):
    done = push(run, "--licence", "cc-by-4.0", "--private")
    ((name, files),) = hub.commits[REPO]
    assert hub.private == {REPO}
    assert (done.code, done.output) == (0, f'{REPO} is published; pin it with revision="{name}"\n')
    assert {path.name for path in (run / "model").iterdir()} | {"README.md"} == set(files)
    assert files["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    card = ModelCard(files["README.md"].decode())
    assert card.data.license == "cc-by-4.0"
    assert card.data.eval_results[0].metric_value == 40.93
    assert f'model="{REPO}"' in card.text


def test_the_search_arrives_in_one_commit(hub):
    assert call(main, REPO, "--search").code == 0
    ((_, files),) = hub.commits[REPO]
    assert {"custom_generate/generate.py", "custom_generate/search_vanilla.py"} < files.keys()
    assert f'custom_generate="{REPO}"' in files["README.md"].decode()


def test_a_space_arrives_in_one_commit_or_not_at_all(hub, run, tmp_path):
    pytest.importorskip("gradio")
    (tmp_path / "test.en").write_bytes(as_lines([*SENTENCES, *"abcdef"]))
    options = ("--space", "--licence", "mit", "--examples", tmp_path / "test.en")
    with patch.object(HfApi, "create_commit", side_effect=DISCONNECTED):
        assert push(run, *options).code == 2 and not any(hub.commits.values())
    assert push(run, *options).output == f"the Space {REPO} is published\n"
    ((_, files),) = hub.commits[REPO]
    facts = yaml.safe_load(files["README.md"].decode().split("---")[1])
    assert facts == facts | {"title": "a-model", "sdk": "gradio", "app_file": "app.py", "license": "mit"}
    assert facts["sdk_version"] == version("gradio") and isinstance(facts["python_version"], str)
    assert f"torch=={version('torch').split('+')[0]}\n" in files["requirements.txt"].decode()
    assert files["examples.txt"].decode().splitlines() == [*SENTENCES, *"abc"]
    assert files["model/model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    assert {"modeling_vanilla/cli/demo.py", "modeling_vanilla/visualization/attention.html"} <= files.keys()
    assert not any("__pycache__" in name for name in files)


@pytest.mark.slow
def test_a_space_serves_its_page(hub, run, tmp_path):
    """Its app.py, run in its files as a Space runs it, without this tree; the port alone is another."""
    pytest.importorskip("gradio")
    push(run, "--space")
    write_files(tmp_path, hub.commits[REPO][-1][1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (tmp_path / "app.py").write_text((tmp_path / "app.py").read_text().replace("7860", port))
    variables = {**environment(tmp_path), "PYTHONPATH": ""}
    command = [sys.executable, "app.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline().endswith(f":{port}/ (Ctrl-C ends it)\n")
            page = urllib.request.urlopen(f"http://127.0.0.1:{port}/").read().decode()
        finally:
            process.terminate()
    assert "Best of each beam" in page


def test_what_is_published_translates_as_its_card_says(hub, run, model, monkeypatch):
    push(run)
    ((revision, files),) = hub.commits[REPO]
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub.cache))
    translator = pipeline("translation", model=REPO, trust_remote_code=True, revision=revision)
    tokenizer = make_tokenizer(SENTENCES)
    expected = model.generate(**tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    texts = [result["translation_text"] for result in translator(SENTENCES)]
    assert texts == tokenizer.batch_decode(expected, skip_special_tokens=True)
    printed = []
    exec(re.search("```python\n(.*?)```", files["README.md"].decode(), re.DOTALL)[1], {"print": printed.append})
    assert "translation_text" in str(printed)


# What goes wrong


REFUSALS = [
    ("create_repo", refusal(401), "the token is not valid: hf auth login, or HF_TOKEN"),
    ("create_repo", refusal(403), "the token has no right to write there"),
    ("create_commit", refusal(404), "there is no such repository, or the token may not see it"),
    ("create_commit", DISCONNECTED, f"{constants.ENDPOINT}: disconnected"),
]


@pytest.mark.parametrize(("call", "error", "reason"), REFUSALS)
def test_one_line_says_why_and_nothing_is_published(hub, run, monkeypatch, call, error, reason):
    monkeypatch.setattr(HfApi, call, Mock(side_effect=error))
    assert push(run).error == f"{REPO}: not published: {reason}"
    assert not any(hub.commits.values())


def test_a_hub_that_does_not_answer_is_named(run, monkeypatch):
    """By the client itself."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the client's attempts
    assert re.fullmatch(rf"{REPO}: not published: http://127\.0\.0\.1:9: .*[Cc]onnect.*", push(run).error)


def test_without_a_token_nothing_is_tried(hub, run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "")
    assert push(run).error == "no token to publish with: hf auth login, or HF_TOKEN" and not hub.commits


BAD_INPUT = [
    ("a-model", {}, "repo: a-model lacks its owner, as in you/a-model"),
    ("some body/a-model", {}, "Repo id must use alphanumeric"),
    (REPO, {"parameters": 7}, "of a model of 7 parameters"),
    (REPO, {"settings": None}, "not as `vanilla train` writes it"),
]


@pytest.mark.parametrize(("repo", "changes", "message"), BAD_INPUT)
def test_bad_input_reaches_no_server(hub, run, tmp_path, repo, changes, message):
    results = json.loads((run / "results.json").read_text()) | changes
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert message in call(main, run / "model", repo, "--results", tmp_path / "results.json").error
    assert not hub.commits


def test_a_converted_model_is_published_without_results(hub, model, tmp_path):
    folder = save_folder(tmp_path / "opus", model, make_tokenizer(SENTENCES))
    write_model_card(folder, model, source={"base_model": "Helsinki-NLP/opus-mt-en-de", "license": "cc-by-4.0"})
    assert call(main, folder, REPO).code == 0
    card = ModelCard(hub.commits[REPO][0][1]["README.md"].decode())
    assert (card.data.base_model, card.data.license) == ("Helsinki-NLP/opus-mt-en-de", "cc-by-4.0")
    assert f'model="{REPO}"' in card.text


def test_a_folder_of_other_scores_is_not_published_with_the_models(hub, run, tmp_path):
    best = shutil.copytree(run / "model", tmp_path / "best")
    shutil.copy(run / "results.json", tmp_path)
    assert "is no run's model/, of which its results.json is; give --results" in call(main, best, REPO).error
    assert not hub.commits
