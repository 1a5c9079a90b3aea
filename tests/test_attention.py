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
@pytest.mark.parametrize("kind", [SelfAttention, CrossAttention])
def test_multi_head_attention_by_hand(make_config, attn, bias, kind):
    """Concat(head_1, ..., head_h) W^O with matrices of its own for each head, and d_k != d_v.

    Queries come from x; keys and values from x, too, or from the encoder's output.
    """
    torch.manual_seed(0)
    config = make_config(d_model=6, d_k=4, d_v=5, attention_bias=bias, attn_implementation=attn)
    attention = (kind(config, 3, 0, is_causal=False) if kind is SelfAttention else kind(config, 3, 0)).double().eval()
    inputs = torch.randn(2, 1, 4, 6).double()
    q_from, kv_from = inputs[[0, 0 if kind is SelfAttention else 1], 0]
    actual, _ = attention(*inputs[: 1 if kind is SelfAttention else 2])

    projections = [attention.qkv_proj] if kind is SelfAttention else [attention.q_proj, attention.kv_proj]
    sizes = [12, 12, 15]
    w_q, w_k, w_v = torch.cat([linear.weight for linear in projections]).split(sizes)
    b_q, b_k, b_v = (torch.cat([one.bias for one in projections]) if bias else torch.zeros(39)).split(sizes)
    heads = []
    for i in range(3):
        k_rows, v_rows = slice(4 * i, 4 * i + 4), slice(5 * i, 5 * i + 5)
        q = q_from @ w_q[k_rows].T + b_q[k_rows]
        k = kv_from @ w_k[k_rows].T + b_k[k_rows]
        v = kv_from @ w_v[v_rows].T + b_v[v_rows]
        heads.append(torch.tensor(attention_by_hand(q.tolist(), k.tolist(), v.tolist())[0], dtype=torch.double))
    expected = nn.functional.linear(torch.cat(heads, dim=-1), attention.out_proj.weight, attention.out_proj.bias)
    torch.testing.assert_close(actual[0], expected, atol=1e-5, rtol=1e-5)


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


@pytest.mark.parametrize("numbers", [False, True])
def test_masks_of_four_axes(make_model, padded, attn, numbers):
    """They say what each token sees; over the source, target tokens then see what any source token sees."""
    model = make_model(attn=attn)
    source, target = padded["attention_mask"].bool(), padded["decoder_attention_mask"].bool()
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    whole = {
        "attention_mask": source[:, None, None, :].expand(-1, 1, 7, -1),
        "decoder_attention_mask": target[:, None, None, :] & causal,
    }
    if numbers:
        least = torch.finfo(torch.float32).min
        whole = {name: torch.zeros(mask.shape).masked_fill(~mask, least) for name, mask in whole.items()}
    expected = model(**padded | {"decoder_attention_mask": None}).logits
    inputs = padded | whole
    # Positions are counted from the first column; so only rows without padding on the left are as with two axes.
    rows = [0, 2, 3]
    torch.testing.assert_close(model(**inputs).logits[rows, :5], expected[rows, :5], atol=1e-5, rtol=1e-5)
    # A source token that only the first one sees is seen by the target.
    diagonal = torch.eye(7, dtype=torch.bool).expand(4, 1, 7, 7)
    own = model(**padded | {"attention_mask": diagonal, "decoder_attention_mask": None})
    encoded = model.model.encoder(padded["input_ids"], attention_mask=diagonal)
    same = model(encoder_outputs=encoded, decoder_input_ids=padded["decoder_input_ids"])
    torch.testing.assert_close(own.logits, same.logits)


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
    encoded = model.model.encoder(source, attention_mask=mask)
    repeated = model(
        input_ids=source.repeat_interleave(beams, dim=0),
        attention_mask=mask.repeat_interleave(beams, dim=0) if masked else None,
        decoder_input_ids=target,
        output_attentions=True,
    )
    shared = {"attention_mask": mask, "encoder_outputs": encoded, "use_cache": True}
    output = run_with(model, back_end, **shared, decoder_input_ids=target)
    torch.testing.assert_close(output.logits, repeated.logits, atol=1e-5, rtol=1e-5)
    if back_end == "eager":
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for start, end in ((0, 2), (2, 3), (3, 6)):
            output = model(
                **shared, decoder_input_ids=target[:, start:end], past_key_values=cache, output_attentions=True
            )
            torch.testing.assert_close(output.logits, repeated.logits[:, start:end], atol=1e-5, rtol=1e-5)
            for weights, own in zip(output.cross_attentions, repeated.cross_attentions, strict=True):
                torch.testing.assert_close(weights, own[:, :, start:end], atol=1e-6, rtol=1e-5)
        assert cache.cross_attention_cache.layers[0].keys.shape[0] == 2
        assert cache.self_attention_cache.layers[0].keys.shape[0] == 2 * beams


@pytest.mark.parametrize("back_end", ["sdpa", "test_unpadded"])
def test_a_batch_that_is_no_multiple_of_the_encoders_is_refused(make_model, back_end):
    model = make_model()
    memory = model.model.encoder(torch.randint(4, 41, (4, 7)))
    for rows in (1, 3, 6):
        with pytest.raises(ValueError, match=f"batch of {rows} .* batch of 4"):
            run_with(model, back_end, encoder_outputs=memory, decoder_input_ids=torch.randint(4, 41, (rows, 5)))
