"""A saved folder loads where this package is not installed, and through the Auto classes where it is."""

import ast
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from helpers import ROOT, call, run_elsewhere
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, pipeline

import modeling_vanilla
from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration, VanillaModel
from modeling_vanilla.__main__ import main as vanilla

PACKAGE = Path(modeling_vanilla.__file__).parent
SENTENCES = ["a small house", "the dog runs across the green meadow"]


# With the package


@pytest.mark.parametrize("trust", (False, True))
def test_the_auto_classes_know_the_model(folder, trust):
    """Also where the folder's code is trusted, what is installed is run."""
    autos = AutoConfig, AutoModel, AutoModelForSeq2SeqLM
    loaded = [auto.from_pretrained(folder, trust_remote_code=trust) for auto in autos]
    assert [*map(type, loaded)] == [VanillaConfig, VanillaModel, VanillaForConditionalGeneration]


@pytest.mark.parametrize("given", [{}, {"num_beams": 2}])
def test_what_no_generation_config_says_is_the_search_of_the_paper(given, folder):
    """transformers writes _from_model_config where there was none."""
    file = folder / "generation_config.json"
    file.write_text(json.dumps({"_from_model_config": True, **given})) if given else file.unlink()
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    expected = {"num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "gnmt", "max_extra_tokens": 50, **given}
    assert expected == {name: getattr(model.generation_config, name) for name in expected}


# Without the package


def test_an_older_transformers_is_told_which_is_needed(monkeypatch):
    needed = re.search("transformers>=[0-9.]+", (ROOT / "setup.py").read_text())[0]
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.57.6")
    with pytest.raises(ImportError, match=f"^{needed} is required.* but found transformers==4.57.6"):
        exec((PACKAGE / "configuration_vanilla.py").read_text(), {})
    pages = ("README.md", "README.ko.md", "docs/howto/publish.md", "model_card.md")
    assert all(needed in (ROOT / page).read_text(encoding="utf-8") for page in pages)


LOADED = """
import json
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

folder, texts = sys.argv[1], json.loads(sys.argv[2])
autos = AutoConfig, AutoModel, AutoModelForSeq2SeqLM
config, base, model = (auto.from_pretrained(folder, trust_remote_code=True) for auto in autos)
given = load_file("inputs.safetensors")
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)  # a stock one
encoded = tokenizer(texts[:2], padding=True, return_tensors="pt")
assert encoded.input_ids.tolist() == given["input_ids"].tolist()
with torch.no_grad():
    results = {
        "logits": model.eval()(**given).logits,
        "hidden": base.eval()(**given).last_hidden_state,
        "translation": model.generate(input_ids=given["input_ids"], attention_mask=given["attention_mask"]),
    }
save_file(results, "results.safetensors")
model.save_pretrained("again")
tokenizer.save_pretrained("again")
translators = [pipeline(task, model=folder, trust_remote_code=True, batch_size=2) for task in (None, "translation")]
translators.append(pipeline("translation_en_to_de", model=model, tokenizer=tokenizer))
translations = [translator(texts, max_new_tokens=3) for translator in translators]
print(json.dumps({"config": config.d_model, "module": type(model).__module__, "translations": translations}))
"""


def test_without_the_package_the_folder_computes_the_same(folder, model, tokenizer, tmp_path):
    """Model and pipeline; what is saved there carries the code on, and stands alone."""
    texts = [*SENTENCES, "", f"{SENTENCES[1]}. " * 90]  # the last is translated in pieces
    translations = [pipeline("translation", model=str(folder))(texts, max_new_tokens=3)] * 3
    encoded, source = tokenizer(SENTENCES, padding=True, return_tensors="pt"), tmp_path / "moved-model"
    inputs = {**encoded, "decoder_input_ids": torch.tensor([[1, 5, 6], [1, 7, 8]])}
    shutil.copytree(folder, source)
    for out in (tmp_path / "once", tmp_path / "saved there and loaded again"):
        out.mkdir()
        save_file(inputs, out / "inputs.safetensors")
        facts = run_elsewhere(LOADED, source, json.dumps(texts), cwd=out)
        assert facts["config"] == 24 and facts["module"].startswith("transformers_modules.")
        assert facts["translations"] == translations
        results = load_file(out / "results.safetensors")
        with torch.no_grad():
            torch.testing.assert_close(results["logits"], model(**inputs).logits)
            torch.testing.assert_close(results["hidden"], model.model(**inputs).last_hidden_state)
        assert results["translation"].tolist() == model.generate(**encoded).tolist()
        shutil.rmtree(source)
        source = out / "again"
        assert {path.name for path in source.iterdir()} == {path.name for path in folder.iterdir()}


# The flat files


def test_flat_files_never_ask_isinstance_of_their_own_classes():
    """Loaded from a folder, each entry file has its own copy of the classes, and the answer would be no."""
    nodes = [node for path in PACKAGE.glob("*_vanilla.py") for node in ast.walk(ast.parse(path.read_text()))]
    own = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("isinstance", "issubclass"):
            named = {getattr(part, "id", getattr(part, "attr", None)) for part in ast.walk(node.args[1])}
            assert not named & own, ast.unparse(node)


# By its name on the Hub


@pytest.mark.parametrize("command", ["translate {}", "export --to marian {} new"])
def test_commands_take_names_of_the_hub(command, folder, tmp_path, monkeypatch):
    """From the cache, as the Hub's client lays it out: nothing needs to be downloaded."""
    repo = tmp_path / "cache" / "models--you--your-model"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "old").write_text("1" * 40, encoding="utf-8")
    copied = shutil.copytree(folder, repo / "snapshots" / ("1" * 40))
    (copied / "modeling_vanilla.py").write_text("raise SystemExit('code of the Hub has run')", encoding="utf-8")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    missing = call(vanilla, *command.format("you/no-model").split()).error
    assert missing.startswith("model: there is no folder you/no-model, and none from the Hub: ")
    words = command.format("you/your-model").split()
    assert call(vanilla, *words, "--revision", "old", stdin=b"a small house\n").succeeded
