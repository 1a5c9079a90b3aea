"""VanillaConfig: the paper's defaults, every row of Table 3, and what is refused."""

import math

import pytest

from modeling_vanilla import PRESETS, VanillaConfig, preset_config

# Table 3 of the paper, column by column: N, d_model, d_ff, h, d_k, d_v, P_drop, epsilon_ls.
TABLE_3 = {
    "base": (6, 512, 2048, 8, 64, 64, 0.1, 0.1),
    **{f"A-h{h}": (6, 512, 2048, h, size, size, 0.1, 0.1) for h, size in ((1, 512), (4, 128), (16, 32), (32, 16))},
    **{f"B-dk{d_k}": (6, 512, 2048, 8, d_k, 64, 0.1, 0.1) for d_k in (16, 32)},
    **{f"C-N{n}": (n, 512, 2048, 8, 64, 64, 0.1, 0.1) for n in (2, 4, 8)},
    **{f"C-d{d_model}": (6, d_model, 2048, 8, size, size, 0.1, 0.1) for d_model, size in ((256, 32), (1024, 128))},
    **{f"C-ff{d_ff}": (6, 512, d_ff, 8, 64, 64, 0.1, 0.1) for d_ff in (1024, 4096)},
    **{f"D-drop{p}": (6, 512, 2048, 8, 64, 64, p, 0.1) for p in (0.0, 0.2)},
    **{f"D-ls{epsilon}": (6, 512, 2048, 8, 64, 64, 0.1, epsilon) for epsilon in (0.0, 0.2)},
    "E-learned": (6, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "big": (6, 1024, 4096, 16, 64, 64, 0.3, 0.1),
    # Not rows of Table 3: section 6.3, and the small model of Wu et al. (2021).
    "parsing": (4, 1024, 2048, 8, 128, 128, 0.2, 0.1),
    "tiny": (4, 128, 256, 4, 32, 32, 0.3, 0.1),
}


def test_the_defaults_are_the_base_model():
    assert PRESETS["base"] == {} and set(PRESETS) == set(TABLE_3)


@pytest.mark.parametrize("name", TABLE_3)
def test_presets_have_the_figures_of_their_row(name):
    config = preset_config(name)
    rest = (config.dropout, config.label_smoothing)
    for stack in ("encoder", "decoder"):
        n, d_ff, heads = (getattr(config, f"{stack}_{name}") for name in ("layers", "ffn_dim", "attention_heads"))
        assert (n, config.d_model, d_ff, heads, *config.head_dims(heads), *rest) == TABLE_3[name]
    assert config.position_embedding_type == ("learned" if name == "E-learned" else "sinusoidal")
    others = (config.vocab_size, config.attention_dropout, config.tie_word_embeddings)
    assert others == ((16000, 0.2, False) if name == "parsing" else (37000, 0.0, True))


COUNTS = ["vocab_size", "d_model", "encoder_layers", "decoder_attention_heads", "d_k", "attention_window"]
IMPOSSIBLE = [
    *[({field: value}, [field, str(value)]) for field in COUNTS for value in (0, 10**9)],
    *[({field: value}, [field, str(value)]) for field in ("init_std", "layer_norm_eps") for value in (-1, 0, math.inf)],
    *[({field: value}, [field, str(value)]) for field in ("dropout", "label_smoothing") for value in (-0.1, 1)],
    ({"decoder_start_token_id": 37000}, ["decoder_start_token_id", "37000 is outside the vocabulary"]),
    ({"eos_token_id": [2, 99], "vocab_size": 50}, ["eos_token_id", "99", "50"]),
    ({"decoder_attention_heads": 7, "d_v": 64}, ["d_model", "512", "decoder_attention_heads", "7"]),
    ({"activation_function": "rellu"}, ["activation_function", "rellu"]),
    ({"name": "bigg"}, ["bigg", "base"]),
]


@pytest.mark.parametrize(("fields", "words"), IMPOSSIBLE)
def test_impossible_configurations_are_refused_in_one_line_with_field_and_value(fields, words):
    make = preset_config if "name" in fields else VanillaConfig
    with pytest.raises(ValueError) as error:
        make(**fields)
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)
