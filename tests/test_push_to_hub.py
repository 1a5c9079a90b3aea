"""The real client of the Hub publishes to a small server that speaks its calls, and loads from there."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
from huggingface_hub import ModelCard, constants
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration
from modeling_vanilla.cli import push as push_to_hub
from modeling_vanilla.training.tokenizer import train_tokenizer

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
        self.private: dict[str, bool] = {}
        self.large: dict[str, bytes] = {}
        self.breaks_at = None  # a part of a path: the connection is closed there

    def tree(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.commits.get(repo, [])
        return next((one for one in reversed(commits) if revision in ("main", one[0])), None)


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, status: int, content: bytes | dict = b"", **headers: str) -> None:
        content = json.dumps(content).encode() if isinstance(content, dict | list) else content
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def may_write(self) -> bool:
        """Whether the token is one to write with; if not, the answer is given."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token != WRITER:
            self.answer(403 if token == READER else 401, {"error": "no"})
        return token == WRITER

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        if self.server.breaks_at and self.server.breaks_at in path:
            self.close_connection = True
        elif path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif not self.may_write():
            pass
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif "/preupload/" in path:
            self.answer(200, {"files": [self.mode(file) for file in json.loads(body)["files"]]})
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.answer(200, {"transfer": "basic", "objects": list(map(self.upload, json.loads(body)["objects"]))})
        elif match := re.fullmatch(r"/api/models/(.+/.+)/commit/main", path):
            self.commit(match[1], [json.loads(line) for line in body.splitlines()])
        else:
            self.answer(404)

    def create(self, asked: dict) -> None:
        repo = f"{asked['organization']}/{asked['name']}"
        exists = repo in self.server.commits
        self.server.commits.setdefault(repo, [])
        self.server.private.setdefault(repo, asked.get("visibility") == "private")
        self.answer(409 if exists else 200, {"url": f"{self.server.endpoint}/{repo}", "error": "exists already"})

    def mode(self, file: dict) -> dict:
        large = file["path"].endswith(".safetensors")
        return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}

    def upload(self, asked: dict) -> dict:
        return {**asked, "actions": {"upload": {"href": f"{self.server.endpoint}/large/{asked['oid']}", "header": {}}}}

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.breaks_at and self.server.breaks_at in self.path:
            self.close_connection = True
            return
        self.server.large[hashlib.sha256(content).hexdigest()] = content
        self.answer(200)

    def commit(self, repo: str, lines: list[dict]) -> None:
        files = dict(self.server.commits[repo][-1][1]) if self.server.commits[repo] else {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
        name = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.server.commits[repo].append((name, files))
        self.answer(200, {"commitOid": name, "commitUrl": f"{self.server.endpoint}/{repo}/commit/{name}"})

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/(.+?/.+?)/resolve/(.+?)/(.+)", path):
            self.resolve(*match.groups())
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            found = self.server.tree(match[1], match[2] or "main")
            if found is None:
                self.answer(404, X_Error_Code="RepoNotFound")
            else:
                names = [{"rfilename": name} for name in found[1]]
                self.answer(200, {"id": match[1], "modelId": match[1], "sha": found[0], "siblings": names})
        else:
            self.answer(404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET

    def resolve(self, repo: str, revision: str, name: str) -> None:
        found = self.server.tree(repo, revision)
        if found is None:
            self.answer(404, X_Error_Code="RevisionNotFound" if repo in self.server.commits else "RepoNotFound")
        elif name not in found[1]:
            self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=found[0])
        else:
            content = found[1][name]
            self.answer(200, content, ETag=f'"{hashlib.sha256(content).hexdigest()}"', X_Repo_Commit=found[0])


@contextmanager
def running_hub():
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """An empty server, which this process takes for the Hub, and a token to write there."""
    with running_hub() as hub:
        use(hub, monkeypatch, tmp_path)
        yield hub


def use(hub: Hub, monkeypatch, home: Path) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # plain git LFS, which a small server can speak
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setenv("HF_TOKEN", WRITER)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the client's attempts


def make_results(parameters: int) -> dict:
    """What train_translation writes, as far as the card reads it."""
    return {
        "settings": {
            "data": {
                "source_lang": "en",
                "target_lang": "de",
                "train_file": "/home/somebody/secret/train.jsonl",
                "train_source": None,
                "train_target": None,
                "dataset_name": None,
            },
            "training": {
                "tokens_per_update": 4096,
                "warmup_steps": 400,
                "learning_rate_scale": 1.0,
                "seed": 0,
                "average_checkpoints": 5,
            },
        },
        "example": SENTENCES[0],
        "training_pairs": 29000,
        "steps": 1300,
        "tokens": 3250000,
        "train_seconds": 240.0,
        "processes": 1,
        "device": "cpu",
        "parameters": parameters,
        "vocabulary": 280,
        "test_sentences": 1000,
        "bleu": 40.934,
        "bleu_signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
        "bleu_compound_split": 40.91,
        "bleu_compound_split_signature": "tok:13a+split",
        "chrf": 61.2,
        "chrf_signature": "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0",
    }


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=280, **sizes)).eval()
    model.generation_config.max_extra_tokens = 3
    return model


