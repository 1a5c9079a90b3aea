"""`vanilla push`: the real client of the Hub publishes to a small server that speaks its calls, and loads it."""

import base64
import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from helpers import Done, as_lines, call, environment, make_tiny, make_tokenizer, run_elsewhere, save_folder
from huggingface_hub import ModelCard, constants
from test_model_card import RESULTS
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_vanilla.cli.push import main
from modeling_vanilla.hub.model_card import write_model_card

REPO = "somebody/a-model"
SENTENCES = ["a small house", "the dog runs across the green meadow"]
WRITER, READER = "hf_writer", "hf_reader"


class Hub(ThreadingHTTPServer):
    """What the Hub answers to an upload and to a download, of files in memory.

    commits: of each repository its commits, each (name, {path: content}); large: content by sha256, uploaded before.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.commits: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.private: set[str] = set()
        self.large: dict[str, bytes] = {}
        self.breaks_at = "nowhere"  # a part of a path: the connection is closed there


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, status: int, content: bytes | dict = b"", **headers: str) -> None:
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.server.breaks_at in path:
            self.close_connection = True
        elif path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif token != WRITER:
            self.answer(403 if token == READER else 401, {"error": "no"})
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif "/preupload/" in path:
            self.answer(200, {"files": [self.mode(file["path"]) for file in json.loads(body)["files"]]})
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.answer(200, {"transfer": "basic", "objects": list(map(self.upload, json.loads(body)["objects"]))})
        elif match := re.fullmatch(r"/api/(?:models|spaces)/(.+/.+)/commit/main", path):
            self.commit(match[1], [json.loads(line) for line in body.splitlines()])
        else:
            self.answer(404)

    def create(self, asked: dict) -> None:
        repo = f"{asked['organization']}/{asked['name']}"
        status = 409 if repo in self.server.commits else 200
        self.server.commits.setdefault(repo, [])
        if asked.get("visibility") == "private":
            self.server.private.add(repo)
        self.answer(status, {"url": f"{self.server.endpoint}/{repo}", "error": "exists already"})

    def mode(self, path: str) -> dict:
        return {
            "path": path,
            "uploadMode": "lfs" if path.endswith(".safetensors") else "regular",
            "shouldIgnore": False,
        }

    def upload(self, asked: dict) -> dict:
        return {**asked, "actions": {"upload": {"href": f"{self.server.endpoint}/large/{asked['oid']}", "header": {}}}}

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.breaks_at in self.path:
            self.close_connection = True
        else:
            self.server.large[hashlib.sha256(content).hexdigest()] = content
            self.answer(200)

    def commit(self, repo: str, lines: list[dict]) -> None:
        commits = self.server.commits[repo]
        files = dict(commits[-1][1]) if commits else {}
        for key, value in ((line["key"], line["value"]) for line in lines):
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
        name = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        commits.append((name, files))
        self.answer(200, {"commitOid": name, "commitUrl": f"{self.server.endpoint}/{repo}/commit/{name}"})

    def do_GET(self):
        """A file, or the list of files, of a repository's commit."""
        path = unquote(urlsplit(self.path).path)
        match = re.fullmatch(r"(?:/api/models)?/([^/]+/[^/]+)(?:/(?:resolve|revision)/([^/]+)(?:/(.+))?)?", path)
        repo, revision, name = match.groups() if match else (None,) * 3
        commits = [one for one in self.server.commits.get(repo, ()) if revision in (None, "main", one[0])]
        commit, files = commits[-1] if commits else (None, {})
        if match is None:
            self.answer(404, X_Error_Code="EntryNotFound")
        elif commit is None:
            self.answer(404, X_Error_Code="RevisionNotFound" if repo in self.server.commits else "RepoNotFound")
        elif name is None:
            self.answer(200, {"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in files]})
        elif name not in files:
            self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        else:
            self.answer(200, files[name], ETag=f'"{hashlib.sha256(files[name]).hexdigest()}"', X_Repo_Commit=commit)

    do_HEAD = do_GET


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """An empty server, which this process takes for the Hub, and a token to write there."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    for name, value in {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,  # plain git LFS, which a small server can speak
        "HF_TOKEN_PATH": str(tmp_path / "token"),
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", WRITER)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the client's attempts
    yield hub
    hub.shutdown()
    hub.server_close()
    thread.join()


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


def push(run, *options) -> Done:
    return call(main, run / "model", REPO, *options)


# Publishing


def test_all_files_arrive_in_one_commit(hub, run):
    done = push(run, "--licence", "cc-by-4.0", "--private")
    ((name, files),) = hub.commits[REPO]
    assert hub.private == {REPO}
    assert (done.code, done.output) == (0, f'{REPO} is published; pin it with revision="{name}"\n')
    assert {path.name for path in (run / "model").iterdir()} | {"README.md"} == set(files)
    assert {"modeling_vanilla.py", "tokenizer.json", "generation_config.json", "model.safetensors"} <= set(files)
    assert files["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    card = ModelCard(files["README.md"].decode())
    assert card.data.license == "cc-by-4.0"
    assert card.data.eval_results[0].metric_value == 40.93
    assert f'model="{REPO}"' in card.text


def test_what_is_published_loads_by_its_commit(hub, run, model, tmp_path):
    push(run)
    pinned = {"revision": hub.commits[REPO][0][0], "cache_dir": tmp_path}
    loaded = AutoModelForSeq2SeqLM.from_pretrained(REPO, **pinned).eval()
    inputs = AutoTokenizer.from_pretrained(REPO, **pinned)(SENTENCES, padding=True, return_tensors="pt")
    assert loaded.generate(**inputs).tolist() == model.generate(**inputs).tolist()
    with pytest.raises(OSError):  # no such commit
        AutoModelForSeq2SeqLM.from_pretrained(REPO, revision="0" * 40, cache_dir=tmp_path)


def test_the_search_arrives_in_one_commit(hub):
    assert call(main, REPO, "--search").code == 0
    ((_, files),) = hub.commits[REPO]
    names = ("configuration_vanilla", "constraints_vanilla", "cpu_vanilla", "generate", "generation_vanilla")
    assert sorted(files) == ["README.md", *(f"custom_generate/{name}.py" for name in names)]
    assert f'custom_generate="{REPO}"' in files["README.md"].decode()


def test_a_space_arrives_in_one_commit_or_not_at_all(hub, run, tmp_path):
    pytest.importorskip("gradio")
    (tmp_path / "test.en").write_bytes(as_lines([*SENTENCES, *"abcdef"]))
    options = ("--space", "--licence", "mit", "--examples", tmp_path / "test.en")
    hub.breaks_at = "/commit/main"
    assert push(run, *options).code == 2 and not any(hub.commits.values())
    hub.breaks_at = "nowhere"
    assert push(run, *options).output == f"the Space {REPO} is published\n"
    ((_, files),) = hub.commits[REPO]
    facts = yaml.safe_load(files["README.md"].decode().split("---")[1])
    assert {name: facts[name] for name in ("title", "sdk", "app_file", "license")} == {
        "title": "a-model", "sdk": "gradio", "app_file": "app.py", "license": "mit"
    }  # fmt: skip
    assert facts["sdk_version"] == version("gradio") and isinstance(facts["python_version"], str)
    assert f"torch=={version('torch').split('+')[0]}\n" in files["requirements.txt"].decode()
    assert files["examples.txt"].decode().splitlines() == [*SENTENCES, *"abc"]
    assert files["model/model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    code = {name for name in files if name.startswith("modeling_vanilla/")}
    assert {"modeling_vanilla/cli/demo.py", "modeling_vanilla/visualization/attention.html"} <= code
    assert not any("__pycache__" in name for name in files)


@pytest.mark.slow
def test_a_space_serves_its_page(hub, run, tmp_path):
    """Its app.py, run in its files as a Space runs it, without this tree; the port alone is another."""
    pytest.importorskip("gradio")
    push(run, "--space")
    for name, content in hub.commits[REPO][-1][1].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
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


ELSEWHERE = """
import json
import re
from huggingface_hub import hf_hub_download
from transformers import pipeline

repo, revision, sentences = sys.argv[1:]
translator = pipeline("translation", model=repo, trust_remote_code=True, revision=revision)
texts = [result["translation_text"] for result in translator(json.loads(sentences))]
snippet = re.search("```python\\n(.*?)```", open(hf_hub_download(repo, "README.md")).read(), re.S)[1]
printed = []
exec(snippet, {"print": printed.append})
print(json.dumps({"texts": texts, "module": type(translator.model).__module__, "snippet": snippet, "printed": printed}))
"""


@pytest.mark.slow
def test_what_is_published_translates_where_the_package_is_not(hub, run, model, tmp_path):
    push(run)
    revision = hub.commits[REPO][0][0]
    variables = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "PYTHONPATH": ""}
    facts = run_elsewhere(ELSEWHERE, REPO, revision, json.dumps(SENTENCES), cwd=tmp_path, **variables)
    tokenizer = make_tokenizer(SENTENCES)
    expected = model.generate(**tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    assert facts["texts"] == tokenizer.batch_decode(expected, skip_special_tokens=True)
    assert facts["module"].startswith("transformers_modules.") and revision in facts["module"]
    assert f'model="{REPO}"' in facts["snippet"] and "translation_text" in str(facts["printed"])


# What goes wrong


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ({"token": ""}, "no token to publish with: hf auth login, or HF_TOKEN"),
        ({"token": "hf_forged"}, f"{REPO}: not published: the token is not valid: .*"),
        ({"token": READER}, f"{REPO}: not published: the token has no right to write there"),
        ({"endpoint": "http://127.0.0.1:9"}, rf"{REPO}: not published: http://127\.0\.0\.1:9: .*[Cc]onnect.*"),
        *(
            ({"breaks_at": part}, rf"{REPO}: not published: http://127\.0\.0\.1:\d+: .*disconnected.*")
            for part in ("/repos/create", "/large/", "/commit/main")
        ),
    ],
)
def test_one_line_says_why_and_nothing_is_published(hub, run, monkeypatch, spoil, reason):
    monkeypatch.setenv("HF_TOKEN", spoil.get("token", WRITER))
    monkeypatch.setattr(constants, "ENDPOINT", spoil.get("endpoint", hub.endpoint))
    hub.breaks_at = spoil.get("breaks_at", hub.breaks_at)
    assert re.fullmatch(reason, push(run).error)
    assert not any(hub.commits.values())


def test_a_second_time_makes_a_second_commit_or_none(hub, run):
    for licence in ("cc-by-4.0", "mit"):
        push(run, "--licence", licence)
    (first, _), (second, files) = before = list(hub.commits[REPO])
    assert first != second and ModelCard(files["README.md"].decode()).data.license == "mit"
    hub.breaks_at = "/commit/main"
    assert push(run, "--licence", "cc-by-4.0").code == 2
    assert hub.commits[REPO] == before


@pytest.mark.parametrize(
    ("repo", "results", "message"),
    [
        ("a-model", None, "repo: a-model lacks its owner, as in you/a-model"),
        ("some body/a-model", None, "Repo id must use alphanumeric"),
        (REPO, None, "results.json: no such file"),
        (REPO, "[1]", "cannot be read: it holds a list"),
        (REPO, "{1}", "cannot be read"),
        (REPO, '{"parameters": 7}', "of a model of 7 parameters"),
        (REPO, '{"parameters": PARAMETERS}', "lacks 'settings'"),
        (REPO, '{"parameters": PARAMETERS, "settings": null}', "not as `vanilla train` writes it"),
    ],
)
def test_bad_input_reaches_no_server(hub, run, model, tmp_path, repo, results, message):
    path = tmp_path / "results.json"
    if results is not None:
        path.write_text(results.replace("PARAMETERS", str(model.num_parameters())))
    assert message in call(main, run / "model", repo, "--results", path).error
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
