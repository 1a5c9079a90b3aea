"""Sections 3.1, 3.3 and 3.5: the layers of both stacks, the feed-forward network and the positional encodings."""

import math

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention_vanilla import CrossAttention, SelfAttention
from .configuration_vanilla import VanillaConfig
from .cpu_vanilla import Dropout


class EncoderLayer(GradientCheckpointingLayer):
    """One of the encoder's N layers (3.1): x = AddNorm(x, SelfAttention(x)), then AddNorm(x, FFN(x))."""

    def __init__(self, config: VanillaConfig, layer_idx: int):
        super().__init__()
        self.self_attn = SelfAttention(config, config.encoder_attention_heads, layer_idx, is_causal=False)
        self.self_attn_add_norm = AddNorm(config)
        self.ffn = FeedForward(config, config.encoder_ffn_dim)
        self.ffn_add_norm = AddNorm(config)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, **kwargs) -> Tensor:
        """x (B, S, D), attention_mask as in eager_attention -> (B, S, D)"""
        x = self.self_attn_add_norm(x, self.self_attn(x, attention_mask, **kwargs)[0])
        return self.ffn_add_norm(x, self.ffn(x))


class DecoderLayer(GradientCheckpointingLayer):
    """One of the decoder's N layers (3.1), with a third sub-layer over the encoder's output, memory, in between."""

    def __init__(self, config: VanillaConfig, layer_idx: int):
        super().__init__()
        self.self_attn = SelfAttention(config, config.decoder_attention_heads, layer_idx, is_causal=True)
        self.self_attn_add_norm = AddNorm(config)
        self.cross_attn = CrossAttention(config, config.decoder_attention_heads, layer_idx)
        self.cross_attn_add_norm = AddNorm(config)
        self.ffn = FeedForward(config, config.decoder_ffn_dim)
        self.ffn_add_norm = AddNorm(config)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        self_mask: Tensor | None = None,
        cross_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs,
    ) -> Tensor:
        """x (B * K, T, D), memory (B, S, D), masks as in eager_attention -> (B * K, T, D)"""
        x = self.self_attn_add_norm(x, self.self_attn(x, self_mask, cache, **kwargs)[0])
        x = self.cross_attn_add_norm(x, self.cross_attn(x, memory, cross_mask, cache, **kwargs)[0])
        return self.ffn_add_norm(x, self.ffn(x))


class AddNorm(nn.LayerNorm):
    """LayerNorm(x + Dropout(Sublayer(x))): residual connection, layer normalisation (3.1), dropout (5.4)."""

    def __init__(self, config: VanillaConfig):
        super().__init__(config.d_model, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer_output: Tensor) -> Tensor:
        """x, the sub-layer's input, and its output, both (B, T, D) -> (B, T, D)"""
        return super().forward(x + self.dropout(sublayer_output))


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (3.3, Eq. 2), applied to each position separately and identically."""

    def __init__(self, config: VanillaConfig, d_ff: int):
        super().__init__()
        self.fc1 = nn.Linear(config.d_model, d_ff)
        self.activation = ACT2FN[config.activation_function]
        self.dropout = Dropout(config.activation_dropout)
        self.fc2 = nn.Linear(d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)"""
        return self.fc2(self.dropout(self.activation(self.fc1(x))))


class SinusoidalPositions(nn.Module):
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model)) (3.5)."""

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model

    def forward(self, position_ids: Tensor) -> Tensor:
        """position_ids (..., T), counted from 0, of any size -> (..., T, D) in 32-bit floats"""
        pair = torch.arange(0, self.d_model, 2, device=position_ids.device, dtype=torch.float32)
        angle = position_ids.unsqueeze(-1) * torch.exp(pair * (-math.log(10000.0) / self.d_model))
        # With an odd d_model, the last sine has no cosine.
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., : self.d_model]


class LearnedPositions(nn.Embedding):
    """PE(pos) = a learned vector, for each of max_position_embeddings positions (3.5; Table 3, row E)."""

    def __init__(self, config: VanillaConfig):
        super().__init__(config.max_position_embeddings, config.d_model)
