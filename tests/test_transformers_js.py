"""`vanilla export --to transformers.js`, and the page of `vanilla push --space --static` in a browser."""

import json
import os
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import add_noise, call, make_tiny, make_tokenizer, one_by_one, read_json, save_folder
from transformers import AutoConfig, MarianConfig

from modeling_vanilla.cli import export, push
from modeling_vanilla.hub import publishing

SOURCES = ["a small house", "the dog runs across the green meadow", "house", "", "the small dog runs"] * 4
SOURCES = [f"{source} {'green ' * (number // 5)}".strip() for number, source in enumerate(SOURCES)]
LIMIT = 12
GRAPHS = ("encoder_model", "decoder_model_merged")
# Where npm has put @huggingface/transformers and onnxruntime-web.
PACKAGES = os.environ.get("VANILLA_NODE_MODULES", "")
needs_packages = pytest.mark.skipif(not PACKAGES, reason="VANILLA_NODE_MODULES names no folder of npm packages")


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(SOURCES)


@pytest.fixture(scope="module")
def model(tokenizer):
    """One that gives each source another translation."""
    model = make_tiny(len(tokenizer), output_bias=True)
    torch.manual_seed(0)
    return add_noise(model, 1.0)


@pytest.fixture(scope="module")
def source(model, tokenizer, tmp_path_factory):
    return save_folder(tmp_path_factory.mktemp("run") / "model", model, tokenizer)


@pytest.fixture(scope="module")
def exported(source):
    for package in ("onnxruntime", "onnx", "onnxscript"):
        pytest.importorskip(package)
    done = call(export.main, "--to", "transformers.js", source, source.with_name("js"))
    assert (done.code, done.errors.splitlines()) == (0, [
        "warning: max_extra_tokens 3 follows the source's length; max_length is 1024 instead",
        "warning: num_beams 4: transformers.js takes the best token at each step; 1 instead",
    ])  # fmt: skip
    return source.with_name("js")


def translate_there(folder: Path, tokenizer, suffix: str = "", limit: int = LIMIT) -> list[str]:
    """By the calls of transformers.js, in which axes of an empty past are 0 unless they are called batch_size."""
    onnxruntime = pytest.importorskip("onnxruntime")
    paths = [folder / "onnx" / f"{name}{suffix}.onnx" for name in GRAPHS]
    encoder, decoder = (onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in paths)
    settings = read_json(folder / "generation_config.json")
    translations = []
    for text in SOURCES:
        inputs = dict(tokenizer(text, return_tensors="np"))
        (encoded,) = encoder.run(["last_hidden_state"], inputs)
        feeds = {"encoder_attention_mask": inputs["attention_mask"], "encoder_hidden_states": encoded}
        for put in decoder.get_inputs()[3:]:
            shape = [{"batch_size": 1}.get(size, 0) if isinstance(size, str) else size for size in put.shape]
            feeds[put.name] = np.zeros(shape, np.float32)
        tokens = [settings["decoder_start_token_id"]]
        while len(tokens) <= limit and tokens[-1] != settings["eos_token_id"]:
            outputs = decoder.run(None, {"input_ids": np.array([tokens[-1:]]), **feeds})
            names = [put.name.replace("present", "past_key_values") for put in decoder.get_outputs()]
            feeds |= dict(zip(names[1:], outputs[1:], strict=True))
            tokens.append(int(outputs[0][0, -1].argmax()))
        translations.append(tokenizer.decode(tokens, skip_special_tokens=True))
    return translations


def test_greedy_translations_of_a_marianmt_are_the_models(exported, model, tokenizer):
    expected = one_by_one(model, tokenizer, SOURCES, num_beams=1, max_new_tokens=LIMIT)
    assert len(set(expected)) > 10
    assert translate_there(exported, tokenizer) == expected
    # With 8 bits a token each: of what is untrained, the second one already follows from another first one.
    whole, quantized = (translate_there(exported, tokenizer, suffix, limit=1) for suffix in ("", "_quantized"))
    assert sum(map(str.__eq__, whole, quantized)) >= 15
    assert type(AutoConfig.from_pretrained(exported)) is MarianConfig


@pytest.fixture
def space(exported, source, tmp_path, monkeypatch):
    """Publishes a page, with the library from a folder node_modules, and gives the folder of what is published."""
    monkeypatch.setattr(publishing, "get_token", lambda: "hf_writer")
    monkeypatch.setattr(push, "export", lambda to, model, folder: shutil.copytree(exported, folder))
    (tmp_path / "test.en").write_text("a small house\n")

    def keep(folder, repo, private, space_sdk):
        assert space_sdk == "static"
        shutil.copytree(folder, tmp_path / "space")

    monkeypatch.setattr(publishing, "publish_folder", keep)

    def publish(packages: Path) -> Path:
        monkeypatch.chdir(packages.parent)
        options = ("--space", "--static", "--licence", "mit", "--examples", tmp_path / "test.en")
        assert call(push.main, source, "you/page", *options).code == 0
        return tmp_path / "space"

    return publish


def test_a_static_space_holds_all_that_its_page_loads(space, tmp_path):
    packages = tmp_path / "node_modules"
    for name in publishing.LIBRARIES:
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(name)
    (packages / "@huggingface/transformers/package.json").write_text('{"version": "4.3.1"}')
    folder = space(packages)
    assert {path.name for path in (folder / "model/onnx").iterdir()} == {f"{name}_quantized.onnx" for name in GRAPHS}
    readme = (folder / "README.md").read_text()
    assert 'title: "page"' in readme and "sdk: static" in readme and 'license: "mit"' in readme and "4.3.1" in readme
    assert (folder / "examples.txt").read_text() == "a small house\n"
    page = (folder / "index.html").read_text() + (folder / "page.js").read_text()
    assert "http" not in page.replace("http-equiv", "")
    for name in publishing.LIBRARIES:
        assert (folder / Path(name).name).read_text() == name and Path(name).name in page


@pytest.mark.slow
@needs_packages
def test_the_page_translates_and_loads_nothing_from_elsewhere(space, exported, tokenizer, browser):
    from selenium.webdriver.support.wait import WebDriverWait

    served = []

    class Handler(SimpleHTTPRequestHandler):
        extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

        def log_message(self, form, request, *rest):
            served.append(request.split()[1])

    folder = space(Path(PACKAGES))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        browser.get(address)
        wait = WebDriverWait(browser, 60)
        wait.until(lambda _: browser.find_element("css selector", "[role=status]").text == "The model is here.")
        browser.find_element("css selector", "#examples button").click()
        output = wait.until(lambda _: browser.find_element("css selector", "output").text)
        server.shutdown()
    limit = len(tokenizer(SOURCES[0]).input_ids) + 50
    assert output == translate_there(exported, tokenizer, "_quantized", limit)[0].strip()
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    urls = [event["params"]["request"]["url"] for event in messages if event["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith((address, "data:")) for url in urls)
    assert "/ort-wasm-simd-threaded.wasm" in served
