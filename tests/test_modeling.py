"""The whole model: against torch.nn's post-LN layers, padding, the cache, files on disk, number formats."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers.cache_utils import DynamicCache

from modeling_vanilla import VanillaForConditionalGeneration
from modeling_vanilla.modeling_vanilla import VanillaEncoder


def close(actual, expected, atol=1e-5):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=1e-5)


# Against torch.nn


def torch_parameters(layer: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of one of our layers under the names of nn.TransformerEncoderLayer or -DecoderLayer."""
    parts = [("self_attn", [layer.self_attn.qkv_proj], layer.self_attn.out_proj)]
    norms = [layer.self_attn_add_norm, layer.ffn_add_norm]
    if hasattr(layer, "cross_attn"):
        cross = layer.cross_attn
        parts.append(("multihead_attn", [cross.q_proj, cross.kv_proj], cross.out_proj))
        norms.insert(1, layer.cross_attn_add_norm)
    parameters = {}
    for name, projections, out in parts:
        *biases, bias = [torch.zeros(p.out_features) if p.bias is None else p.bias for p in (*projections, out)]
        weight = torch.cat([p.weight for p in projections])
        parameters |= {f"{name}.in_proj_weight": weight, f"{name}.in_proj_bias": torch.cat(biases)}
        parameters |= {f"{name}.out_proj.weight": out.weight, f"{name}.out_proj.bias": bias}
    named = [(f"norm{number}", norm) for number, norm in enumerate(norms, start=1)]
    for name, module in (*named, ("linear1", layer.ffn.fc1), ("linear2", layer.ffn.fc2)):
        parameters |= {f"{name}.weight": module.weight, f"{name}.bias": module.bias}
    return parameters


def torch_twin(stack: nn.Module) -> nn.Module:
    """nn.TransformerEncoder or nn.TransformerDecoder with a copy of the weights of our stack."""
    config, name = stack.config, "encoder" if isinstance(stack, VanillaEncoder) else "decoder"
    options = {"dropout": 0.0, "layer_norm_eps": config.layer_norm_eps, "batch_first": True, "norm_first": False}
    heads, d_ff = getattr(config, f"{name}_attention_heads"), getattr(config, f"{name}_ffn_dim")
    layer = getattr(nn, f"Transformer{name.title()}Layer")(config.d_model, heads, d_ff, **options)
    twin = getattr(nn, f"Transformer{name.title()}")(layer, len(stack.layers))
    for theirs, ours in zip(twin.layers, stack.layers, strict=True):
        theirs.load_state_dict(torch_parameters(ours))
    return twin.train()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tied", [True, False])
def test_equals_the_post_ln_transformer_of_torch(make_model, batch, attn, bias, tied):
    """Logits and gradients of the whole model, with padding on the sources' right and the targets' right."""
    model = make_model(attn=attn, attention_bias=bias, tie_word_embeddings=tied)
    source, target = batch.values()
    source_mask, target_mask = torch.ones_like(source), torch.ones_like(target)
    source_mask[0, 5:] = source_mask[2, 2:] = target_mask[1, 4:] = 0

    encoder, decoder = torch_twin(model.model.encoder), torch_twin(model.model.decoder)
    scale = model.config.d_model**0.5
    positions = torch.arange(7.0)[:, None] / 10000 ** (torch.arange(0, 24, 2) / 24)
    positions = torch.stack((positions.sin(), positions.cos()), dim=-1).flatten(1)
    embeddings = {name: p.detach().clone().requires_grad_() for name, p in embedding_matrices(model).items()}
    x = embeddings["encoder"][source] * scale + positions
    y = embeddings["decoder"][target] * scale + positions[:6]
    memory = encoder(x, src_key_padding_mask=source_mask == 0)
    masks = {"tgt_key_padding_mask": target_mask == 0, "memory_key_padding_mask": source_mask == 0}
    y = decoder(y, memory, tgt_mask=torch.ones(6, 6).triu(1).bool(), **masks)
    expected = y @ embeddings["head"].T

    output = model(source, source_mask, target, target_mask)
    close(output.encoder_last_hidden_state[source_mask == 1], memory[source_mask == 1])
    close(output.logits[target_mask == 1], expected[target_mask == 1])

    direction = torch.randn_like(expected) * (target_mask == 1)[..., None]
    (output.logits * direction).sum().backward()
    (expected * direction).sum().backward()
    for twin, stack in ((encoder, model.model.encoder), (decoder, model.model.decoder)):
        for theirs, ours in zip(twin.layers, stack.layers, strict=True):
            assert_same_gradients(theirs, ours, bias)
    theirs = {name: p.grad for name, p in embeddings.items()}
    for name, ours in embedding_matrices(model).items():
        close(ours.grad, sum(theirs.values()) if tied else theirs[name], atol=1e-4)


