"""The paper's own statements, held against the model one by one. Formulas and figures are written out by hand here."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import conv1d
from torch.utils.flop_counter import FlopCounterMode

from modeling_vanilla import PRESETS, VanillaConfig, VanillaForConditionalGeneration, preset_config
from modeling_vanilla.attention_vanilla import SelfAttention
from modeling_vanilla.layers_vanilla import Dropout, FeedForward, SinusoidalPositions

# What Table 3 prints, in millions; it leaves the other cells blank ("as the base model").
PRINTED_MILLIONS = {"base": 65, "B-dk16": 58, "B-dk32": 60, "C-N2": 36, "C-N4": 50, "C-N8": 80}
PRINTED_MILLIONS |= {"C-d256": 28, "C-d1024": 168, "C-ff1024": 53, "C-ff4096": 90, "big": 213}


def parameters_by_section_3(config: VanillaConfig) -> int:
    """Counted from the formulas of section 3 alone. Only LayerNorm's two vectors are not in the paper."""
    d_model = config.d_model

    def attention(heads: int) -> int:
        d_k, d_v = config.d_k or d_model // heads, config.d_v or d_model // heads
        return heads * d_model * (d_k + d_k + d_v + d_v)  # W_i^Q, W_i^K, W_i^V, and W^O

    def feed_forward(d_ff: int) -> int:
        return d_model * d_ff + d_ff + d_ff * d_model + d_model  # W_1, b_1, W_2, b_2

    layer_norm = 2 * d_model
    h_enc, h_dec = config.encoder_attention_heads, config.decoder_attention_heads
    encoder_layer = attention(h_enc) + feed_forward(config.encoder_ffn_dim) + 2 * layer_norm
    decoder_layer = 2 * attention(h_dec) + feed_forward(config.decoder_ffn_dim) + 3 * layer_norm
    embedding = config.vocab_size * d_model * (1 if config.tie_word_embeddings else 3)  # one matrix has three uses
    stacks = config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer
    learned = config.position_embedding_type == "learned"
    positions = 2 * config.max_position_embeddings * d_model if learned else 0  # one table for each stack
    return embedding + stacks + positions


@pytest.mark.parametrize("name", PRESETS)
def test_parameter_count_follows_the_formula(name):
    with torch.device("meta"):
        model = VanillaForConditionalGeneration(preset_config(name))
    assert model.num_parameters() == parameters_by_section_3(model.config)


@pytest.mark.parametrize("name", PRINTED_MILLIONS)
def test_parameter_counts_beside_the_papers(name):
    """They follow from a vocabulary that the paper does not give: C-N2 differs most, 33.64 M here, 36 M there.

    Rows of the same d_model have the same embedding, so that the vocabulary cancels out: only rounding is left.
    """
    configs = [preset_config(row) for row in (name, "base")]
    (count, of_base), printed = (parameters_by_section_3(config) / 1e6 for config in configs), PRINTED_MILLIONS[name]
    assert abs(count / printed - 1) < 0.07
    if configs[0].d_model == 512:  # both printed figures are rounded by up to half a million
        assert abs(count - of_base - (printed - PRINTED_MILLIONS["base"])) < 1


# 3.1, 5.4: the sub-layers


def recorded(model: nn.Module, *names: str) -> list[list]:
    """For each name the outputs of all modules whose own name it is, filled by the next forward pass."""
    outputs = [[] for _ in names]
    for path, module in model.named_modules():
        for name, seen in zip(names, outputs, strict=True):
            if path.endswith(name):
                module.register_forward_hook(lambda _, __, output, seen=seen: seen.append(output))
    return outputs


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_dropout_is_where_section_5_4_puts_it(make_model, batch, attn, positions):
    """On embedding * sqrt(d_model) + PE and on each sub-layer's output before it is added: nowhere else."""
    model = make_model(dropout=0.125, attn=attn, position_embedding_type=positions, max_position_embeddings=7).train()
    active = [module for module in model.modules() if isinstance(module, nn.Dropout) and module.p > 0]
    places = []
    for module in active:
        assert module.p == 0.125
        module.register_forward_pre_hook(lambda _, inputs: places.append(inputs[0]))
    tokens, tables, projected, fed = recorded(model, "embed_tokens", "embed_positions", "out_proj", "fc2")
    model(**batch, use_cache=False)

    outputs = projected + fed
    assert (len(outputs), len(places)) == (2 * 2 + 3 * 3, 2 * 2 + 3 * 3 + 2)
    assert all(sum(place is output for place in places) == 1 for output in outputs)
    sums = [place for place in places if all(place is not output for output in outputs)]
    for place, embedding, position in zip(sums, tokens, tables, strict=True):
        torch.testing.assert_close(place, embedding * math.sqrt(24) + position)

    # With these off, training is as deterministic as evaluation: there is no other.
    for module in active:
        module.p = 0.0
    assert torch.equal(model(**batch).logits, model.eval()(**batch).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.9])
