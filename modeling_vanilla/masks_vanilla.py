"""Attention masks: which positions each position attends to, by causality (3.2.3), padding and section 4's window."""

from collections.abc import Callable

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.utils.import_utils import is_tracing

from .configuration_vanilla import VanillaConfig


def check_mask(name: str, mask, x: Tensor, cache: Cache | None = None) -> None:
    """Raise ValueError, with both shapes, for a mask of padding that is not (B, past + T). x is (B, T, D)."""
    shape = (x.shape[0], x.shape[1] + (0 if cache is None else int(cache.get_seq_length())))
    if mask is not None and not is_tracing(mask) and mask.shape != shape:
        raise ValueError(f"{name} must be of shape {shape}, not {tuple(mask.shape)}")


def encoder_mask(config: VanillaConfig, x: Tensor, attention_mask: Tensor | None):
    """Mask of the encoder's self-attention over x (B, S, D): padding and the window (section 4)."""
    return _padding_mask(config, x, attention_mask, and_mask_function=window(config, causal=False))


def decoder_mask(config: VanillaConfig, x: Tensor, attention_mask: Tensor | None, cache: Cache | None):
    """Mask of the decoder's self-attention over x (B, T, D): no later position (3.2.3), padding, the window."""
    static = cache is not None and cache.is_compileable  # with places for later tokens
    if x.shape[1] == 1 and attention_mask is None and config.attention_window is None and not static:
        return None  # the last position attends to all
    and_mask_function = window(config, causal=True)
    return _as_booleans(create_causal_mask(config, x, attention_mask, cache, and_mask_function=and_mask_function))


def _padding_mask(config: VanillaConfig, x: Tensor, attention_mask: Tensor | None, **kwargs):
    """Mask of the padding. On a CPU, None if there is none; a GPU would have to be waited for."""
    skip = attention_mask is None or attention_mask.device.type == "cpu"
    mask = create_bidirectional_mask(config, x, attention_mask, allow_is_bidirectional_skip=skip, **kwargs)
    return _as_booleans(mask)


def _as_booleans(mask):
    """The numbers of a mask for "eager", by which a position that sees nothing would see all, as booleans."""
    return mask == 0 if isinstance(mask, Tensor) and mask.is_floating_point() else mask


def cross_mask(config: VanillaConfig, x: Tensor, attention_mask: Tensor | None, encoder_hidden_states: Tensor):
    """Mask of the attention of the decoder's x (B * beams, T, D) over the encoder's output (B, S, D): padding."""
    rows, sentences = x.shape[0], encoder_hidden_states.shape[0]
    if rows % sentences:
        raise ValueError(f"the decoder's batch of {rows} is no multiple of the encoder's batch of {sentences}")
    # The beams of a sentence are further query positions, as in CrossAttention.
    x = x.reshape(sentences, -1, x.shape[-1])
    return _padding_mask(config, x, attention_mask, encoder_hidden_states=encoder_hidden_states)


def window(config: VanillaConfig, causal: bool) -> Callable | None:
    """The neighbourhood of r positions that a position sees (section 4), as a mask function; None without a window.

    The paper is silent: on the decoder, which sees the last r positions, and on an even r, which has one more before.
    """
    if config.attention_window is None:
        return None
    r = config.attention_window
    before, after = (r - 1, 0) if causal else (r // 2, r - 1 - r // 2)

    def seen(batch_index, head_index, query_index, key_index):
        return (key_index >= query_index - before) & (key_index <= query_index + after)

    return seen
