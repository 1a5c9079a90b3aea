"""Export as a MarianMTModel, which transformers loads without this package and without trust in its code.

The inverse of from_marian: the residual stream goes back to Marian's order, in which all sines precede all cosines.
"""

from itertools import product
from pathlib import Path

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel, PreTrainedTokenizerBase

from ..configuration_vanilla import VanillaConfig
from ..generation_vanilla import follows_the_source
from ..modeling_vanilla import VanillaForConditionalGeneration
from .exports import POSITIONS, check_expressible, save_tokenizer
from .from_marian import marian_order, reorder
from .weights import DECODER_LAYER, LAYER, MARIAN_NORM_EPS, same_fields


def to_marian(
    model: VanillaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    positions: int = POSITIONS,
) -> list[str]:
    """Write a model and its tokenizer to an existing folder, with logits equal to some 1e-6 of the largest.

    Args:
        positions: rows of Marian's table of sinusoids: the longest source or translation, in tokens.

    Returns:
        A line for each setting of the search that transformers does not have, with what is written instead.

    Raises:
        ValueError: if MarianMT cannot express the model.
    """
    config = model.config
    heads = {config.encoder_attention_heads, config.decoder_attention_heads}
    faults = {
        f"position_embedding_type {config.position_embedding_type!r}": config.position_embedding_type != "sinusoidal",
        f"attention_window {config.attention_window}": config.attention_window is not None,
        "tie_word_embeddings False": not config.tie_word_embeddings,
        f"d_k {config.d_k} and d_v {config.d_v}, which are not d_model / heads": any(
            width * number != config.d_model for number in heads for width in config.head_dims(number)
        ),
        f"layer_norm_eps {config.layer_norm_eps}": config.layer_norm_eps > MARIAN_NORM_EPS,
    }
    check_expressible("MarianMT", model, faults)
    marian = MarianMTModel(marian_config(config, positions)).to(model.dtype)
    marian.load_state_dict(marian_weights(model), strict=False)  # without the sinusoids, which it has
    marian.generation_config, notes = marian_search(model.generation_config, positions)
    marian.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return notes


def marian_config(config: VanillaConfig, positions: int) -> MarianConfig:
    """The configuration of a MarianMT of these dimensions, with so many rows of sinusoids."""
    fields = same_fields(config) | {"vocab_size": config.vocab_size, "max_position_embeddings": positions}
    return MarianConfig(**fields, scale_embedding=True, forced_eos_token_id=None, architectures=["MarianMTModel"])


def marian_weights(model: VanillaForConditionalGeneration) -> dict[str, torch.Tensor]:
    """The weights by Marian's names.

    Marian's LayerNorm has an eps of 1e-5. The residual stream is multiplied by c and so its variance by c^2: 1e-5 acts
    there as 1e-5 / c^2 does here. The sums of embeddings and positions and the output of a stack keep their scale; the
    first norm thus has 1e-5, beside a variance of about 1.
    """
    order, ours = marian_order(model.config.d_model).argsort(), model.state_dict()
    c = (MARIAN_NORM_EPS / model.config.layer_norm_eps) ** 0.5
    shared = model.get_input_embeddings().weight.detach()[:, order]
    weights = {f"{name}.weight": shared for name in ("model.shared", "lm_head")}
    weights |= {f"model.{stack}.embed_tokens.weight": shared for stack in ("encoder", "decoder")}
    weights["final_logits_bias"] = ours.get("lm_head.bias", shared.new_zeros(len(shared)))[None]
    for stack, modules in (("encoder", LAYER), ("decoder", DECODER_LAYER)):
        last = getattr(model.config, f"{stack}_layers") - 1
        for layer, (module, parts) in product(range(last + 1), modules.items()):
            name = f"model.{stack}.layers.{layer}"
            weight = ours[f"{name}.{module}.weight"]
            bias = ours.get(f"{name}.{module}.bias", weight.new_zeros(len(weight)))
            for kind, tensor in (("weight", weight), ("bias", bias)):
                for part, rows in zip(parts, tensor.chunk(len(parts)), strict=True):
                    power = _power(part, kind, layer == 0, layer == last)
                    weights[f"{name}.{part}.{kind}"] = reorder(f".{part}.{kind}", rows, order) * c**power
    return weights


def _power(part: str, kind: str, is_first: bool, is_last: bool) -> int:
    """The power of c by which a weight of a layer is multiplied: what reads the scaled stream, and what writes it."""
    if (is_first and part.startswith("self_attn.")) or part in ("encoder_attn.k_proj", "encoder_attn.v_proj"):
        return 0
    if part.endswith(("q_proj", "k_proj", "v_proj", "fc1")):
        return -1 if kind == "weight" else 0
    return 0 if is_last and part == "final_layer_norm" else 1


def marian_search(config: GenerationConfig, positions: int) -> tuple[GenerationConfig, list[str]]:
    """What transformers' search has of a configuration, and a line for each value that it lacks."""
    kept = config.to_diff_dict()
    extra, penalty_type = (kept.pop(name, None) for name in ("max_extra_tokens", "length_penalty_type"))
    kept.pop("_from_model_config", None)
    notes = []
    if (penalty_type or "gnmt") == "gnmt" and kept.get("num_beams", 1) > 1 and (alpha := kept.get("length_penalty", 1)):
        notes.append(f"length_penalty {alpha} is GNMT's; transformers divides log P by length^{alpha} instead")
    if follows_the_source(config, {}):
        notes.append(f"max_extra_tokens {extra} follows the source's length; max_length is {positions} instead")
        kept = {name: value for name, value in kept.items() if name not in ("max_new_tokens", "max_length")}
    if "max_new_tokens" in kept:
        kept["max_new_tokens"] = min(kept["max_new_tokens"], positions - 1)
    else:
        kept["max_length"] = min(kept.get("max_length") or positions, positions)
    return GenerationConfig(**kept), notes