@pytest.fixture(scope="module")
def run(model, tmp_path_factory) -> Path:
    """As train_translation leaves a run."""
    run = tmp_path_factory.mktemp("run")
    model.save_pretrained(run / "model")
    train_tokenizer(texts=SENTENCES * 5, vocab_size=280).save_pretrained(run / "model")
    (run / "results.json").write_text(json.dumps(make_results(model.num_parameters())))
    return run


# Publishing


def test_all_files_arrive_in_one_commit(hub, run, capsys):
    push_to_hub.main([str(run / "model"), REPO, "--licence", "cc-by-4.0", "--private"])
    ((name, files),) = hub.commits[REPO]
    assert hub.private[REPO]
    assert capsys.readouterr().out.splitlines()[-1] == f'{REPO} is published; pin it with revision="{name}"'
    assert {path.name for path in (run / "model").iterdir()} | {"README.md"} == set(files)
    assert {"modeling_vanilla.py", "tokenizer.json", "generation_config.json", "model.safetensors"} <= set(files)
    assert files["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()


def test_the_card_says_what_the_run_was(hub, run):
    push_to_hub.main([str(run / "model"), REPO, "--licence", "cc-by-4.0"])
    text = hub.commits[REPO][0][1]["README.md"].decode()
    card = ModelCard(text)
    assert card.data.license == "cc-by-4.0" and card.data.language == ["en", "de"]
    (bleu, _) = card.data.eval_results
    assert (bleu.metric_type, bleu.metric_value) == ("bleu", 40.93)
    assert "tok:13a|smooth:exp|version:2.6.0" in bleu.metric_name
    for said in ("29000 sentence pairs (train.jsonl)", "Intended use and limits", "cc-by-4.0", f'model="{REPO}"'):
        assert said in text
    assert "secret" not in text


def test_a_second_time_makes_a_second_commit(hub, run):
    for licence in ("cc-by-4.0", "mit"):
        push_to_hub.main([str(run / "model"), REPO, "--licence", licence])
    first, second = hub.commits[REPO]
    assert first[0] != second[0]
    assert ModelCard(second[1]["README.md"].decode()).data.license == "mit"


def test_what_is_published_loads_by_its_commit(hub, run, model, tmp_path):
    push_to_hub.main([str(run / "model"), REPO])
    pinned = {"revision": hub.commits[REPO][0][0], "cache_dir": tmp_path}
    loaded = AutoModelForSeq2SeqLM.from_pretrained(REPO, **pinned).eval()
    inputs = AutoTokenizer.from_pretrained(REPO, **pinned)(SENTENCES, padding=True, return_tensors="pt")
    assert loaded.generate(**inputs).tolist() == model.generate(**inputs).tolist()
    with pytest.raises(OSError):  # no such commit
        AutoModelForSeq2SeqLM.from_pretrained(REPO, revision="0" * 40, cache_dir=tmp_path)


ELSEWHERE = """
import json
import re
import sys
sys.modules["modeling_vanilla"] = None  # an import of the package fails, as where it is not installed
from huggingface_hub import hf_hub_download
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

repo, revision, sentences = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
model = AutoModelForSeq2SeqLM.from_pretrained(repo, trust_remote_code=True, revision=revision).eval()
tokenizer = AutoTokenizer.from_pretrained(repo, trust_remote_code=True, revision=revision)
inputs = tokenizer(sentences, padding=True, return_tensors="pt")
tokens = model.generate(**inputs).tolist()
translator = pipeline("translation", model=repo, trust_remote_code=True, revision=revision)
texts = [result["translation_text"] for result in translator(sentences)]
card = open(hf_hub_download(repo, "README.md")).read()
snippet = re.search("```python\\n(.*?)```", card, re.S)[1]
exec(snippet)
print(json.dumps({"tokens": tokens, "texts": texts, "module": type(model).__module__, "snippet": snippet}))
"""


@pytest.mark.slow
def test_what_is_published_translates_where_the_package_is_not(hub, run, model, tmp_path):
    push_to_hub.main([str(run / "model"), REPO])
    revision = hub.commits[REPO][0][0]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.run(
        [sys.executable, "-P", "-c", ELSEWHERE, REPO, revision, json.dumps(SENTENCES)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,  # nobody is there to answer a question
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert process.returncode == 0, process.stderr
    *_, printed, last = process.stdout.splitlines()
    facts = json.loads(last)
    tokenizer = train_tokenizer(texts=SENTENCES * 5, vocab_size=280)
    expected = model.generate(**tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    assert facts["tokens"] == expected.tolist()
    assert facts["texts"] == tokenizer.batch_decode(expected, skip_special_tokens=True)
    assert facts["module"].startswith("transformers_modules.") and revision in facts["module"]
    assert f'model="{REPO}"' in facts["snippet"] and "translation_text" in printed


# What goes wrong


def fail(arguments: list, capsys) -> str:
    """The one line that main() leaves on stderr behind what the client shows there."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        push_to_hub.main(list(map(str, arguments)))
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    return captured.err.splitlines()[-1]


def no_token(hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")


def token(name: str):
    return lambda hub, monkeypatch: monkeypatch.setenv("HF_TOKEN", name)


def no_server(hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def broken_at(part: str):
    return lambda hub, monkeypatch: setattr(hub, "breaks_at", part)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_token, r"error: no token to publish with: hf auth login, or HF_TOKEN"),
        (token("hf_forged"), rf"error: {REPO}: not published: the token is not valid: .*"),
        (token(READER), rf"error: {REPO}: not published: the token has no right to write there"),
        (no_server, rf"error: {REPO}: not published: http://127.0.0.1:9: .*[Cc]onnect.*"),
        (broken_at("/repos/create"), rf"error: {REPO}: not published: http://127.0.0.1:\d+: .*disconnected.*"),
        (broken_at("/large/"), rf"error: {REPO}: not published: http://127.0.0.1:\d+: .*disconnected.*"),
        (broken_at("/commit/main"), rf"error: {REPO}: not published: http://127.0.0.1:\d+: .*disconnected.*"),
    ],
    ids=["no token", "forged", "reader", "no server", "broken at first", "broken in the weights", "broken at the end"],
)
def test_one_line_says_why_and_nothing_is_published(hub, run, monkeypatch, capsys, spoil, message):
    spoil(hub, monkeypatch)
    assert re.fullmatch(message, fail([run / "model", REPO], capsys))
    assert not any(hub.commits.values())


def test_a_published_model_stays_when_the_next_one_fails(hub, run, capsys):
    push_to_hub.main([str(run / "model"), REPO])
    before = list(hub.commits[REPO])
    hub.breaks_at = "/commit/main"
    fail([run / "model", REPO, "--licence", "mit"], capsys)
    assert hub.commits[REPO] == before


@pytest.mark.parametrize(
    ("folder", "repo", "results", "message"),
    [
        ("model", "a-model", None, "repo: a-model lacks its owner, as in you/a-model"),
        ("model", "some body/a-model", None, "Repo id must use alphanumeric"),
        ("nothing", REPO, None, "nothing is no model folder, as it has no config.json"),
        ("model", REPO, "absent.json", "absent.json: no such file"),
        ("model", REPO, "[1]", "holds a list, not the results of a run"),
        ("model", REPO, "{1}", "cannot be read"),
        ("model", REPO, '{"parameters": 7}', "of a model of 7 parameters"),
        ("model", REPO, "short", "lacks 'settings'"),
    ],
)
def test_bad_input_reaches_no_server(hub, run, tmp_path, capsys, folder, repo, results, message):
    arguments = [run / folder, repo]
    if results == "short":
        results = json.dumps({"parameters": json.loads((run / "results.json").read_text())["parameters"]})
    if results is not None:
        path = tmp_path / (results if results.endswith(".json") else "results.json")
        if not results.endswith(".json"):
            path.write_text(results)
        arguments += ["--results", path]
    assert message in fail(arguments, capsys)
    assert not hub.commits
