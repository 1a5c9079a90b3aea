"""Attention masks: which positions each position attends to, by causality (3.2.3), padding and section 4's window.

A mask is broadcastable to (B, H, T, S) and True where a position may be seen. None: all are seen, or with "sdpa", which
takes causality as a flag, all earlier ones. "flex_attention" takes a BlockMask of the same shape.
"""

from collections.abc import Callable

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.utils.import_utils import is_tracing

from .configuration_vanilla import VanillaConfig


def check_mask(name: str, mask, x: Tensor, cache: Cache | None = None) -> None:
    """Raise ValueError, with both shapes, unless a mask of padding is (B, past + T), for x (B, T, D)."""
    if mask is None or is_tracing(mask):
        return
    shape = (x.shape[0], x.shape[1] + (0 if cache is None else int(cache.get_seq_length())))
    if mask.shape != shape:
        raise ValueError(f"{name} must be of shape {shape}, not {tuple(mask.shape)}")


def encoder_mask(config: VanillaConfig, x: Tensor, attention_mask: Tensor | None):
    """Mask (B, 1, S, S) of the encoder's self-attention over x (B, S, D): padding (B, S) and the window (section 4)."""
    return _padding_mask(config, x, attention_mask, and_mask_function=window(config, causal=False))


def decoder_mask(config: VanillaConfig, x: Tensor, attention_mask: Tensor | None, cache: Cache | None):
    """Mask (B, 1, T, past + T) of the decoder's self-attention over x (B, T, D).

    It hides later positions (3.2.3), padding (B, past + T), and what is outside the window.
    """
    static = cache is not None and cache.is_compileable  # has room for later tokens, which the mask hides
    if x.shape[1] == 1 and attention_mask is None and config.attention_window is None and not static:
        return None  # a single new position attends to all
    and_mask_function = window(config, causal=True)
    return _as_booleans(create_causal_mask(config, x, attention_mask, cache, and_mask_function=and_mask_function))


def _padding_mask(config: VanillaConfig, x: Tensor, attention_mask: Tensor | None, **kwargs):
    """Mask (B, 1, T, S) of padding (B, S). On a CPU, None without padding; looking for it would stall a GPU."""
    skip = attention_mask is None or attention_mask.device.type == "cpu"
    mask = create_bidirectional_mask(config, x, attention_mask, allow_is_bidirectional_skip=skip, **kwargs)
    return _as_booleans(mask)


def _as_booleans(mask):
    """A mask that "eager" would add to the scores, as booleans: added, it lets a position that sees nothing see all."""
    return mask == 0 if isinstance(mask, Tensor) and mask.is_floating_point() else mask


def cross_mask(config: VanillaConfig, x: Tensor, attention_mask: Tensor | None, encoder_hidden_states: Tensor):
    """Mask (B, 1, K * T, S) of the decoder's x (B * K, T, D) over the encoder's output (B, S, D): padding (B, S)."""
    rows, sentences = x.shape[0], encoder_hidden_states.shape[0]
    if rows % sentences:
        raise ValueError(f"the decoder's batch of {rows} is no multiple of the encoder's batch of {sentences}")
    # The beams of a sentence are further query positions, as in CrossAttention.
    x = x.reshape(sentences, -1, x.shape[-1])
    return _padding_mask(config, x, attention_mask, encoder_hidden_states=encoder_hidden_states)


def window(config: VanillaConfig, causal: bool) -> Callable | None:
    """The neighbourhood of r positions that a position attends to (section 4), as a mask function; None without one.

    The paper is silent: on the decoder, where it is the last r positions, and on an even r, with one more position
    before than after.
    """
    if config.attention_window is None:
        return None
    r = config.attention_window
    before, after = (r - 1, 0) if causal else (r // 2, r - 1 - r // 2)

    def seen(batch_index, head_index, query_index, key_index):
        return (key_index >= query_index - before) & (key_index <= query_index + after)

    return seen
