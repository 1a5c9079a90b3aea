"""Presets: the base model, the big one, every row of Table 3, and two others."""

from functools import partial

from .configuration_vanilla import VanillaConfig


def _both(field: str, value: int) -> dict:
    return {f"encoder_{field}": value, f"decoder_{field}": value}


_heads, _layers, _ffn = (partial(_both, field) for field in ("attention_heads", "layers", "ffn_dim"))

# The fields in which each model differs from the base model. The rows of Table 3 are named by its letters.
PRESETS: dict[str, dict] = {
    "base": {},
    "big": {"d_model": 1024, **_heads(16), **_ffn(4096), "dropout": 0.3},
    # Small enough for a laptop: what Wu et al. (2021) train on Multi30k.
    "tiny": {"d_model": 128, **_layers(4), **_heads(4), **_ffn(256), "dropout": 0.3},
    # Section 6.3: four layers of d_model 1024, a vocabulary of 16K, dropout on attention, too. The paper is silent on
    # the rates of dropout and on sharing the matrices: both are those of tensor2tensor's transformer_parsing_base.
    "parsing": {
        "d_model": 1024,
        **_layers(4),
        "vocab_size": 16000,
        "dropout": 0.2,
        "attention_dropout": 0.2,
        "tie_word_embeddings": False,
    },
    "A-h1": _heads(1),
    "A-h4": _heads(4),
    "A-h16": _heads(16),
    "A-h32": _heads(32),
    # Rows (B) shrink the keys only; the values keep the base model's 64.
    "B-dk16": {"d_k": 16, "d_v": 64},
    "B-dk32": {"d_k": 32, "d_v": 64},
    "C-N2": _layers(2),
    "C-N4": _layers(4),
    "C-N8": _layers(8),
    "C-d256": {"d_model": 256},
    "C-d1024": {"d_model": 1024},
    "C-ff1024": _ffn(1024),
    "C-ff4096": _ffn(4096),
    "D-drop0.0": {"dropout": 0.0},
    "D-drop0.2": {"dropout": 0.2},
    "D-ls0.0": {"label_smoothing": 0.0},
    "D-ls0.2": {"label_smoothing": 0.2},
    "E-learned": {"position_embedding_type": "learned"},
}


def preset_config(name: str, **overrides) -> VanillaConfig:
    """The configuration of a preset, with any fields overridden; ValueError if one is unknown."""
    if name not in PRESETS:
        raise ValueError(f"preset: {name!r} is unknown; choose one of {', '.join(PRESETS)}")
    unknown = [field for field in overrides if field not in VanillaConfig.__dataclass_fields__]
    if unknown:
        raise ValueError(f"preset: {unknown[0]!r} is not a field of VanillaConfig")
    return VanillaConfig(**{**PRESETS[name], **overrides})
