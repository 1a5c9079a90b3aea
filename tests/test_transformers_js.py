"""`vanilla export --to transformers.js`: what the library reads, and that it translates as the model does."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT, call, make_tiny, make_tokenizer, save_folder
from transformers import AutoConfig, AutoTokenizer, MarianConfig
from transformers.tokenization_python import PythonBackend

from modeling_vanilla.cli import export
from modeling_vanilla.interop import folders

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
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    return model


@pytest.fixture(scope="module")
def source(model, tokenizer, tmp_path_factory):
    return save_folder(tmp_path_factory.mktemp("run") / "model", model, tokenizer)


@pytest.fixture(scope="module")
def exported(source):
    for package in ("onnxruntime", "onnx", "onnxscript"):
        pytest.importorskip(package)
    done = call(export.main, "--to", "transformers.js", source, source.with_name("js"), "--quiet")
    assert (done.code, [line for line in done.errors.splitlines() if "graphs" not in line]) == (0, [
        "warning: max_extra_tokens 3 follows the source's length; max_length is 1024 instead",
        "warning: num_beams 4: transformers.js takes the best token at each step; 1 instead",
    ])  # fmt: skip
    return source.with_name("js")


def expected(model, tokenizer) -> list[str]:
    """PyTorch's greedy translations."""
    outputs = [
        model.generate(**tokenizer(text, return_tensors="pt"), num_beams=1, max_new_tokens=LIMIT)[0] for text in SOURCES
    ]
    texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
    assert len(set(texts)) > 10
    return texts


def translate_there(folder: Path, tokenizer, suffix: str = "", limit: int = LIMIT) -> list[str]:
    """By the calls of transformers.js, in which axes of an empty past are 0 unless they are called batch_size."""
    onnxruntime = pytest.importorskip("onnxruntime")
    paths = [folder / "onnx" / f"{name}{suffix}.onnx" for name in GRAPHS]
    encoder, decoder = (onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]) for path in paths)
    settings = json.loads((folder / "generation_config.json").read_text())
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


def test_the_folder_is_a_marianmts_to_the_library(exported, tokenizer):
    graphs = {f"onnx/{name}{suffix}.onnx" for name in GRAPHS for suffix in ("", "_quantized")}
    files = {path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()}
    settings = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert files == graphs | settings
    config = AutoConfig.from_pretrained(exported)
    assert type(config) is MarianConfig and config.is_encoder_decoder and config.forced_eos_token_id is None
    assert json.loads((exported / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert AutoTokenizer.from_pretrained(exported)(SOURCES).input_ids == tokenizer(SOURCES).input_ids
    for path in (exported / "onnx").iterdir():
        assert str(ROOT).encode() not in path.read_bytes()  # no place in this machine's files


def test_greedy_translations_are_the_models(exported, model, tokenizer):
    assert translate_there(exported, tokenizer) == expected(model, tokenizer)


def test_8_bits_are_nearly_the_same_and_hold_one_matrix_of_the_vocabulary(exported, tokenizer):
    import onnx

    # A token each: of what is untrained, the second one already follows from another first one.
    whole, quantized = (translate_there(exported, tokenizer, suffix, limit=1) for suffix in ("", "_quantized"))
    assert sum(map(str.__eq__, whole, quantized)) >= 15
    for graph in GRAPHS:
        tensors = onnx.load(exported / "onnx" / f"{graph}_quantized.onnx").graph.initializer
        assert [tensor.data_type for tensor in tensors if len(tokenizer) in tensor.dims and len(tensor.dims) == 2] == [
            onnx.TensorProto.UINT8
        ]


def test_a_tokenizer_without_its_json_is_refused(model, source, tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(folders, "load_translator", lambda *arguments: (model, PythonBackend.__new__(PythonBackend)))
    done = call(export.main, "--to", "transformers.js", source, tmp_path / "new")
    assert done.error == "transformers.js needs a tokenizer.json, which a PythonBackend has not"
    assert not list(tmp_path.iterdir())


NODE = """
import { env, pipeline } from "@huggingface/transformers";

const [folder, name, dtype, max_new_tokens, ...texts] = process.argv.slice(1);
env.allowRemoteModels = false;
env.localModelPath = folder;
const translate = await pipeline("translation", name, { dtype });
const translations = [];
for (const text of texts) {
  translations.push((await translate(text, { max_new_tokens: Number(max_new_tokens) }))[0].translation_text);
}
console.log(JSON.stringify(translations));
"""


@pytest.mark.slow
@needs_packages
@pytest.mark.parametrize(("dtype", "suffix"), [("fp32", ""), ("q8", "_quantized")])
def test_transformers_js_translates_as_the_model_does(exported, model, tokenizer, dtype, suffix):
    folder, name = str(exported.parent), exported.name
    command = ["node", "--input-type=module", "--eval", NODE, "--", folder, name, dtype, str(LIMIT), *SOURCES]
    done = subprocess.run(command, cwd=Path(PACKAGES).parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == translate_there(exported, tokenizer, suffix)
