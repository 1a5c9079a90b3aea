"""Small models that the tests share. Sizes differ between encoder and decoder, so that a mix-up shows."""

import pytest
import torch
from accelerate.state import AcceleratorState
from helpers import TEXTS, add_noise, make_tokenizer, save_folder
from huggingface_hub import constants

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration, attention_vanilla

constants.HF_HUB_OFFLINE = True  # no test asks the Hub: without a network the client would try again for minutes

SMALL = {"vocab_size": 41, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "dropout": 0.0}
SMALL |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32}


@pytest.fixture(params=["eager", "sdpa", "sdpa kernel"])
def attn(request, monkeypatch):
    """Each back end; sdpa with Eq. 1 written out, as a CPU prefers at times, and with torch's kernel."""
    if request.param != "eager":
        monkeypatch.setattr(attention_vanilla, "eager_is_faster", lambda q, k: request.param == "sdpa")
    return request.param.split()[0]


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A datasets cache of the test's own, and no progress bars, which would stand among the complaints."""
    import datasets
    import transformers

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


@pytest.fixture
def own_precision(monkeypatch):
    """accelerate as a new process finds it: it has one precision, and transformers' Trainer leaves its own behind."""
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # so that the end takes away what the test sets
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")


@pytest.fixture(scope="session")
def make_config():
    """A small configuration without dropout, with any field overridden."""

    def make(**overrides) -> VanillaConfig:
        return VanillaConfig(**{**SMALL, **overrides})

    return make


@pytest.fixture(scope="session")
def make_model(make_config):
    """A small model in evaluation mode, every parameter moved off its initial value (norms and biases are 1 and 0)."""

    def make(cls=VanillaForConditionalGeneration, seed: int = 0, attn: str = "sdpa", **overrides):
        torch.manual_seed(seed)
        return add_noise(cls(make_config(attn_implementation=attn, **overrides)))

    return make


@pytest.fixture
def batch():
    """Three sources and targets of SMALL's vocabulary; nothing is padded."""
    torch.manual_seed(1)
    return {"input_ids": torch.randint(4, 41, (3, 7)), "decoder_input_ids": torch.randint(4, 41, (3, 6))}


@pytest.fixture(scope="session")
def tokenizer():
    """One that has the words of TEXTS whole."""
    return make_tokenizer(TEXTS, vocab_size=400)


@pytest.fixture
def model(make_model, tokenizer):
    """One that ends a sentence soon: untrained, it rarely would by itself."""
    model = make_model(vocab_size=len(tokenizer))
    model.generation_config.max_extra_tokens = 4
    return model


@pytest.fixture
def folder(model, tokenizer, tmp_path):
    return save_folder(tmp_path / "model", model, tokenizer)
