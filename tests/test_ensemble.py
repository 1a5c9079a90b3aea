"""An ensemble of one is that one; of several it is the mean of their probabilities, whatever the search does."""

import pytest
import torch
from helpers import batch_of, pad_right
from plain_search import BOS, EOS, every_output, penalty

from modeling_vanilla.inference.ensemble import Ensemble

SOURCES = [[3, 4, EOS], [4, 3, 4, 3, EOS], [EOS]]


@pytest.fixture
def members(make_model):
    """Three of six tokens, whose distributions are far from uniform, each with sizes of its own."""
    learned = {"position_embedding_type": "learned", "max_position_embeddings": 24}
    sizes = ({}, {"d_model": 16, "decoder_layers": 1}, learned)
    members = [make_model(seed=seed, vocab_size=6, **own) for seed, own in enumerate(sizes, start=1)]
    for member in members:
        member.generation_config.max_extra_tokens = 1
    return members


def mean_log_probs(members, source: list[int], prefix: list[int]) -> torch.Tensor:
    """log of the members' mean probability of the next token, without cache or padding: (V,)"""
    inputs = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([prefix]), "use_cache": False}
    with torch.no_grad():
        probabilities = [member(**inputs).logits[0, -1].softmax(dim=-1) for member in members]
    return (sum(probabilities) / len(members)).log()


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_logits_are_the_log_of_the_mean_probability(members, dtype, atol):
    """Also of members of different precisions."""
    source, target = SOURCES[1], [BOS, 4, 5]
    expected = torch.stack([mean_log_probs(members, source, target[:length]) for length in (1, 2, 3)])
    ensemble = Ensemble([*members[:2], members[2].to(dtype)])
    inputs = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([target])}
    with torch.no_grad():
        logits = ensemble(**inputs).logits[0]
    torch.testing.assert_close(logits, expected, atol=atol, rtol=0)


@pytest.mark.parametrize("chosen", [(0,), (1, 0), (2, 1)], ids=str)
def test_beam_search_equals_brute_force(members, chosen):
    """Sources of 1 and 2 tokens end at 2 and 3: the first leaves the batch while the second is still searched."""
    chosen, sources, expected = [members[number] for number in chosen], [[EOS], [4, EOS]], []
    for source in sources:
        scored = []
        for y in every_output(len(source) + 1, words=(0, 1, 3, 4, 5)):
            steps = [mean_log_probs(chosen, source, [BOS, *y[:step]])[token].item() for step, token in enumerate(y)]
            scored.append((sum(steps) / penalty(len(y), 0.6), y))
        expected += [[BOS, *y] for _, y in sorted(scored, reverse=True)[:3]]
    # 5 * 5 living beams hold every sequence that there is.
    settings = {"num_beams": 25, "num_return_sequences": 3, "length_penalty": 0.6}
    for use_cache in (True, False):
        found = Ensemble(chosen).generate(**batch_of(sources), **settings, use_cache=use_cache)
        assert found.tolist() == pad_right(expected).tolist()


def test_members_of_different_vocabularies_are_refused(make_model):
    with pytest.raises(ValueError, match="one vocabulary: member 2 has vocab_size 42, not 41"):
        Ensemble([make_model(), make_model(vocab_size=42)])
