"""Section 3.2 by hand, the back ends against each other, the masks, the window of section 4, and the shared beams."""

import math

import pytest
import torch
from torch import nn
from transformers import AttentionInterface
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from modeling_vanilla import VanillaModel, cpu_vanilla
from modeling_vanilla.attention_vanilla import (
    CrossAttention,
    SelfAttention,
    decoder_mask,
    eager_attention,
    encoder_mask,
)


def attention_by_hand(q, k, v, seen=None):
    """Eq. 1 for one head, one number at a time. q (T, K), k (S, K), v (S, V), seen (T, S) -> lists (T, V), (T, S)"""
    outputs, weights = [], []
    for t, query in enumerate(q):
        scores = []
        for s, key in enumerate(k):
            dot = sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query))
            scores.append(dot if seen is None or seen[t][s] else -math.inf)
        exponents = [math.exp(score) for score in scores]
        total = sum(exponents)
        row = [0.0 if total == 0 else exponent / total for exponent in exponents]
        weights.append(row)
        outputs.append([sum(w * value[j] for w, value in zip(row, v, strict=True)) for j in range(len(v[0]))])
    return outputs, weights


BACK_ENDS = {"eager": eager_attention, "sdpa": ALL_ATTENTION_FUNCTIONS["sdpa"]}


def run(back_end, q, k, v, mask=None, is_causal=False):
    module = nn.Module().eval()
    return BACK_ENDS[back_end](module, q, k, v, mask, scaling=q.shape[-1] ** -0.5, dropout=0.0, is_causal=is_causal)


@pytest.fixture
def qkv():
    """B 2, H 3, T 4, S 5, d_k 6, d_v 7"""
    torch.manual_seed(0)
    return torch.randn(2, 3, 4, 6), torch.randn(2, 3, 5, 6), torch.randn(2, 3, 5, 7)


@pytest.fixture
def seen():
    """(B, 1, T, S): anything may be hidden, and one query of one sentence sees nothing."""
    torch.manual_seed(1)
    seen = torch.rand(2, 1, 4, 5) < 0.6
    seen[..., 0] = True
    seen[1, 0, 2] = False
    return seen


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("masked", [False, True])
def test_equation_1(qkv, seen, back_end, masked):
    q, k, v = qkv
    output, weights = run(back_end, q, k, v, seen if masked else None)
    assert output.shape == (2, 4, 3, 7)
    for b in range(2):
        for h in range(3):
            rows, row_weights = attention_by_hand(
                q[b, h].tolist(), k[b, h].tolist(), v[b, h].tolist(), seen[b, 0].tolist() if masked else None
            )
            torch.testing.assert_close(output[b, :, h], torch.tensor(rows), atol=1e-5, rtol=1e-5)
            if weights is not None:
                torch.testing.assert_close(weights[b, h], torch.tensor(row_weights), atol=1e-6, rtol=1e-5)


def test_a_mask_of_numbers_is_added_to_the_scores(qkv, seen):
    q, k, v = qkv
    seen[1, 0, 2, 0] = True  # by numbers, no position can be kept from seeing anything
    hidden = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    torch.testing.assert_close(run("eager", q, k, v, hidden), run("eager", q, k, v, seen))
    bias = torch.randn(2, 1, 4, 5)
    torch.testing.assert_close(run("eager", q, k, v, bias)[0], run("sdpa", q, k, v, bias)[0], atol=1e-5, rtol=1e-5)


def test_eager_drops_attention_weights_in_training_only(qkv):
    module = nn.Module().train()
    torch.manual_seed(0)
    _, weights = eager_attention(module, *qkv, None, scaling=1.0, dropout=0.5)
    assert 0.3 < (weights == 0).float().mean() < 0.7
    _, weights = eager_attention(module.eval(), *qkv, None, scaling=1.0, dropout=0.5)
    assert (weights > 0).all()


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients(back_end, dtype):
    # Scores of -32: added to the most negative 16-bit float, they run over into minus infinity.
    q = torch.full((1, 2, 3, 4), 4.0, dtype=dtype, requires_grad=True)
    k = torch.full((1, 2, 5, 4), -4.0, dtype=dtype, requires_grad=True)
    v = torch.randn(1, 2, 5, 6).to(dtype).requires_grad_()
    mask = torch.ones(1, 1, 3, 5, dtype=torch.bool)
    mask[:, :, 1] = False
    output, _ = run(back_end, q, k, v, mask)
    assert not output[:, 1].any()
    torch.testing.assert_close(output[0, 0], v[0].mean(dim=1), atol=1e-2, rtol=1e-2)
    output.sum().backward()
    for tensor in (q, k, v):
        assert tensor.grad.isfinite().all()
    assert not q.grad[:, :, 1].any()


