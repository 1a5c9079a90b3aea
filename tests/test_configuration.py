"""VanillaConfig: the paper's defaults, every row of Table 3, what is refused, and the file it is saved in."""

import json

import pytest
from transformers import AutoConfig

from modeling_vanilla import PRESETS, VanillaConfig, VanillaModel

# Table 3 of the paper, column by column: N, d_model, d_ff, h, d_k, d_v, P_drop, epsilon_ls.
TABLE_3 = {
    "base": (6, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "A-h1": (6, 512, 2048, 1, 512, 512, 0.1, 0.1),
    "A-h4": (6, 512, 2048, 4, 128, 128, 0.1, 0.1),
    "A-h16": (6, 512, 2048, 16, 32, 32, 0.1, 0.1),
    "A-h32": (6, 512, 2048, 32, 16, 16, 0.1, 0.1),
    "B-dk16": (6, 512, 2048, 8, 16, 64, 0.1, 0.1),
    "B-dk32": (6, 512, 2048, 8, 32, 64, 0.1, 0.1),
    "C-N2": (2, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "C-N4": (4, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "C-N8": (8, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "C-d256": (6, 256, 2048, 8, 32, 32, 0.1, 0.1),
    "C-d1024": (6, 1024, 2048, 8, 128, 128, 0.1, 0.1),
    "C-ff1024": (6, 512, 1024, 8, 64, 64, 0.1, 0.1),
    "C-ff4096": (6, 512, 4096, 8, 64, 64, 0.1, 0.1),
    "D-drop0.0": (6, 512, 2048, 8, 64, 64, 0.0, 0.1),
    "D-drop0.2": (6, 512, 2048, 8, 64, 64, 0.2, 0.1),
    "D-ls0.0": (6, 512, 2048, 8, 64, 64, 0.1, 0.0),
    "D-ls0.2": (6, 512, 2048, 8, 64, 64, 0.1, 0.2),
    "E-learned": (6, 512, 2048, 8, 64, 64, 0.1, 0.1),
    "big": (6, 1024, 4096, 16, 64, 64, 0.3, 0.1),
    # Not rows of Table 3: section 6.3, and the small model of Wu et al. (2021).
    "parsing": (4, 1024, 2048, 8, 128, 128, 0.1, 0.1),
    "tiny": (4, 128, 256, 4, 32, 32, 0.3, 0.1),
}


def test_the_defaults_are_the_base_model():
    config = VanillaConfig()
    assert config.model_type == "vanilla" and config.is_encoder_decoder
    assert (config.attention_dropout, config.activation_dropout) == (0.0, 0.0)
    assert config.activation_function == "relu"
    assert config.position_embedding_type == "sinusoidal"
    assert config.attention_window is None
    assert config.tie_word_embeddings is True
    assert config.attention_bias is False
    special = (config.pad_token_id, config.bos_token_id, config.eos_token_id, config.decoder_start_token_id)
    assert special == (0, 1, 2, 1)
    assert config.to_dict() == VanillaConfig.preset("base").to_dict()


def test_there_is_a_preset_for_every_row_and_no_other():
    assert set(PRESETS) == set(TABLE_3)


@pytest.mark.parametrize("name", TABLE_3)
def test_presets_have_the_figures_of_their_row(name):
    config = VanillaConfig.preset(name)
    n, d_model, d_ff, heads, d_k, d_v, dropout, epsilon = TABLE_3[name]
    assert (config.encoder_layers, config.decoder_layers) == (n, n)
    assert config.d_model == d_model
    assert (config.encoder_ffn_dim, config.decoder_ffn_dim) == (d_ff, d_ff)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (heads, heads)
    assert config.head_dims(heads) == (d_k, d_v)
    assert (config.dropout, config.label_smoothing) == (dropout, epsilon)
    assert config.position_embedding_type == ("learned" if name == "E-learned" else "sinusoidal")
    assert config.vocab_size == (16000 if name == "parsing" else 37000)


def test_a_preset_takes_overrides_and_leaves_the_table_alone():
    config = VanillaConfig.preset("big", vocab_size=32000, dropout=0.1)
    assert (config.vocab_size, config.dropout, config.d_model) == (32000, 0.1, 1024)
    assert VanillaConfig.preset("big").dropout == 0.3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "bigg"}, ["bigg", "base"]),
        ({"name": "base", "d_modell": 4}, ["d_modell"]),
        ({"name": "base", "num_beams": 4}, ["num_beams"]),
    ],
)
def test_unknown_presets_and_overrides_are_refused(arguments, words):
    with pytest.raises(ValueError) as error:
        VanillaConfig.preset(**arguments)
    assert_one_line_with(error, words)


