"""`vanilla push`: what is published, in one commit or none, and that the client of the Hub loads it."""

import hashlib
import json
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml
from helpers import TINY, as_lines, as_options, call, environment, free_port, make_tiny, make_tokenizer, save_folder
from huggingface_hub import HfApi, ModelCard, constants
from huggingface_hub.errors import HfHubHTTPError
from test_model_card import RESULTS
from transformers import pipeline

from modeling_vanilla import Translator
from modeling_vanilla.cli import train
from modeling_vanilla.cli.push import main
from modeling_vanilla.hub import publishing

REPO = "somebody/a-model"
SENTENCES = ["a small house", "the dog runs across the green meadow"]


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


@pytest.fixture
def commits(monkeypatch, tmp_path) -> list[tuple[str, dict[str, bytes]]]:
    """In place of a Hub: what is published, of each commit its name and {path: content}, and a token to do so.

    It lies in the client's own cache, too, from which that loads.
    """
    commits = []

    def create_commit(repo: str, operations: list, *, repo_type: str, commit_message: str):
        files = {add.path_in_repo: Path(add.path_or_fileobj).read_bytes() for add in operations}
        name = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        commits.append((name, files))
        folder = tmp_path / "cache" / f"{repo_type}s--{repo.replace('/', '--')}"
        write_files(folder, {"refs/main": name.encode(), **{f"snapshots/{name}/{path}": files[path] for path in files}})
        return SimpleNamespace(oid=name)

    monkeypatch.setattr(HfApi, "create_repo", Mock())
    monkeypatch.setattr(HfApi, "create_commit", Mock(side_effect=create_commit))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    return commits


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


def push(run, *options):
    return call(main, run / "model", REPO, *options)


# Publishing