@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_self_attention_by_hand(make_config, attn, bias):
    """Concat(head_1, ..., head_h) W^O with a matrix of its own for each head, and d_k != d_v."""
    torch.manual_seed(0)
    config = make_config(d_model=6, d_k=4, d_v=5, attention_bias=bias, attn_implementation=attn)
    attention = SelfAttention(config, num_heads=3, layer_idx=0, is_causal=False).eval()
    x = torch.randn(1, 4, 6)
    actual, _ = attention(x)

    x = x[0].double()
    projections = attention.qkv_proj.weight.double().split([3 * 4, 3 * 4, 3 * 5])
    biases = attention.qkv_proj.bias.double().split([3 * 4, 3 * 4, 3 * 5]) if bias else [torch.zeros(1)] * 3
    concatenated = []
    for i in range(3):
        q, k, v = (
            x @ w[i * d : (i + 1) * d].T + (b[i * d : (i + 1) * d] if bias else 0)
            for w, b, d in zip(projections, biases, (4, 4, 5), strict=True)
        )
        concatenated.append(torch.tensor(attention_by_hand(q.tolist(), k.tolist(), v.tolist())[0], dtype=x.dtype))
    expected = torch.cat(concatenated, dim=-1) @ attention.out_proj.weight.double().T
    if bias:
        expected += attention.out_proj.bias.double()
    torch.testing.assert_close(actual[0], expected.float(), atol=1e-5, rtol=1e-5)


def test_multi_head_cross_attention_by_hand(make_config, attn):
    """Queries from the decoder, keys and values from the encoder's output."""
    torch.manual_seed(0)
    config = make_config(d_model=6, d_k=4, d_v=5, attn_implementation=attn)
    attention = CrossAttention(config, num_heads=3, layer_idx=0).eval()
    x, memory = torch.randn(1, 4, 6), torch.randn(1, 7, 6)
    actual, _ = attention(x, memory)

    x, memory = x[0].double(), memory[0].double()
    w_k, w_v = attention.kv_proj.weight.double().split([3 * 4, 3 * 5])
    concatenated = []
    for i in range(3):
        q = x @ attention.q_proj.weight.double()[i * 4 : (i + 1) * 4].T
        k, v = memory @ w_k[i * 4 : (i + 1) * 4].T, memory @ w_v[i * 5 : (i + 1) * 5].T
        concatenated.append(torch.tensor(attention_by_hand(q.tolist(), k.tolist(), v.tolist())[0], dtype=x.dtype))
    expected = torch.cat(concatenated, dim=-1) @ attention.out_proj.weight.double().T
    torch.testing.assert_close(actual[0], expected.float(), atol=1e-5, rtol=1e-5)


@pytest.fixture
def padded():
    """Sources and targets padded on either side, one source that is all padding, and a target that begins with it."""
    torch.manual_seed(0)
    batch = {
        "input_ids": torch.randint(4, 41, (4, 7)),
        "attention_mask": torch.ones(4, 7, dtype=torch.long),
        "decoder_input_ids": torch.randint(4, 41, (4, 6)),
        "decoder_attention_mask": torch.ones(4, 6, dtype=torch.long),
    }
    batch["attention_mask"][0, 4:] = 0
    batch["attention_mask"][1, :3] = 0
    batch["attention_mask"][2] = 0
    batch["decoder_attention_mask"][1, :2] = 0
    batch["decoder_attention_mask"][3, 5:] = 0
    return batch


