"""Section 3.2 by hand, the back ends against each other, the masks, the window of section 4, and the shared beams."""

import math

import pytest
import torch
from helpers import run_elsewhere
from torch import nn

from modeling_vanilla import VanillaModel, cpu_vanilla
from modeling_vanilla.attention_vanilla import CrossAttention, SelfAttention, eager_attention


def attention_by_hand(q, k, v):
    """Eq. 1 for one head, one number at a time. q (T, K), k (S, K), v (S, V) -> a list (T, V)"""
    outputs = []
    for query in q:
        scores = [sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query)) for key in k]
        weights = [math.exp(z) / sum(map(math.exp, scores)) for z in scores]
        outputs.append([sum(w * value[j] for w, value in zip(weights, v, strict=True)) for j in range(len(v[0]))])
    return outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients(dtype):
    # Scores of -32: added to the most negative 16-bit float, they run over into minus infinity.
    tensors = torch.full((1, 2, 3, 4), 4.0), torch.full((1, 2, 5, 4), -4.0), torch.randn(1, 2, 5, 6)
    q, k, v = (tensor.to(dtype).requires_grad_() for tensor in tensors)
    mask = torch.ones(1, 1, 3, 5, dtype=torch.bool)
    mask[:, :, 1] = False
    output, weights = eager_attention(nn.Module().eval(), q, k, v, mask, scaling=0.5)
    assert not output[:, 1].any() and not weights[:, :, 1].any()
    torch.testing.assert_close(output[0, 0], v[0].mean(dim=1), atol=1e-2, rtol=1e-2)
    output.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (q, k, v))
    assert not q.grad[:, :, 1].any()


def test_a_changed_eq_1_computes_in_place_of_the_fused_kernel(make_model, tmp_path):
    """In a model's folder, as a reader would change it."""
    model = make_model()
    model.save_pretrained(tmp_path)
    file = tmp_path / "attention_vanilla.py"
    file.write_text(file.read_text(encoding="utf-8").replace("query * scaling", "query * 0"), encoding="utf-8")
    script = """import json, torch, transformers
model = transformers.AutoModelForSeq2SeqLM.from_pretrained(".", trust_remote_code=True)
print(json.dumps(model(input_ids=torch.tensor([[5, 6, 7]]), decoder_input_ids=torch.tensor([[1]])).logits.tolist()))"""
    ids = {"input_ids": torch.tensor([[5, 6, 7]]), "decoder_input_ids": torch.tensor([[1]])}
    changed = torch.tensor(run_elsewhere(script, cwd=tmp_path))
    assert (changed - model(**ids).logits).abs().max() > 0.01
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("qkv_proj.weight", "q_proj.weight")):
                weight[: model.config.d_model].zero_()  # all scores are 0
    torch.testing.assert_close(changed, model(**ids).logits)


@pytest.mark.parametrize("kind", [SelfAttention, CrossAttention])
def test_multi_head_attention_by_hand(make_config, attn, kind):
    """Concat(head_1, ..., head_h) W^O with matrices of its own for each head, and d_k != d_v.

    Queries come from x; keys and values from x, too, or from the encoder's output.
    """
    torch.manual_seed(0)
    config = make_config(d_model=6, d_k=4, d_v=5, attention_bias=True, attn_implementation=attn)
    x, encoded = torch.randn(2, 1, 4, 6).double()
    if kind is SelfAttention:
        attention, given, encoded = kind(config, 3, 0, is_causal=False).double().eval(), (x,), x
        projections = [attention.qkv_proj]
    else:
        attention, given = kind(config, 3, 0).double().eval(), (x, encoded)
        projections = [attention.q_proj, attention.kv_proj]
    actual, _ = attention(*given)
    sizes = [12, 12, 15]
    weights = torch.cat([linear.weight for linear in projections]).split(sizes)
    biases = torch.cat([linear.bias for linear in projections]).split(sizes)
    inputs = zip((x[0], encoded[0], encoded[0]), weights, biases, strict=True)
    parts = [(given @ weight.T + bias).unflatten(-1, (3, -1)) for given, weight, bias in inputs]
    heads = [torch.tensor(attention_by_hand(*(part[:, i].tolist() for part in parts))) for i in range(3)]
    concatenated = torch.cat(heads, dim=-1).double()
    expected = nn.functional.linear(concatenated, attention.out_proj.weight, attention.out_proj.bias)
    torch.testing.assert_close(actual[0], expected, atol=1e-5, rtol=1e-5)


@pytest.fixture
def padded(batch):
    """Sources and targets padded on either side."""
    source, target = (torch.ones_like(ids) for ids in batch.values())
    source[0, 4:] = source[1, :3] = source[2, 1:] = target[1, :2] = target[2, 5:] = 0
    return {**batch, "attention_mask": source, "decoder_attention_mask": target}


