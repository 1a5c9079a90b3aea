"""Section 3.2: scaled dot-product attention (Eq. 1) and multi-head attention. Masks are in masks_vanilla.py.

Axes, here and in every flat file: B batch (sentences), K beams, S source length, T target length (in self-attention
both are the length of one sequence), H heads, D d_model, F d_ff, V vocabulary; d_k and d_v are written out.
"""

import hashlib
import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from .configuration_vanilla import VanillaConfig
from .cpu_vanilla import eager_is_faster

logger = logging.get_logger(__name__)


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention, softmax(Q K^T / sqrt(d_k)) V (3.2.1, Eq. 1), written out.

    Args:
        query: (B, H, T, d_k). key: (B, H, S, d_k). value: (B, H, S, d_v).
        attention_mask: broadcastable to (B, H, T, S), True where a position may be seen. None: all are seen.
        scaling: 1 / sqrt(d_k).
        dropout: probability of dropping an attention weight, 0 in evaluation.

    Returns:
        The output (B, T, H, d_v) and the attention weights (B, H, T, S). A position that sees nothing gets zeros.
    """
    scores = torch.matmul(query * scaling, key.transpose(-2, -1)).float()  # the softmax needs more than 16 bits
    if attention_mask is None:
        weights = scores.softmax(dim=-1)
    else:
        # The most negative number stands for the paper's minus infinity, which would turn a row of nothing into NaN.
        hidden = torch.finfo(torch.float32).min
        weights = torch.where(attention_mask, scores, hidden).softmax(dim=-1)
        weights = weights * attention_mask.any(dim=-1, keepdim=True)
    weights = weights.to(value.dtype)
    weights = nn.functional.dropout(weights, p=dropout)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


# torch's fused kernels ("sdpa") compute Eq. 1 as it stands above; a changed one computes in their place.
_EQ_1 = eager_attention
try:
    _source = inspect.getsource(eager_attention)
except OSError:  # compiled files alone: it cannot have been changed
    _source = None
if _source is not None and not hashlib.sha256(_source.encode()).hexdigest().startswith("c9cdae794b012409"):
    _EQ_1 = None
    logger.warning("eager_attention was changed: it computes in place of torch's fused kernels, which have Eq. 1")


def fused_linear(config: VanillaConfig, parts: list[int]) -> nn.Linear:
    """Projections of one input as one product; their matrices, of `parts` rows, stand one below the other."""
    linear = nn.Linear(config.d_model, sum(parts), bias=config.attention_bias)
    linear.parts = parts  # for the initialisation and Muon, which see the layer alone
    return linear


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V) (3.2.2)."""

    def __init__(self, config: VanillaConfig, num_heads: int, layer_idx: int, is_causal: bool):
        super().__init__()
        self.config = config
        self.num_heads = num_heads
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.d_k, self.d_v = config.head_dims(num_heads)
        self.out_proj = nn.Linear(num_heads * self.d_v, config.d_model, bias=config.attention_bias)

    def split_heads(self, x: Tensor, batch_size: int) -> Tensor:
        """(B * K, T, H * d) -> (B, H, K * T, d), d is d_k or d_v: the beams of a sentence become further positions."""
        return x.reshape(batch_size, -1, self.num_heads, x.shape[-1] // self.num_heads).transpose(1, 2)

    def attend(
        self, rows: int, q, k, v, attention_mask, output_attentions: bool | None = None, **kwargs
    ) -> tuple[Tensor, Tensor | None]:
        """Eq. 1 on every head by the chosen back end, then Concat and W^O.

        Args:
            rows: B * K. q: (B, H, K * T, d_k). k, v: (B, H, S, d_k) and (B, H, S, d_v), which beams share.
            attention_mask: broadcastable to (B, H, K * T, S).
            output_attentions: whether to return weights; "sdpa" then computes as "eager" does.

        Returns:
            Output (B * K, T, D) and weights (B * K, H, T, S), None if the back end returns none.
        """
        back_end = self.config._attn_implementation
        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(back_end, eager_attention)
        if back_end == "sdpa" and (output_attentions or eager_attention is not _EQ_1 or eager_is_faster(q, k)):
            attention, targets, sources = eager_attention, q.shape[2], k.shape[2]
            if attention_mask is None and self.is_causal:
                # SDPA takes causality as a flag where the mask would hold nothing else.
                attention_mask = torch.ones(targets, sources, dtype=torch.bool, device=q.device).tril(sources - targets)
        dropout = self.config.attention_dropout if self.training else 0.0
        output, weights = attention(
            self, q, k, v, attention_mask, scaling=self.d_k**-0.5, dropout=dropout, is_causal=self.is_causal, **kwargs
        )
        beams = rows // q.shape[0]
        if beams > 1 and weights is not None:
            weights = weights.unflatten(2, (beams, -1)).transpose(1, 2).flatten(0, 1)
        return self.out_proj(output.reshape(rows, q.shape[2] // beams, -1)), weights


class SelfAttention(MultiHeadAttention):
    """Queries, keys and values all come from the layer below (3.2.3, second and third use), as one product."""

    def __init__(self, config: VanillaConfig, num_heads: int, layer_idx: int, is_causal: bool):
        super().__init__(config, num_heads, layer_idx, is_causal)
        self.parts = [num_heads * self.d_k, num_heads * self.d_k, num_heads * self.d_v]
        self.qkv_proj = fused_linear(config, self.parts)

    def forward(
        self, x: Tensor, attention_mask: Tensor | None = None, cache: EncoderDecoderCache | None = None, **kwargs
    ) -> tuple[Tensor, Tensor | None]:
        """x (B, T, D) -> output (B, T, D) and attention weights (B, H, T, T), None if the back end returns none."""
        rows = x.shape[0]
        q, k, v = (self.split_heads(part, rows) for part in self.qkv_proj(x).split(self.parts, dim=-1))
        if cache is not None:
            k, v = cache.self_attention_cache.update(k, v, self.layer_idx)
        return self.attend(rows, q, k, v, attention_mask, **kwargs)


class CrossAttention(MultiHeadAttention):
    """Queries come from the decoder, keys and values from the encoder's output (3.2.3, first use).

    `kv_proj` holds W^K and W^V one below the other. The decoder's batch may be a multiple of the encoder's: the beams
    of a sentence share its keys and values.
    """

    def __init__(self, config: VanillaConfig, num_heads: int, layer_idx: int):
        super().__init__(config, num_heads, layer_idx, is_causal=False)
        self.q_proj = nn.Linear(config.d_model, num_heads * self.d_k, bias=config.attention_bias)
        self.parts = [num_heads * self.d_k, num_heads * self.d_v]
        self.kv_proj = fused_linear(config, self.parts)

    def forward(
        self,
        x: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """x (B * K, T, D), encoder output (B, S, D) -> output like x and weights (B * K, H, T, S) or None."""
        k, v = self.keys_and_values(encoder_hidden_states, cache)
        q = self.split_heads(self.q_proj(x), k.shape[0])
        return self.attend(x.shape[0], q, k, v, attention_mask, **kwargs)

    def keys_and_values(self, encoder_hidden_states: Tensor, cache: EncoderDecoderCache | None):
        """(B, H, S, d_k) and (B, H, S, d_v) of the encoder's output (B, S, D), from the cache once they are there."""
        if cache is not None and cache.is_updated.get(self.layer_idx):
            cached = cache.cross_attention_cache.layers[self.layer_idx]
            return cached.keys, cached.values
        x = encoder_hidden_states
        k, v = (self.split_heads(part, x.shape[0]) for part in self.kv_proj(x).split(self.parts, dim=-1))
        if cache is not None:
            k, v = cache.cross_attention_cache.update(k, v, self.layer_idx)
            cache.is_updated[self.layer_idx] = True
        return k, v
