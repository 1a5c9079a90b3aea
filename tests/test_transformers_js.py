"""`vanilla export --to transformers.js`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import add_noise, call, make_tiny, make_tokenizer, one_by_one, read_json, save_folder
from transformers import AutoConfig, MarianConfig

from modeling_vanilla.cli import export

SOURCES = ["a small house", "the dog runs across the green meadow", "house", "", "the small dog runs"] * 4
SOURCES = [f"{source} {'green ' * (number // 5)}".strip() for number, source in enumerate(SOURCES)]
LIMIT = 12
GRAPHS = ("encoder_model", "decoder_model_merged")


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


def test_greedy_translations_of_a_marianmt_are_the_models(tmp_path):
    """Of a model that gives each source another translation."""
    pytest.importorskip("modeling_vanilla.interop.to_onnx")
    tokenizer = make_tokenizer(SOURCES)
    model, exported = make_tiny(len(tokenizer), output_bias=True), tmp_path / "js"
    torch.manual_seed(0)
    source = save_folder(tmp_path / "model", add_noise(model, 1.0), tokenizer)
    done = call(export.main, "--to", "transformers.js", source, exported).succeeded
    assert "max_extra_tokens 3 follows the source's length; max_length is 1024 instead" in done.errors
    assert "num_beams 4: transformers.js takes the best token at each step; 1 instead" in done.errors
    expected = one_by_one(model, tokenizer, SOURCES, num_beams=1, max_new_tokens=LIMIT)
    assert len(set(expected)) > 10
    assert translate_there(exported, tokenizer) == expected
    # With 8 bits a token each: of what is untrained, the second one already follows from another first one.
    whole, quantized = (translate_there(exported, tokenizer, suffix, limit=1) for suffix in ("", "_quantized"))
    assert sum(map(str.__eq__, whole, quantized)) >= 15
    assert type(AutoConfig.from_pretrained(exported)) is MarianConfig