@pytest.mark.parametrize("window", [None, 1, 2, 3])
@pytest.mark.parametrize("dims", [{}, {"d_k": 5, "d_v": 9}])
def test_eager_and_sdpa_are_equal_under_every_mask(make_model, padded, window, dims, monkeypatch):
    """Causal mask, padding, window and tokens that see nothing, all together: outputs and gradients.

    The third source is padding alone.
    """
    results = []
    if window is None:
        padded["attention_mask"][2] = 0
    monkeypatch.setattr(cpu_vanilla, "EAGER_KEYS", 0)
    for attn in ("eager", "sdpa"):
        model = make_model(attn=attn, attention_window=window, **dims)
        logits = model(**padded, use_cache=False).logits
        logits.square().mean().backward()
        results.append([logits, *(parameter.grad for parameter in model.parameters())])
    assert all(tensor.isfinite().all() for tensor in results[0])
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


def test_masks_and_batches_that_do_not_fit_are_refused(make_model, padded):
    with pytest.raises(ValueError, match=r"attention_mask must be of shape \(3, 7\), not \(3, 1\)"):
        make_model()(**padded | {"attention_mask": torch.ones(3, 1)})
    encoded = make_model().model.encoder(padded["input_ids"])
    with pytest.raises(ValueError, match=r"batch of 4 .* batch of 3"):
        make_model()(encoder_outputs=encoded, decoder_input_ids=torch.randint(4, 41, (4, 5)))


# Section 4: the window


def inputs_seen(model: VanillaModel, length: int, stack: str) -> list[list[int]]:
    """For each output position of a stack of one layer, the input positions that it depends on, by the gradient."""
    torch.manual_seed(0)
    x = torch.randn(1, length, 24, requires_grad=True)
    more = {} if stack == "encoder" else {"encoder_hidden_states": torch.randn(1, 3, 24)}
    output = getattr(model, stack)(inputs_embeds=x, **more).last_hidden_state
    direction = torch.randn(24)  # a plain sum over a normalised vector is constant
    rows = []
    for position in range(length):
        (gradient,) = torch.autograd.grad(output[0, position] @ direction, x, retain_graph=True)
        rows.append(gradient[0].abs().sum(-1).nonzero().flatten().tolist())
    return rows


@pytest.mark.parametrize("r", [1, 2, 3, 4, 5, 8, None])
def test_window_r_sees_exactly_r(make_model, attn, r):
    """r positions with its own among them, an even r one more on the left; without a window all, but for the future."""
    length = 12
    model = make_model(VanillaModel, attn=attn, attention_window=r, encoder_layers=1, decoder_layers=1)
    left, right, past = (r // 2, (r - 1) // 2, r - 1) if r else (length, length, length)
    positions = range(length)
    assert inputs_seen(model, length, "encoder") == [[*positions[max(0, i - left) : i + right + 1]] for i in positions]
    assert inputs_seen(model, length, "decoder") == [[*positions[max(0, i - past) : i + 1]] for i in positions]


# Beams that share the encoding of their sentence


@pytest.mark.parametrize("back_end", ["eager", "sdpa", "flex_attention"])
@pytest.mark.parametrize("beams", [1, 2, 5])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_beams_share_the_encoding_of_their_sentence(make_model, padded, back_end, beams, masked):
    """A decoder batch that is a multiple of the encoder's equals the encoder's rows repeated."""
    model = make_model(attn="eager", d_k=8, d_v=8)  # flex attention takes powers of 2
    torch.manual_seed(0)
    target = torch.randint(4, 41, (2 * beams, 6))
    source, mask = padded["input_ids"][:2], padded["attention_mask"][:2] if masked else None
    encoded = model.model.encoder(source, attention_mask=mask)
    repeated = [x if x is None else x.repeat_interleave(beams, dim=0) for x in (source, mask)]
    repeated = model(*repeated, decoder_input_ids=target, output_attentions=True)
    shared = {"attention_mask": mask, "encoder_outputs": encoded, "use_cache": True}
    model.set_attn_implementation(back_end)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # flex attention would compile for a minute
        output = model(**shared, decoder_input_ids=target, output_attentions=back_end == "eager")
    torch.testing.assert_close(output.logits, repeated.logits, atol=1e-5, rtol=1e-5)
    if back_end == "eager":
        torch.testing.assert_close(output.cross_attentions, repeated.cross_attentions, atol=1e-6, rtol=1e-5)
    cache = output.past_key_values
    assert cache.cross_attention_cache.layers[0].keys.shape[0] == 2
    assert cache.self_attention_cache.layers[0].keys.shape[0] == 2 * beams