def test_dropout_zeroes_its_share_and_scales_the_rest(p, dtype):
    torch.manual_seed(0)
    x = torch.ones(301, 333, dtype=dtype, requires_grad=True)  # an odd number of elements
    y = Dropout(p)(x)
    kept = y != 0
    deviation = math.sqrt(p * (1 - p) / x.numel())
    assert abs((~kept).float().mean().item() - p) < 5 * deviation
    # Neither rows nor columns hold a pattern: neighbours are dropped together as often as chance has it.
    for neighbour in (kept[1:] | kept[:-1], kept[:, 1:] | kept[:, :-1]):
        assert abs((~neighbour).float().mean().item() - p**2) < 0.01
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / (1 - p)), atol=0, rtol=1e-3 if p < 0.5 else 1e-2)
    weight = torch.randn_like(x)
    (y * weight).sum().backward()
    torch.testing.assert_close(x.grad, weight * y.detach())


# 3.2.2, 3.3: heads, and the feed-forward network


def test_heads_cost_as_much_as_one_of_full_width():
    """Parameters and, as torch counts them, operations of self-attention."""
    costs = []
    for heads in (1, 2, 8):
        config = VanillaConfig(d_model=64, encoder_attention_heads=heads, attn_implementation="eager")
        layer = SelfAttention(config, heads, layer_idx=0, is_causal=False).eval()
        with FlopCounterMode(display=False) as counter:
            layer(torch.randn(1, 9, 64))
        costs.append((sum(weight.numel() for weight in layer.parameters()), counter.get_total_flops()))
    assert costs[0] == costs[1] == costs[2] == (4 * 64**2, 2 * 9 * (4 * 64**2 + 2 * 9 * 64))


def test_the_feed_forward_network_is_two_convolutions():
    ffn, x = FeedForward(VanillaConfig(d_model=8), d_ff=32), torch.randn(2, 5, 8)
    inner = conv1d(x.mT, ffn.fc1.weight[..., None], ffn.fc1.bias).clamp(min=0)
    torch.testing.assert_close(ffn(x), conv1d(inner, ffn.fc2.weight[..., None], ffn.fc2.bias).mT)


# 3.4: embeddings


@pytest.mark.parametrize("tied", [True, False])
def test_scaled_embeddings_start_with_unit_variance(make_config, tied):
    torch.manual_seed(0)
    model = VanillaForConditionalGeneration(make_config(vocab_size=4000, d_model=64, tie_word_embeddings=tied))
    for stack in (model.model.encoder, model.model.decoder):
        scaled = stack.embed_tokens.weight * math.sqrt(64)
        assert abs(scaled.var().item() - 1) < 0.02
        assert abs(scaled.mean().item()) < 0.01


@pytest.mark.parametrize("heads", [1, 8])
def test_each_of_the_projection_matrices_starts_from_xaviers_bounds(heads):
    """W^Q, W^K and W^V lie in one parameter, but each is drawn as the matrix that it is."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "d_model": 128, "d_k": 16, "d_v": 32, "init_std": None}
    config = VanillaConfig(**sizes, encoder_attention_heads=heads, decoder_attention_heads=heads)
    layer = VanillaForConditionalGeneration(config).model.decoder.layers[0]
    k, v = 16 * heads, 32 * heads
    parts = [*layer.self_attn.qkv_proj.weight.split([k, k, v]), *layer.cross_attn.kv_proj.weight.split([k, v])]
    others = ("self_attn.out_proj", "cross_attn.q_proj", "cross_attn.out_proj", "ffn.fc1", "ffn.fc2")
    parts += [layer.get_submodule(name).weight for name in others]
    for part in parts:
        bound = math.sqrt(6 / sum(part.shape))
        assert 0.98 * bound < part.abs().max().item() <= bound
        assert abs(part.std().item() / (bound / math.sqrt(3)) - 1) < 0.05  # the deviation of U(-bound, bound)


# 3.5: positions


def encoding_by_hand(positions, d_model: int) -> torch.Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)), in 64 bits."""
    angles = [[pos / 10000 ** ((column - column % 2) / d_model) for column in range(d_model)] for pos in positions]
    return torch.tensor([[(math.cos if i % 2 else math.sin)(angle) for i, angle in enumerate(row)] for row in angles])


@pytest.mark.parametrize("d_model", [1, 2, 3, 7, 64, 512])
def test_sinusoid_by_hand(d_model):
    positions = [0, 1, 2, 9, 63, 500, 1023]
    actual = SinusoidalPositions(d_model)(torch.tensor(positions))
    torch.testing.assert_close(actual, encoding_by_hand(positions, d_model), atol=1e-3, rtol=0)
    assert actual.dtype == torch.float32


def test_a_shift_is_a_linear_function_of_the_encoding():
    """PE(pos + 7) is PE(pos), each pair of it turned by an angle that pos has no part in."""
    table = SinusoidalPositions(64)(torch.arange(200))
    (sine, cosine), (s, c) = (torch.stack((rows[..., 0::2], rows[..., 1::2])) for rows in (table, table[7]))
    turned = torch.stack((sine * c + cosine * s, cosine * c - sine * s), dim=-1).flatten(-2)
    torch.testing.assert_close(turned[:-7], table[7:], atol=1e-4, rtol=0)


# 3.1: auto-regression


def test_the_decoders_input_is_the_target_shifted_right(make_model):
    model = make_model()
    labels = torch.tensor([[7, 8, 9, 2], [5, 2, -100, -100]])
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    assert shifted.tolist() == [[1, 7, 8, 9], [1, 5, 2, 0]]
    assert labels.tolist() == [[7, 8, 9, 2], [5, 2, -100, -100]]  # the caller's tensor is left alone
