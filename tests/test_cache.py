"""forward() and generate() take the cache by either of transformers' names, and nothing that they do not know."""

from unittest.mock import patch

import pytest
import torch
from transformers.cache_utils import DynamicCache

NAMES = ("cache", "past_key_values")
SEARCHES = {"greedy": {"num_beams": 1, "length_penalty": 1.0}, "beams": {"num_beams": 3}}


@pytest.fixture
def source():
    return {"input_ids": torch.randint(4, 41, (3, 8)), "attention_mask": torch.ones(3, 8, dtype=torch.long)}


@pytest.mark.parametrize("name", NAMES)
def test_a_decoding_step_takes_the_cache_by_either_name(make_model, source, name):
    model, target = make_model(), torch.randint(4, 41, (3, 5))
    expected = model(**source, decoder_input_ids=target).logits[:, -1:]
    cache = model(**source, decoder_input_ids=target[:, :4], use_cache=True)[1]
    for given in (cache, DynamicCache()):
        tokens = target[:, 4:] if given is cache else target
        logits = model(**source, decoder_input_ids=tokens, **{name: given}).logits[:, -1:]
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="cache and past_key_values are two names"):
        model(**source, decoder_input_ids=target, cache=cache, past_key_values=cache)


@pytest.mark.parametrize("search", SEARCHES)
def test_generate_takes_a_plain_cache_by_either_name(make_model, source, search):
    model, settings = make_model(), {**source, **SEARCHES[search], "max_new_tokens": 9}
    expected = model.generate(**settings).tolist()
    for name in NAMES:
        assert model.generate(**settings, **{name: DynamicCache()}).tolist() == expected, name


def test_an_unknown_argument_is_refused_or_named(make_model, source):
    """A tensor or a cache would change the result; of anything else there is one warning."""
    model, inputs = make_model(), {**source, "decoder_input_ids": torch.randint(4, 41, (3, 5))}
    for value in (torch.ones(3, 5), DynamicCache()):
        with pytest.raises(ValueError, match="does not know the argument memory"):
            model(**inputs, memory=value)
    with patch("modeling_vanilla.cache_vanilla.logger.warning_once") as warn:
        model(**inputs, output_atentions=True)
    warn.assert_called_once_with(f"{type(model).__name__}.forward ignores the unknown argument output_atentions")
