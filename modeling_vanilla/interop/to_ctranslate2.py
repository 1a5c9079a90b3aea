"""Export to CTranslate2, which translates fast on CPUs and GPUs, and with weights of 8 bits.

CTranslate2 knows the post-LN Transformer. What it must be told: the table of positions, since its own sinusoid has all
sines before all cosines; the scale sqrt(d_model) of the embeddings; that nothing is normalised after a stack; and the
tokens, which are this package's.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from ctranslate2 import Translator
from ctranslate2.specs import common_spec, transformer_spec
from torch import nn
from transformers import PreTrainedTokenizerBase

from ..configuration_vanilla import VanillaConfig, named_tokens
from ..modeling_vanilla import VanillaForConditionalGeneration
from ..search_vanilla import length_penalty as divisor
from .weights import POSITIONS, check_positions, check_quantization

ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "gelu_python": common_spec.Activation.GELU,
    "gelu_new": common_spec.Activation.GELUTanh,
    "gelu_pytorch_tanh": common_spec.Activation.GELUTanh,
    "silu": common_spec.Activation.SWISH,
    "swish": common_spec.Activation.SWISH,
    "tanh": common_spec.Activation.Tanh,
    "sigmoid": common_spec.Activation.Sigmoid,
}


def to_ctranslate2(
    model: VanillaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    quantization: str = "float32",
    positions: int | None = None,
) -> None:
    """Write a model and its tokenizer to an existing folder, for ctranslate2.Translator.

    The tokens to give it are `tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)`, EOS included. How to search
    is said in each call of `translate_batch`, not in the folder; suppress_sequences is what generate() knows as
    bad_words_ids. `translate` searches as generate() does.

    Args:
        folder: which the files are added to.
        quantization: how the matrices are stored and multiplied, "float32" or "int8".
        positions: rows of the table of sinusoids, as it has an end there: the longest sequence that can be translated,
            by default 1024 tokens. Learned positions have a table of their own.

    Raises:
        ValueError: if CTranslate2 cannot express the model, the tokenizer does not fit it, or an option is none.
    """
    check_quantization(quantization)
    if positions is not None and model.config.position_embedding_type == "learned":
        raise ValueError(f"positions {positions}: this model has learned {model.config.max_position_embeddings}")
    positions = POSITIONS if positions is None else positions
    check_positions(positions)
    _check(model.config)
    spec = _specification(model, positions)
    tokens = _tokens(tokenizer, model.config.vocab_size)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token = tokens[(named_tokens(model.config.bos_token_id) or [0])[0]]
    spec.config.eos_token = tokens[named_tokens(model.config.eos_token_id)[0]]
    spec.config.unk_token = tokenizer.unk_token or tokens[0]
    spec.config.decoder_start_token = tokens[model.config.decoder_start_token_id]
    spec.config.layer_norm_epsilon = model.config.layer_norm_eps
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))
    tokenizer.save_pretrained(folder)


def translate(
    translator: Translator,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    num_beams: int = 4,
    length_penalty: float = 0.6,
    max_extra_tokens: int = 50,
    sentences_per_batch: int = 64,
    **options,
) -> list[str]:
    """Translate with the settings of 6.1: GNMT's alpha, and an output at most so much longer than its own source.

    CTranslate2 divides log P by length^alpha, not by ((5 + length) / 6)^alpha, so of the `num_beams` hypotheses that it
    finds best, the one is taken that is best by GNMT's rule. What stays different: a hypothesis that ends while it is
    not among the best `num_beams` is lost there, and ends here.

    Args:
        translator: of a folder that to_ctranslate2 wrote. tokenizer: of the same.
        sentences: one that is blank gives an empty translation.
        options: what else translate_batch takes.

    Returns:
        One translation for each sentence, in their order.

    Raises:
        ValueError: if sentences is a single string.
        RuntimeError: for a sentence or a translation of more tokens than the exported table has positions.
    """
    if isinstance(sentences, str):
        raise ValueError(f"a list of sentences is needed, not one: {sentences!r:.60}")
    options = {"max_input_length": 0, **options}  # or CTranslate2 would cut sentences after 1024 tokens, silently
    translations = [""] * len(sentences)
    by_length = defaultdict(list)
    for row, sentence in enumerate(sentences):
        if sentence.strip():
            ids = tokenizer(sentence).input_ids
            by_length[len(ids)].append((row, tokenizer.convert_ids_to_tokens(ids)))
    for length, pairs in by_length.items():
        results = translator.translate_batch(
            [tokens for _, tokens in pairs],
            max_batch_size=sentences_per_batch,
            beam_size=num_beams,
            num_hypotheses=num_beams,
            length_penalty=length_penalty,
            min_decoding_length=0,
            max_decoding_length=length + max_extra_tokens,
            return_scores=True,
            **options,
        )
        for (row, _), result in zip(pairs, results, strict=True):
            scored = zip(result.hypotheses, result.scores, strict=True)
            best, _ = max(scored, key=lambda pair: _gnmt_score(*pair, length_penalty))
            translations[row] = tokenizer.decode(tokenizer.convert_tokens_to_ids(best), skip_special_tokens=True)
    return translations


def _gnmt_score(tokens: Sequence[str], score: float, alpha: float) -> float:
    length = len(tokens) + 1  # EOS, which CTranslate2 counts, too, and does not return
    return score * length**alpha / divisor(length, alpha)


def _check(config: VanillaConfig) -> None:
    """Raise ValueError if CTranslate2 has no such model."""
    if config.attention_window is not None:
        raise ValueError(f"attention_window {config.attention_window}: CTranslate2 sees all positions (section 4)")
    for field in ("encoder_attention_heads", "decoder_attention_heads"):
        d_k, d_v = config.head_dims(getattr(config, field))
        if d_k != d_v:
            raise ValueError(f"d_k {d_k} and d_v {d_v} differ: CTranslate2 has one width for keys and values")
    if config.activation_function not in ACTIVATIONS:
        raise ValueError(f"activation_function {config.activation_function!r}: not one of {', '.join(ACTIVATIONS)}")
    if len(named_tokens(config.eos_token_id)) != 1:
        raise ValueError(f"eos_token_id {config.eos_token_id}: CTranslate2 ends sentences by one token")
    if not named_tokens(config.decoder_start_token_id):
        raise ValueError(f"decoder_start_token_id {config.decoder_start_token_id}: CTranslate2 needs that token")


def _tokens(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> list[str]:
    """The tokens by number, with fillers where the embedding has more rows than the tokenizer has tokens."""
    if len(tokenizer) > vocab_size:
        raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, the model {vocab_size}")
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    tokens += [f"<filler{number}>" for number in range(len(tokenizer), vocab_size)]
    if None in tokens or len(set(tokens)) < vocab_size:
        raise ValueError("two of the tokenizer's numbers have one text, by which CTranslate2 tells tokens apart")
    return tokens


def _specification(model: VanillaForConditionalGeneration, positions: int) -> transformer_spec.TransformerSpec:
    config, specs = model.config, []
    for kind, stack, heads in (
        (transformer_spec.TransformerEncoderSpec, model.model.encoder, config.encoder_attention_heads),
        (transformer_spec.TransformerDecoderSpec, model.model.decoder, config.decoder_attention_heads),
    ):
        activation, d_k = ACTIVATIONS[config.activation_function], config.head_dims(heads)[0]
        spec = kind(len(stack.layers), heads, pre_norm=False, activation=activation, head_dim=d_k)
        embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
        embeddings.weight = _weight(stack.embed_tokens.weight)
        spec.scale_embeddings = math.sqrt(config.d_model)
        table = stack.embed_positions  # written out: all that is learned, or so many rows of the sinusoid
        rows = table.weight if isinstance(table, nn.Embedding) else table(torch.arange(positions))
        spec.position_encodings.encodings = _weight(rows)
        for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
            _set_layer(layer_spec, layer)
        specs.append(spec)
    _set_linear(specs[1].projection, model.lm_head)
    return transformer_spec.TransformerSpec(*specs)


def _set_layer(spec, layer: nn.Module) -> None:
    """A layer of the encoder or, with its cross-attention, of the decoder. Fused projections are fused there, too."""
    _set_linear(spec.self_attention.linear[0], layer.self_attn.qkv_proj)
    _set_linear(spec.self_attention.linear[1], layer.self_attn.out_proj)
    _set_norm(spec.self_attention.layer_norm, layer.self_attn_add_norm)
    if hasattr(layer, "cross_attn"):
        _set_linear(spec.attention.linear[0], layer.cross_attn.q_proj)
        _set_linear(spec.attention.linear[1], layer.cross_attn.kv_proj)
        _set_linear(spec.attention.linear[2], layer.cross_attn.out_proj)
        _set_norm(spec.attention.layer_norm, layer.cross_attn_add_norm)
    _set_linear(spec.ffn.linear_0, layer.ffn.fc1)
    _set_linear(spec.ffn.linear_1, layer.ffn.fc2)
    _set_norm(spec.ffn.layer_norm, layer.ffn_add_norm)


def _set_linear(spec, linear: nn.Linear) -> None:
    spec.weight = _weight(linear.weight)
    if linear.bias is not None:
        spec.bias = _weight(linear.bias)


def _set_norm(spec, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _weight(norm.weight), _weight(norm.bias)


def _weight(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().float().cpu().clone()  # what CTranslate2 rounds to 8 bits, it scales in place