@pytest.mark.parametrize("window", [None, 1, 2, 3])
@pytest.mark.parametrize("dims", [{}, {"d_k": 5, "d_v": 9}])
def test_eager_and_sdpa_are_equal_under_every_mask(make_model, padded, window, dims, monkeypatch):
    """Causal mask, padding, window and rows that see nothing, all together: outputs and gradients."""
    results = []
    monkeypatch.setattr(cpu_vanilla, "EAGER_KEYS", 0)
    for attn in BACK_ENDS:
        model = make_model(attn=attn, attention_window=window, **dims)
        logits = model(**padded, use_cache=False).logits
        logits.square().mean().backward()
        results.append((logits, [parameter.grad for parameter in model.parameters()]))
    (eager, eager_grads), (sdpa, sdpa_grads) = results
    assert eager.isfinite().all()
    torch.testing.assert_close(eager, sdpa, atol=1e-5, rtol=1e-5)
    for one, other in zip(eager_grads, sdpa_grads, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_attention_to_padding_is_exactly_zero(make_model, padded):
    output = make_model(attn="eager")(**padded, output_attentions=True)
    source_hidden = padded["attention_mask"][:, None, None, :] == 0
    target_hidden = padded["decoder_attention_mask"][:, None, None, :] == 0
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    for weights in output.encoder_attentions:
        assert not weights.masked_select(source_hidden).any()
    for weights in output.cross_attentions:
        assert not weights.masked_select(source_hidden).any()
    for weights in output.decoder_attentions:
        assert not weights.masked_select(target_hidden | later).any()
    # What does see something distributes exactly 1.
    for weights in (*output.encoder_attentions, *output.cross_attentions, *output.decoder_attentions):
        totals = weights.sum(-1)
        assert (((totals - 1).abs() < 1e-5) | (totals == 0)).all()


# Section 4: the window


def inputs_seen(model: VanillaModel, length: int, stack: str) -> list[list[int]]:
    """For each output position of a stack of one layer, the input positions that it depends on, by the gradient."""
    torch.manual_seed(0)
    x = torch.randn(1, length, 24, requires_grad=True)
    if stack == "encoder":
        output = model.encoder(inputs_embeds=x).last_hidden_state
    else:
        memory = torch.randn(1, 3, 24)
        output = model.decoder(inputs_embeds=x, encoder_hidden_states=memory).last_hidden_state
    direction = torch.randn(24)  # a plain sum over a normalised vector is constant
    rows = []
    for position in range(length):
        (gradient,) = torch.autograd.grad(output[0, position] @ direction, x, retain_graph=True)
        rows.append(gradient[0].abs().sum(-1).nonzero().flatten().tolist())
    return rows


@pytest.mark.parametrize("r", [1, 2, 3, 4, 5, 8])
def test_window_r_sees_exactly_r(make_model, attn, r):
    length = 12
    model = make_model(VanillaModel, attn=attn, attention_window=r, encoder_layers=1, decoder_layers=1)
    encoder, decoder = (inputs_seen(model, length, stack) for stack in ("encoder", "decoder"))
    for i in range(length):
        left, right = r // 2, (r - 1) // 2  # r positions with i among them; an even r has one more on the left
        assert encoder[i] == list(range(max(0, i - left), min(length, i + right + 1)))
        assert decoder[i] == list(range(max(0, i - r + 1), i + 1))
    inside = slice(r, length - r)
    assert all(len(row) == r for row in encoder[inside] + decoder[inside])


def test_without_a_window_all_is_seen(make_model):
    model = make_model(VanillaModel, encoder_layers=1, decoder_layers=1)
    assert inputs_seen(model, 6, "encoder") == [list(range(6))] * 6
    assert inputs_seen(model, 6, "decoder") == [list(range(i + 1)) for i in range(6)]


@pytest.mark.parametrize("r", [1, 2, 3])
def test_window_is_the_same_with_a_cache(make_model, attn, r):
    model = make_model(attn=attn, attention_window=r)
    torch.manual_seed(0)
    source, target = torch.randint(4, 41, (2, 7)), torch.randint(4, 41, (2, 8))
    full = model(input_ids=source, decoder_input_ids=target, use_cache=False).logits
    cache, pieces = None, []
    for start, end in ((0, 3), (3, 4), (4, 7), (7, 8)):
        output = model(input_ids=source, decoder_input_ids=target[:, start:end], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        pieces.append(output.logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), full, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_window_does_not_depend_on_padding(make_model, padding_side):
    model = make_model(VanillaModel, attention_window=3)
    torch.manual_seed(0)
    ids = torch.randint(4, 41, (1, 6))
    alone = model.encoder(ids).last_hidden_state
    pad = (4, 0) if padding_side == "left" else (0, 4)
    mask = nn.functional.pad(torch.ones_like(ids), pad)
    together = model.encoder(nn.functional.pad(ids, pad), attention_mask=mask).last_hidden_state
    torch.testing.assert_close(together[mask.bool()], alone[0], atol=1e-5, rtol=1e-5)


def test_flash_attention_with_a_window_is_refused(make_config):
    config = make_config(attention_window=5)
    config._attn_implementation_internal = "flash_attention_2"
    x = torch.zeros(1, 3, 24)
    with pytest.raises(ValueError, match=r"attention_window 5 .*flash_attention_2"):
        encoder_mask(config, x, None)
    with pytest.raises(ValueError, match=r"attention_window 5 .*flash_attention_2"):
        decoder_mask(config, x, None, None)


# Beams that share the encoding of their sentence


def unpadded_attention(module, query, key, value, attention_mask, scaling, is_causal, **kwargs):
    """A stand-in for flash attention: like it, this gets the mask of padding as (B, S), and knows causality itself."""
    length, past = query.shape[2], key.shape[2] - query.shape[2]
    seen = torch.ones(length, key.shape[2], dtype=torch.bool)
    seen = (seen.tril(past) if is_causal else seen)[None, None]
    if attention_mask is not None:
        seen = seen & attention_mask[:, None, None, :].bool()
    output = nn.functional.scaled_dot_product_attention(query, key, value, seen, scale=scaling)
    return output.transpose(1, 2), None


AttentionInterface.register("test_unpadded", unpadded_attention)
AttentionMaskInterface.register("test_unpadded", flash_attention_mask)


EVERY_BACK_END = ["eager", "sdpa", "test_unpadded", "flex_attention"]


def run_with(model, attn: str, **inputs):
    model.set_attn_implementation(attn)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # flex attention would compile for a minute
        return model(**inputs)


@pytest.mark.parametrize("back_end", EVERY_BACK_END)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_every_back_end_gives_the_same(make_model, padded, back_end):
    model = make_model()
    inputs = {name: tensor[[0, 1, 3]] for name, tensor in padded.items() if name != "decoder_attention_mask"}
    expected = run_with(model, "eager", **inputs).logits
    torch.testing.assert_close(run_with(model, back_end, **inputs).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("back_end", EVERY_BACK_END)
@pytest.mark.parametrize("beams", [2, 5])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_beams_share_the_encoding_of_their_sentence(make_model, padded, back_end, beams, masked):
    """A decoder batch that is a multiple of the encoder's equals the encoder's rows repeated."""
    model = make_model(attn="eager")
    torch.manual_seed(0)
    target = torch.randint(4, 41, (2 * beams, 6))
    source, mask = padded["input_ids"][:2], padded["attention_mask"][:2] if masked else None
    memory = model.model.encoder(source, attention_mask=mask)
    repeated = model(
        input_ids=source.repeat_interleave(beams, dim=0),
        attention_mask=mask.repeat_interleave(beams, dim=0) if masked else None,
        decoder_input_ids=target,
        output_attentions=True,
    )
    shared = run_with(
        model, back_end, attention_mask=mask, encoder_outputs=memory, decoder_input_ids=target, use_cache=True
    )
    torch.testing.assert_close(shared.logits, repeated.logits, atol=1e-5, rtol=1e-5)
    if back_end in ("eager", "sdpa"):
        cache: EncoderDecoderCache = shared.past_key_values
        assert cache.cross_attention_cache.layers[0].keys.shape[0] == 2
        assert cache.self_attention_cache.layers[0].keys.shape[0] == 2 * beams


def test_beams_share_with_a_cache_and_return_their_own_weights(make_model, padded):
    model = make_model(attn="eager")
    beams = 3
    torch.manual_seed(0)
    target = torch.randint(4, 41, (2 * beams, 6))
    source, mask = padded["input_ids"][:2], padded["attention_mask"][:2]
    memory = model.model.encoder(source, attention_mask=mask)
    repeated = model(
        input_ids=source.repeat_interleave(beams, dim=0),
        attention_mask=mask.repeat_interleave(beams, dim=0),
        decoder_input_ids=target,
        output_attentions=True,
    )
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    for start, end in ((0, 2), (2, 3), (3, 6)):
        output = model(
            attention_mask=mask,
            encoder_outputs=memory,
            decoder_input_ids=target[:, start:end],
            past_key_values=cache,
            output_attentions=True,
        )
        torch.testing.assert_close(output.logits, repeated.logits[:, start:end], atol=1e-5, rtol=1e-5)
        for shared, own in zip(output.cross_attentions, repeated.cross_attentions, strict=True):
            torch.testing.assert_close(shared, own[:, :, start:end], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("back_end", ["sdpa", "test_unpadded"])
def test_a_batch_that_is_no_multiple_of_the_encoders_is_refused(make_model, back_end):
    model = make_model()
    memory = model.model.encoder(torch.randint(4, 41, (4, 7)))
    for rows in (1, 3, 6):
        with pytest.raises(ValueError, match=f"batch of {rows} .* batch of 4"):
            run_with(model, back_end, encoder_outputs=memory, decoder_input_ids=torch.randint(4, 41, (rows, 5)))