COUNTS = ["vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads"]
COUNTS += ["decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim", "d_k", "d_v", "max_position_embeddings"]
COUNTS += ["attention_window"]
RATES = ["dropout", "attention_dropout", "activation_dropout", "label_smoothing"]
TOKENS = ["pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        *[({field: value}, [field, str(value)]) for field in COUNTS for value in (0, -3)],
        *[({field: value}, [field, str(value)]) for field in RATES for value in (1.5, -0.1, 1, float("nan"))],
        *[({field: value}, [field, str(value), "37000"]) for field in TOKENS for value in (37000, -1)],
        ({"eos_token_id": [2, 99], "vocab_size": 50}, ["eos_token_id", "99", "50"]),
        ({"d_model": 510}, ["d_model", "510", "encoder_attention_heads", "8"]),
        ({"decoder_attention_heads": 7}, ["d_model", "512", "decoder_attention_heads", "7"]),
        ({"encoder_attention_heads": 7, "d_k": 64}, ["d_model", "512", "encoder_attention_heads", "7"]),
        ({"encoder_attention_heads": 7, "d_v": 64}, ["d_model", "512", "encoder_attention_heads", "7"]),
        ({"activation_function": "rellu"}, ["activation_function", "rellu"]),
        ({"position_embedding_type": "rotary"}, ["position_embedding_type", "rotary"]),
        ({"layer_norm_eps": 0.0}, ["layer_norm_eps", "0.0"]),
        ({"init_std": -0.02}, ["init_std", "-0.02"]),
        ({"init_std": 0}, ["init_std", "0"]),
    ],
)
def test_impossible_combinations_are_refused_with_field_and_value(fields, words):
    with pytest.raises(ValueError) as error:
        VanillaConfig(**fields)
    assert_one_line_with(error, words)


def assert_one_line_with(error: pytest.ExceptionInfo, words: list[str]) -> None:
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_heads_need_not_divide_d_model_once_d_k_and_d_v_are_given():
    config = VanillaConfig(d_model=10, encoder_attention_heads=3, decoder_attention_heads=4, d_k=2, d_v=5)
    assert config.head_dims(3) == config.head_dims(4) == (2, 5)


def test_a_head_is_d_model_over_its_own_stacks_heads():
    config = VanillaConfig(encoder_attention_heads=8, decoder_attention_heads=4)
    assert config.head_dims(config.encoder_attention_heads) == (64, 64)
    assert config.head_dims(config.decoder_attention_heads) == (128, 128)


@pytest.mark.parametrize("field", [*RATES, "init_std"])
def test_an_int_is_accepted_where_a_float_is_meant(field):
    value = 1 if field == "init_std" else 0
    assert getattr(VanillaConfig(**{field: value}), field) == value


@pytest.mark.parametrize(("field", "value"), [("d_model", 512.0), ("dropout", "0.1"), ("tie_word_embeddings", "yes")])
def test_a_value_of_the_wrong_type_is_refused_by_name(field, value):
    with pytest.raises(Exception, match=f"'{field}'"):
        VanillaConfig(**{field: value})


def test_save_and_load_keeps_every_field(tmp_path):
    config = VanillaConfig(
        vocab_size=100,
        d_model=30,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=4,
        encoder_ffn_dim=20,
        decoder_ffn_dim=24,
        d_k=5,
        d_v=6,
        dropout=0,
        attention_dropout=0.2,
        activation_dropout=0.3,
        activation_function="gelu",
        position_embedding_type="learned",
        max_position_embeddings=77,
        attention_window=9,
        label_smoothing=0,
        tie_word_embeddings=False,
        attention_bias=True,
        init_std=0.02,
        layer_norm_eps=1e-5,
        pad_token_id=9,
        bos_token_id=8,
        eos_token_id=[7, 6],
        decoder_start_token_id=5,
        use_cache=False,
    )
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "vanilla"
    assert set(saved["auto_map"]) == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    for loaded in (VanillaConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is VanillaConfig
        for field in VanillaConfig.__dataclass_fields__:
            if field != "transformers_version":
                assert getattr(loaded, field) == getattr(config, field), field


def test_a_loaded_configuration_is_saved_again_the_same(tmp_path):
    VanillaConfig.preset("tiny").save_pretrained(tmp_path / "a")
    VanillaConfig.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    assert (tmp_path / "a/config.json").read_text() == (tmp_path / "b/config.json").read_text()


def test_the_names_of_transformers_read_the_papers_fields():
    config = VanillaConfig(d_model=64, encoder_layers=3, encoder_attention_heads=4, encoder_ffn_dim=5)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 3, 4)
    assert VanillaConfig(hidden_size=64).d_model == 64


def test_text_config_of_the_decoder_describes_the_decoder():
    config = VanillaConfig(
        encoder_layers=2, decoder_layers=5, encoder_attention_heads=8, decoder_attention_heads=4, encoder_ffn_dim=7
    )
    decoder, encoder = config.get_text_config(decoder=True), config.get_text_config(encoder=True)
    assert (decoder.num_hidden_layers, decoder.num_attention_heads, decoder.hidden_size) == (5, 4, 512)
    assert (encoder.num_hidden_layers, encoder.num_attention_heads, encoder.hidden_size) == (2, 8, 512)
    # Nothing of the model's own is lost in the copies: its vocabulary, its special tokens, its head widths.
    for copy in (decoder, encoder):
        assert (copy.vocab_size, copy.pad_token_id, copy.eos_token_id) == (37000, 0, 2)
    assert (config.encoder_layers, config.decoder_layers) == (2, 5)


def test_an_unchecked_load_time_override_cannot_make_an_impossible_model(tmp_path, make_config):
    make_config().save_pretrained(tmp_path)
    with pytest.raises(ValueError):
        VanillaModel(VanillaConfig.from_pretrained(tmp_path, dropout=1.5))