def embedding_matrices(model) -> dict[str, nn.Parameter]:
    encoder, decoder = model.get_encoder(), model.get_decoder()
    matrices = {"encoder": encoder.embed_tokens, "decoder": decoder.embed_tokens, "head": model.lm_head}
    return {name: module.weight for name, module in matrices.items()}


def assert_same_gradients(theirs: nn.Module, ours: nn.Module, bias: bool) -> None:
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for module in ours.modules():  # lay our gradients out as torch_parameters lays out the parameters
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.grad))
    actual = torch_parameters(ours)
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        if bias or not name.endswith(("in_proj_bias", "out_proj.bias")):  # biases that our layer does not have
            close(actual[name], gradient, atol=1e-4)


# The future, and padding


def pad_to(rows: list[torch.Tensor], length: int, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of unequal length as one batch with arbitrary tokens as padding (pad, EOS, words), and its mask."""
    ids = torch.tensor([0, 2, 11, 0, 7, 2, 30, 0, 2, 9])[:length].repeat(len(rows), 1)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        tokens = slice(-len(row), None) if side == "left" else slice(len(row))
        ids[number, tokens], mask[number, tokens] = row, 1
    return ids, mask


@pytest.fixture
def sentences():
    """Sources of 3, 5 and 8 tokens, targets of 6, 2 and 4."""
    torch.manual_seed(2)
    rows = [torch.randint(4, 41, (n,)) for n in (3, 5, 8, 6, 2, 4)]
    return rows[:3], rows[3:]


LEARNED = {"position_embedding_type": "learned", "max_position_embeddings": 12}
VARIANTS = [{}, LEARNED, {"attention_window": 1}, {"attention_window": 3}]


@pytest.mark.parametrize("config", VARIANTS, ids=str)
@pytest.mark.parametrize("source_side", ["left", "right"])
@pytest.mark.parametrize("target_side", ["left", "right"])
def test_padding_never_changes_a_sentences_output(make_model, sentences, attn, config, source_side, target_side):
    model = make_model(attn=attn, **config)
    sources, targets = sentences
    source, source_mask = pad_to(sources, 10, source_side)
    target, target_mask = pad_to(targets, 8, target_side)
    together = model(source, source_mask, target, target_mask)
    for row, (own_source, own_target) in enumerate(zip(sources, targets, strict=True)):
        alone = model(own_source[None], decoder_input_ids=own_target[None])
        encoded = together.encoder_last_hidden_state[row][source_mask[row] == 1]
        close(encoded, alone.encoder_last_hidden_state[0])
        close(together.logits[row][target_mask[row] == 1], alone.logits[0])


# The cache


@pytest.mark.parametrize("config", VARIANTS, ids=str)
@pytest.mark.parametrize("source_side", ["left", "right"])
def test_prompts_are_continued_as_each_alone(make_model, sentences, attn, config, source_side):
    """Decoder prompts padded on the left, then decoded piece by piece with a decoder_attention_mask for all tokens."""
    model = make_model(attn=attn, **config)
    sources, prompts = sentences
    source, source_mask = pad_to(sources, 10, source_side)
    prompt, mask = pad_to(prompts, 6, "left")
    continuation = torch.randint(4, 41, (3, 3))
    output = model(source, source_mask, prompt, mask, use_cache=True)
    logits = [output.logits[:, -1:]]
    for piece in continuation.split((1, 2), dim=1):
        mask = nn.functional.pad(mask, (0, piece.shape[1]), value=1)
        past = {"encoder_outputs": (output.encoder_last_hidden_state,), "past_key_values": output.past_key_values}
        output = model(None, source_mask, piece, mask, **past)
        assert output.past_key_values.get_seq_length() == mask.shape[1]
        logits.append(output.logits)
    for row, together in enumerate(torch.cat(logits, dim=1)):
        alone = torch.cat((prompts[row], continuation[row]))[None]
        expected = model(sources[row][None], decoder_input_ids=alone, use_cache=False)
        assert expected.past_key_values is None
        close(together, expected.logits[0, len(prompts[row]) - 1 :])


# forward() and generate() take the cache by either of transformers' names

NAMES = ("cache", "past_key_values")


@pytest.mark.parametrize("name", NAMES)
def test_a_decoding_step_takes_the_cache_by_either_name(make_model, batch, name):
    model, (source, target) = make_model(), batch.values()
    expected = model(source, decoder_input_ids=target).logits[:, -1:]
    cache = model(source, decoder_input_ids=target[:, :5], use_cache=True)[1]
    for given, tokens in ((cache, target[:, 5:]), (DynamicCache(), target)):
        close(model(source, decoder_input_ids=tokens, **{name: given}).logits[:, -1:], expected)
    with pytest.raises(ValueError, match="cache and past_key_values are two names"):
        model(source, decoder_input_ids=target, cache=cache, past_key_values=cache)


@pytest.mark.parametrize("beams", [1, 3])
def test_generate_takes_a_plain_cache_by_either_name(make_model, batch, beams):
    model, settings = make_model(), {"input_ids": batch["input_ids"], "num_beams": beams, "max_new_tokens": 9}
    expected = model.generate(**settings).tolist()
    for name in NAMES:
        assert model.generate(**settings, **{name: DynamicCache()}).tolist() == expected, name


@pytest.mark.parametrize("value", [torch.ones(3, 5), DynamicCache()])
def test_an_unknown_argument_that_would_change_the_result_is_refused(make_model, batch, value):
    with pytest.raises(ValueError, match="does not know the argument memory"):
        make_model()(**batch, memory=value)


# Arguments and outputs


def test_inputs_are_either_ids_or_embeddings(make_model, batch):
    model = make_model(tie_word_embeddings=False)
    expected = model(**batch).logits
    source = model.model.encoder.embed_tokens(batch["input_ids"])
    target = model.model.decoder.embed_tokens(batch["decoder_input_ids"])
    close(model(inputs_embeds=source, decoder_inputs_embeds=target).logits, expected)
    with pytest.raises(ValueError, match=r"exactly one of .*input_ids and .*inputs_embeds"):
        model(**batch, inputs_embeds=source)


def test_learned_positions_have_a_limit_that_is_named(make_model, batch):
    with pytest.raises(ValueError, match=r"7 tokens .* max_position_embeddings 6"):
        make_model(position_embedding_type="learned", max_position_embeddings=6)(**batch)


# Training


def test_gradient_checkpointing_changes_neither_loss_nor_gradients(make_model, batch):
    plain, checkpointed = (make_model(dropout=0.1, attention_dropout=0.1).train() for _ in range(2))
    checkpointed.gradient_checkpointing_enable({"use_reentrant": True})  # the stricter kind
    results = []
    for model in (plain, checkpointed):
        torch.manual_seed(0)  # of the dropout masks
        loss = model(input_ids=batch["input_ids"], labels=batch["decoder_input_ids"]).loss
        loss.backward()
        results.append([loss, *(parameter.grad for parameter in model.parameters())])
    close(*results)


# Number formats


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_half_precision_loads_trains_and_is_near_single(make_model, sentences, attn, tmp_path, dtype, tolerance):
    model = make_model(attn=attn)
    model.save_pretrained(tmp_path)
    half = VanillaForConditionalGeneration.from_pretrained(tmp_path, dtype=dtype, attn_implementation=attn)
    inputs = *pad_to(sentences[0], 10, "left"), *pad_to(sentences[1], 8, "left")
    expected, output = (m.eval()(*inputs, labels=inputs[2]) for m in (model, half))
    difference = (output.logits.float() - expected.logits)[inputs[3] == 1]
    assert difference.abs().max() < tolerance * expected.logits.std() * 3
    loss = half.train()(*inputs, labels=inputs[2]).loss
    loss.backward()
    close(torch.stack([output.loss, loss]).float(), expected.loss.expand(2), atol=tolerance)
    assert {parameter.grad.dtype for parameter in half.parameters()} == {output.logits.dtype} == {dtype}
    assert all(parameter.grad.isfinite().all() for parameter in half.parameters())


# Vocabulary


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_resizing_the_vocabulary(make_model, batch, tied):
    model = make_model(tie_word_embeddings=tied, output_bias=True)
    before = model(**batch).logits.detach()
    model.resize_token_embeddings(48)
    matrices = embedding_matrices(model).values()
    assert [model.config.vocab_size, *map(len, matrices)] == [48] * 4 and len({*matrices}) == (1 if tied else 3)
    close(model(**batch).logits[..., :41], before)


# Files


@pytest.mark.parametrize("overrides", [{}, {"tie_word_embeddings": False, "attention_bias": True, "d_k": 5}, LEARNED])
def test_a_saved_model_comes_back_the_same(make_model, batch, tmp_path, overrides):
    """No key is missing, unexpected or of the wrong shape; a matrix of several uses is saved once."""
    model = make_model(**overrides)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert sum(weight.numel() for weight in saved.values()) == model.num_parameters()
    loaded, info = VanillaForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert torch.equal(loaded.eval()(**batch).logits, model(**batch).logits)
