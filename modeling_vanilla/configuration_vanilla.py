"""The configuration of the Transformer, in the paper's terms."""

import math

from transformers.utils.versions import require_version

require_version("transformers>=5.10.1")  # before the imports that fail without it, and do not say why

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from .cache_vanilla import CACHE
from .spans_vanilla import span_pattern

# For those who load a model without this package (trust_remote_code=True).
AUTO_MAP = {
    "AutoConfig": "configuration_vanilla.VanillaConfig",
    "AutoModel": "modeling_vanilla.VanillaModel",
    "AutoModelForSeq2SeqLM": "modeling_vanilla.VanillaForConditionalGeneration",
}
CUSTOM_PIPELINES = {
    "translation": {"impl": "pipeline_vanilla.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}
}


def token_ids(ids: int | list[int] | None) -> list[int]:
    """The token ids in a field of a configuration. None and negative numbers mean no token, as in transformers."""
    return [number for number in (ids if isinstance(ids, list) else [ids]) if number is not None and number >= 0]


def check_tokens(config, vocab_size: int) -> None:
    """Raise a ValueError for a special token of a configuration that is outside the vocabulary."""
    for field, ids in vars(config).items():
        if field.endswith("_token_id"):
            least = -math.inf if field in ("pad_token_id", "bos_token_id", "eos_token_id") else 0
            for token_id in ids if isinstance(ids, list) else [ids]:
                if token_id is not None and not (isinstance(token_id, int) and least <= token_id < vocab_size):
                    raise ValueError(f"{field} {token_id!r} is outside the vocabulary of {vocab_size} tokens")


@strict
class VanillaConfig(PreTrainedConfig):
    """Configuration of the Transformer of "Attention Is All You Need" (arXiv:1706.03762), by default its base model.

    Args:
        vocab_size: entries of the vocabulary that source and target share (5.1: about 37000 for English-German).
        d_model: width of every sub-layer's output and of the embeddings (3.1).
        encoder_layers, decoder_layers: N, the layers of each stack (3.1).
        encoder_attention_heads, decoder_attention_heads: h, the parallel heads of each attention (3.2.2).
        encoder_ffn_dim, decoder_ffn_dim: d_ff, the inner width of the feed-forward networks (3.3).
        d_k, d_v: width of a head's keys and of its values; None means d_model / heads (3.2.2; Table 3 varies them).
        dropout: P_drop, on the output of each sub-layer and on the sums of embeddings and positional encodings (5.4).
        attention_dropout: dropout on the attention weights, which only the paper's parsers have (6.3).
        activation_dropout: dropout on the inner layer of the feed-forward network. The paper has none.
        activation_function: activation of the feed-forward network, by its name in transformers (3.3: ReLU).
        position_embedding_type: "sinusoidal" (3.5) or "learned" (Table 3, row E).
        max_position_embeddings: size of the table of learned positions. Sinusoidal positions have no limit.
        attention_window: r of section 4, the positions that self-attention attends to (see `window`). None means all.
        label_smoothing: epsilon_ls of the training loss (5.4).
        tie_word_embeddings: whether source embedding, target embedding and output projection share one matrix (3.4).
        attention_bias: whether W^Q, W^K, W^V and W^O have a bias. The formulas of 3.2.2 have none; MarianMT does.
        output_bias: whether the output projection has a bias. The paper has none; MarianMT has final_logits_bias.
        init_std: standard deviation of the normal distribution from which the projections are initialised; None, in
            Python alone, means Xavier's uniform distribution, as in tensor2tensor. The paper is silent; the default
            trains several times faster. Embeddings and learned positions have d_model^-0.5: times sqrt(d_model), tokens
            have unit variance.
        layer_norm_eps: added to the variance in LayerNorm. The paper is silent; 1e-6 is tensor2tensor's value.
        pad_token_id, bos_token_id, eos_token_id: None or a negative number means never.
        decoder_start_token_id: the token that the decoder reads first.
        use_cache: whether the decoder caches the keys and values of earlier positions.
        max_source_tokens, max_source_sentences: 99.9th percentile of the tokens (EOS included) and of the sentences of
            a training source; a longer text is translated sentence by sentence. None: unknown.
        source_lang: the sources' language, such as "en", by whose rules a text is cut into sentences. None: unknown.
        protected_spans: {kind: regular expression} of what is copied (spans_vanilla.py). None or empty: nothing.
    """

    model_type = "vanilla"
    keys_to_ignore_at_inference = [CACHE]
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    vocab_size: int = 37000
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    d_k: int | None = None
    d_v: int | None = None
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    activation_function: str = "relu"
    position_embedding_type: str = "sinusoidal"
    max_position_embeddings: int = 1024
    attention_window: int | None = None
    label_smoothing: float | int = 0.1
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    output_bias: bool = False
    init_std: float | int | None = 0.02
    layer_norm_eps: float | int = 1e-6
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    use_cache: bool = True
    max_source_tokens: int | None = None
    max_source_sentences: int | None = None
    source_lang: str | None = None
    protected_spans: dict[str, str] | None = None
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs):
        if not __name__.startswith("transformers_modules"):
            # The package registers the task; these would make pipeline() ask for trust in code that never runs.
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)
        self.check()

    def head_dims(self, num_heads: int) -> tuple[int, int]:
        """(d_k, d_v), the widths of one of `num_heads` heads (3.2.2)."""
        default = self.d_model // num_heads
        return (default if self.d_k is None else self.d_k), (default if self.d_v is None else self.d_v)

    def to_dict(self) -> dict:
        """The fields, with the entries that let transformers load a saved model without this package."""
        return {**super().to_dict(), "auto_map": AUTO_MAP, "custom_pipelines": CUSTOM_PIPELINES}

    def check(self) -> None:
        """Raise a ValueError that names the field and the value if no model can have this configuration."""

        def require(field: str, condition: bool, meaning: str) -> None:
            if not condition:
                raise ValueError(f"{field} must be {meaning}, not {getattr(self, field)!r}")

        # The fields that count something are the integers that are not tokens.
        for field, kind in VanillaConfig.__annotations__.items():
            value = getattr(self, field)
            if kind in (int, int | None) and not field.endswith("_token_id"):
                most = 1000 if field.endswith("_layers") else 10**8  # no model has more, and making one would not end
                require(field, value is None or 1 <= value <= most, f"from 1 to {most}")
        for field in ("encoder_attention_heads", "decoder_attention_heads"):
            divides = self.d_model % getattr(self, field) == 0
            meaning = f"a divisor of d_model {self.d_model}, unless d_k and d_v are given"
            require(field, divides or None not in (self.d_k, self.d_v), meaning)
        for field in ("dropout", "attention_dropout", "activation_dropout", "label_smoothing"):
            require(field, 0 <= getattr(self, field) < 1, "at least 0 and below 1")
        for field in ("init_std", "layer_norm_eps"):
            value = getattr(self, field)
            require(field, value is None or 0 < value < math.inf, "above 0 and finite")
        known = ("sinusoidal", "learned")
        require("position_embedding_type", self.position_embedding_type in known, " or ".join(known))
        require("is_encoder_decoder", self.is_encoder_decoder, "True")
        require("activation_function", self.activation_function in ACT2FN, "an activation that transformers knows")
        check_tokens(self, self.vocab_size)
        span_pattern(self.protected_spans)
