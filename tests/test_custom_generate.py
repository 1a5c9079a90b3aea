"""The search in a folder for custom_generate: other models find by it what brute force finds."""

import pytest
import torch
from helpers import add_noise, pad_right
from plain_search import EOS, by_score, every_output
from transformers.models.bart import BartConfig, BartForConditionalGeneration
from transformers.models.marian import MarianConfig, MarianMTModel
from transformers.models.t5 import T5Config, T5ForConditionalGeneration

from modeling_vanilla.hub.publishing import write_search

PAD = 4
SIZES = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
SIZES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 32}
T5_SIZES = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "tie_word_embeddings": False}
MODELS = {
    "MarianMT": (MarianMTModel, MarianConfig, SIZES, PAD),
    "BART": (BartForConditionalGeneration, BartConfig, SIZES, EOS),
    "T5": (T5ForConditionalGeneration, T5Config, T5_SIZES, PAD),
}
SOURCES = [[3, EOS], [EOS], [1, EOS]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "search"
    write_search(folder, "you/your-search")
    return str(folder)


def make(name: str, seed: int):
    model, config, sizes, start = MODELS[name]
    torch.manual_seed(seed)
    special = {"vocab_size": 5, "pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": start}
    model = add_noise(model(config(**special, **sizes)), 0.5)
    model.generation_config.update(forced_eos_token_id=None, suppress_tokens=[PAD], bos_token_id=None)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_other_models_search_as_brute_force_does(name, folder):
    width = max(map(len, SOURCES))
    inputs = {
        "input_ids": torch.tensor([[*source, *[PAD] * (width - len(source))] for source in SOURCES]),
        "attention_mask": pad_right([[1] * len(source) for source in SOURCES]),
    }
    settings = {"num_beams": 3**4, "length_penalty": 0.6, "max_extra_tokens": 2}
    settings |= {"custom_generate": folder, "trust_remote_code": True}
    for seed in range(2):
        model = make(name, seed)
        expected = []
        for source in SOURCES:
            expected += by_score(model, source, every_output(len(source) + 2))[:1]
        sequences = model.generate(**inputs, **settings)  # sentences leave the batch when done
        output = model.generate(**inputs, **settings, return_dict_in_generate=True)
        assert output.sequences.tolist() == sequences.tolist()
        for tokens, (_, y) in zip(sequences.tolist(), expected, strict=True):
            assert tokens[: len(y)] == y and set(tokens[len(y) :]) <= {PAD}
        scores = torch.tensor([score for score, _ in expected])
        torch.testing.assert_close(output.sequences_scores, scores, rtol=1e-4, atol=1e-4)