def test_all_files_arrive_in_one_commit(commits, run, model):
    done = push(run, "--licence", "cc-by-4.0", "--private")
    ((name, files),) = commits
    created = HfApi.create_repo.call_args.kwargs
    assert created == {"private": True, "exist_ok": True, "repo_type": "model", "space_sdk": None}
    assert (done.code, done.output) == (0, f'{REPO} is published; pin it with revision="{name}"\n')
    assert {path.name for path in (run / "model").iterdir()} | {"README.md"} == set(files)
    assert files["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    card = ModelCard(files["README.md"].decode())
    assert card.data.license == "cc-by-4.0" and "40.93" in card.text
    # It translates as its card says.
    translator = pipeline("translation", model=REPO, trust_remote_code=True, revision=name)
    texts = [result["translation_text"] for result in translator(SENTENCES)]
    assert texts == Translator(model, make_tokenizer(SENTENCES)).translate(SENTENCES)
    printed = []
    exec(re.search("```python\n(.*?)```", card.text, re.DOTALL)[1], {"print": printed.append})
    assert "translation_text" in str(printed)


@pytest.mark.parametrize("facts", ["ours", "of another program"])
def test_the_best_of_a_run_has_its_licence_and_no_scores(commits, model, tmp_path, facts):
    """Which was fine-tuned from the model of another."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "README.md").write_text("---\nbase_model: them/theirs\nlicense: mit\n---\n")
    save_folder(tmp_path / "best", model, make_tokenizer(SENTENCES))
    results = {**RESULTS, "settings": {**RESULTS["settings"], "model": {"model": "theirs"}}}
    (tmp_path / ("run.json" if facts == "ours" else "theirs.json")).write_text("{}")
    (tmp_path / "results.json").write_text(json.dumps(results if facts == "ours" else {"bleu": 40.93}))
    assert call(main, tmp_path / "best", REPO).code == 0
    ((_, files),) = commits
    card = ModelCard(files["README.md"].decode())
    expected = ("them/theirs", "mit") if facts == "ours" else (None, None)
    assert (card.data.base_model, card.data.license) == expected and "40.93" not in card.text
    assert ("Fine-tuned from them/theirs." in card.text) == (facts == "ours")


def test_as_a_marian(commits, run):
    """What transformers' search has not is said; test_export.py loads such a folder."""
    done = push(run, "--as", "marian", "--licence", "cc-by-4.0")
    assert done.errors.startswith("warning: length_penalty 0.6 is GNMT's")
    ((_, files),) = commits
    assert not any(name.endswith(".py") for name in files)
    assert f'from_pretrained("{REPO}")' in files["README.md"].decode()


def test_training_publishes_its_model(commits, tmp_path, monkeypatch):
    """Nobody else sees what it creates."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a small house\tein kleines Haus\n" * 8, encoding="utf-8")
    options = {"train_file": pairs, "validation_file": pairs, **TINY, "max_steps": 2, "push_to_hub": REPO}
    assert call(train.main, *as_options({**options, "output_dir": tmp_path / "run"})).code == 0
    ((_, files),) = commits
    assert files["model.safetensors"] == (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert all(made.kwargs["private"] for made in HfApi.create_repo.call_args_list)
    monkeypatch.delenv("HF_TOKEN")
    assert "no token" in call(train.main, *as_options({**options, "output_dir": tmp_path / "second"})).error
    assert not (tmp_path / "second").exists()


def test_a_space_arrives_in_one_commit(commits, run, tmp_path):
    pytest.importorskip("gradio")
    (tmp_path / "test.en").write_bytes(as_lines([*SENTENCES, *"abcdef"]))
    options = ("--space", "--licence", "mit", "--examples", tmp_path / "test.en")
    assert push(run, *options).output == f"the Space {REPO} is published\n"
    ((_, files),) = commits
    assert HfApi.create_repo.call_args.kwargs["space_sdk"] == "gradio"
    facts = yaml.safe_load(files["README.md"].decode().split("---")[1])
    assert facts == facts | {"title": "a-model", "sdk": "gradio", "app_file": "app.py", "license": "mit"}
    assert facts["sdk_version"] == version("gradio")
    assert f"torch=={version('torch').split('+')[0]}\n" in files["requirements.txt"].decode()
    assert files["examples.txt"].decode().splitlines() == [*SENTENCES, *"abc"]
    assert {"model/model.safetensors", "modeling_vanilla/cli/demo.py"} <= files.keys()


@pytest.mark.slow
def test_a_space_serves_its_page(commits, run, tmp_path):
    """Its app.py, run in its files as a Space runs it, without this tree; the port alone is another."""
    pytest.importorskip("gradio")
    push(run, "--space")
    write_files(tmp_path, commits[-1][1])
    port = str(free_port())
    (tmp_path / "app.py").write_text((tmp_path / "app.py").read_text().replace("7860", port))
    variables = {**environment(tmp_path), "PYTHONPATH": ""}
    streams = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "app.py"], cwd=tmp_path, env=variables, **streams) as process:
        try:
            assert process.stdout.readline().endswith(f":{port}/ (Ctrl-C ends it)\n")
            assert b"Best of each beam" in urllib.request.urlopen(f"http://127.0.0.1:{port}/").read()
        finally:
            process.terminate()


# What goes wrong


def test_one_line_says_why_and_nothing_is_published(commits, run, monkeypatch):
    response = SimpleNamespace(status_code=403, headers={}, request=None)
    monkeypatch.setattr(HfApi, "create_repo", Mock(side_effect=HfHubHTTPError("no right", response=response)))
    assert push(run).error == f"{REPO}: not published: no right"
    assert not commits


@pytest.mark.parametrize(
    ("answer", "why"),
    [(None, "timed out"), (b"{}", "does not answer as the Hub"), (b"[]", "does not answer as the Hub")],
)
def test_a_server_that_is_no_hub(run, monkeypatch, answer, why):
    """One that accepts and says nothing, and one that answers with other JSON."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(publishing, "SECONDS", 0.5)
        monkeypatch.setenv("HF_TOKEN", "hf_writer")

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                if answer is not None:
                    connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + answer)
                while answer is None and connection.recv(65536):  # the rest of the request, until the client has gone
                    pass

        threading.Thread(target=serve, daemon=True).start()
        assert re.match(f"{REPO}: not published: .*{why}", push(run).error)


def test_bad_input_reaches_no_server(commits, run):
    assert call(main, run / "model", "a-model").error == "repo: a-model lacks its owner, as in you/a-model"
    assert call(main, run, REPO).error.endswith(f"as it has no config.json; did you mean {run / 'model'}?")
    assert push(run, "--examples", "test.en").error == "--examples test.en: only a page (--space) shows them"
    assert not HfApi.create_repo.called
