"""Section 6.1: the search equals brute force and a plain list-based reference, and all else generate() offers works."""

import functools
import itertools
import math
import re
import string

import plain_search as plain
import pytest
import torch
from helpers import batch_of, make_tokenizer, pad_right
from plain_search import BOS, EOS, PAD, SCORED, assert_finds, random_model, random_sources
from transformers import EosTokenCriteria, GenerationConfig, GenerationMixin, StaticCache, WatermarkingConfig
from transformers.cache_utils import EncoderDecoderCache

from modeling_vanilla.cache_vanilla import CACHE
from modeling_vanilla.generation_vanilla import default_generation_config
from modeling_vanilla.search_vanilla import BeamSearch

ALPHAS = (0.0, 0.6, 1.0)
assert_close = functools.partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


def assert_equals_search(model, sources, beams, alpha, returned=1, message="", generate=None, extra=4, **rules):
    """generate() on the batch gives what search() gives sentence by sentence; returns its outcomes."""
    outcomes = [plain.search(model, source, beams, alpha, len(source) + extra, **rules) for source in sources]
    expected = [hypothesis for hypotheses, _ in outcomes for hypothesis in hypotheses[:returned]]
    settings = {"num_beams": beams, "length_penalty": alpha, "num_return_sequences": returned}
    assert_finds(model, sources, expected, message, **settings, max_extra_tokens=extra, **(generate or {}))
    return outcomes


def best(model, sources, beams, alpha=0.6, extra=4, **rules) -> list[list[int]]:
    """The tokens that search() finds, padded: what generate() shall give."""
    rows = [plain.search(model, source, beams, alpha, len(source) + extra, **rules)[0][0][1] for source in sources]
    return pad_right(rows).tolist()


def words_only(input_ids, scores):
    """A logits processor: no EOS, so that nothing but the limit ends the search, and no PAD, which then pads alone."""
    return scores.index_fill(1, torch.tensor([PAD, EOS]), -math.inf)


# The search


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_wide_beam_equals_brute_force(alpha):
    """Tokens 0, 1, 3 and EOS: 3^4 beams hold every sequence of at most 4 tokens."""
    settings = {"num_beams": 3**4, "length_penalty": alpha, "num_return_sequences": 5, "max_extra_tokens": 2}
    for seed in range(6):
        model, sources = random_model(seed, vocab_size=4), random_sources(seed, (1, 2), vocab_size=4)
        expected = []
        for source in sources:
            expected += plain.by_score(model, source, plain.every_output(len(source) + 2), alpha)[:5]
        assert_finds(model, sources, expected, f"seed {seed}", **settings)


@pytest.mark.parametrize("beams", (2, 5))
@pytest.mark.parametrize("alpha", (-2.0, *ALPHAS))
def test_search_equals_the_plain_reference(alpha, beams):
    """8 x 12 batches of 3 sentences, one or all hypotheses returned. A negative alpha favours short output."""
    ends = set()
    for seed in range(12):
        model, sources, returned = random_model(seed), random_sources(seed), beams if seed % 2 else 1
        outcomes = assert_equals_search(model, sources, beams, alpha, returned, f"seed {seed}")
        ends |= {len(hypotheses[0][1]) if finished else "never" for hypotheses, finished in outcomes}
    assert len(ends) >= (1 if alpha < 0 else 4)  # or the models would be too dull to tell one search from another


def ends_with_4(input_ids, scores, **kwargs):
    return input_ids[:, -1] == 4


def repeats(tokens):
    """Tokens that would make a pair of tokens occur twice."""
    return {second for first, second in itertools.pairwise(tokens) if first == tokens[-1]}


RULES = {  # what generate() is given, and the same for search()
    "too few finish, and the living follow": ({}, {"extra": 1}),
    "early stopping": ({"early_stopping": True}, {"early_stopping": True}),
    "nothing finishes": ({"logits_processor": [words_only]}, {"forbidden": lambda tokens: [PAD, EOS]}),
    "two end tokens": ({"eos_token_id": [EOS, 5]}, {"eos": (EOS, 5)}),
    "no pair twice": ({"no_repeat_ngram_size": 2}, {"forbidden": repeats}),
    "a stopping criterion": ({"stopping_criteria": [ends_with_4]}, {"ends": lambda tokens: tokens[-1] == 4}),
    "one of tokens": ({"stopping_criteria": [EosTokenCriteria(4)]}, {"ends": lambda tokens: tokens[-1] == 4}),
}


@pytest.mark.parametrize("rule", RULES)
def test_search_under_a_rule_equals_the_plain_reference(rule):
    generate, rules = RULES[rule]
    lasts = set()
    for seed in range(8):
        model, sources, alpha = random_model(seed), random_sources(seed), (0.6, 1.0)[seed % 2]
        outcomes = assert_equals_search(model, sources, 3, alpha, 3, f"seed {seed}", generate, **rules)
        lasts |= {hypotheses[0][1][-1] for hypotheses, finished in outcomes if finished}
    expected = {"two end tokens": {EOS, 5}, "nothing finishes": set()}
    expected |= {rule: {EOS, 4} for rule in ("a stopping criterion", "one of tokens")}
    assert lasts == expected.get(rule, {EOS})


@pytest.mark.parametrize("beams", (1, 3))
def test_the_source_may_have_other_forms(beams):
    """Padding on the left, no mask, the encoder's outputs, embeddings and a mask of floats (PEFT's)."""
    for seed in range(4):
        model, inputs = random_model(seed), batch_of(random_sources(seed, (3, 6, 1)))
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        order = mask.argsort(dim=1, stable=True)
        forms = [
            {"input_ids": ids.gather(1, order), "attention_mask": mask.gather(1, order)},
            {"input_ids": ids},
            {"encoder_outputs": model.get_encoder()(**inputs), "attention_mask": mask},
            {"inputs_embeds": model.get_input_embeddings()(ids), "attention_mask": mask.float()},
        ]
        expected = model.generate(**inputs, num_beams=beams).tolist()
        assert [model.generate(**form, num_beams=beams).tolist() for form in forms] == [expected] * 4


def test_beam_search_continues_a_cache():
    """In which each beam has a row, as in those that transformers returns."""
    beams = 3
    for seed in range(3):
        model, inputs = random_model(seed, decoder_layers=2), batch_of(random_sources(seed, (3, 6, 4)))
        given = {**inputs, "num_beams": beams, "max_new_tokens": 4}
        prompt = torch.tensor([[BOS, 5, 4], [BOS, 3, 3], [BOS, 6, 5]])
        expected = model.generate(**given, decoder_input_ids=prompt)
        rows = {name: value.repeat_interleave(beams, 0) for name, value in inputs.items()}
        read = model(**rows, decoder_input_ids=prompt[:, :2].repeat_interleave(beams, 0), use_cache=True)
        assert model.generate(**given, decoder_input_ids=prompt, **{CACHE: read[CACHE]}).tolist() == expected.tolist()
        whole = model(**rows, decoder_input_ids=prompt.repeat_interleave(beams, 0), use_cache=True)
        with pytest.raises(ValueError, match="the cache has all tokens of the prompt"):
            model.generate(**given, decoder_input_ids=prompt, **{CACHE: whole[CACHE]})


@pytest.mark.parametrize("beams", (1, 3))
def test_a_prompt_without_the_start_token_does_not_shorten_the_output(beams):
    given = {"num_beams": beams, "logits_processor": [words_only], "max_extra_tokens": 4}
    for prompt in ([BOS, 5, 4], [5, 4]):
        assert random_model(0).generate(
            torch.tensor([[3, EOS]]), decoder_input_ids=torch.tensor([prompt]), **given
        ).shape == (1, 9)


@pytest.mark.parametrize("beams", (1, 3))
def test_a_negative_token_means_none(beams):
    given = {**batch_of(random_sources(0, (3, 9, 4))), "num_beams": beams, "max_extra_tokens": 4, "pad_token_id": None}

    def generated(model, **tokens):
        return model.generate(**{**given, **tokens}).tolist()

    built, plain = random_model(0, pad_token_id=-1), random_model(0)
    assert generated(built, pad_token_id=-1) == generated(plain, pad_token_id=-1) == generated(plain)
    assert generated(plain, eos_token_id=-1) == generated(plain, eos_token_id=None)


def test_a_search_without_a_length_penalty_has_that_of_the_paper():
    model, inputs = random_model(0), batch_of(random_sources(0))
    given = {**inputs, "max_extra_tokens": 4, "logits_processor": [words_only], **SCORED}
    expected = model.generate(**given, num_beams=4, length_penalty=0.6)
    tokens = {name: getattr(model.config, name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    model.generation_config = GenerationConfig(num_beams=4, max_new_tokens=50, **tokens)
    for _ in range(2):
        output = model.generate(**given)
        assert output.sequences_scores.tolist() == expected.sequences_scores.tolist()
        # As Seq2SeqTrainer does after each batch.
        model.generation_config.update(**GenerationConfig._get_default_generation_params(), defaults_only=True)


# Cache, greedy search


@pytest.mark.parametrize("beams", (1, 3))
@pytest.mark.parametrize("config", [{}, {"position_embedding_type": "learned"}, {"attention_window": 3}], ids=str)
def test_the_cache_changes_nothing(beams, config):
    for seed in range(3):
        model, inputs = random_model(seed, decoder_layers=2, **config), batch_of(random_sources(seed, (1, 9, 4, 6)))
        expected = model.generate(**inputs, num_beams=beams, use_cache=False).tolist()
        assert model.generate(**inputs, num_beams=beams).tolist() == expected
        assert model.generate(**inputs, num_beams=beams, cache_implementation="static").tolist() == expected


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_a_step_with_a_static_cache_is_one_graph(kind):
    """generate() compiles it so on a GPU."""
    model = random_model(0, position_embedding_type=kind)
    cache = EncoderDecoderCache(*(StaticCache(model.config, max_cache_len=length) for length in (8, 2)))
    inputs = {"encoder_outputs": model.get_encoder()(torch.tensor([[4, EOS]])), "cache": cache}
    with torch.no_grad():
        model(**inputs, decoder_input_ids=torch.tensor([[BOS]]))
        found = torch._dynamo.explain(model.forward)(**inputs, decoder_input_ids=torch.tensor([[5]]))
    assert (found.graph_count, found.break_reasons) == (1, [])


# Length


# What is given, and the length of the output of sources of 2 and of 5 tokens, start token included.
LIMITS = [
    ({}, (1 + 2 + 4, 1 + 5 + 4)),
    ({"max_extra_tokens": 0}, (3, 6)),
    ({"max_extra_tokens": 0, "of the model": {"eos_token_id": None}}, (3, 6)),
    ({"of the configuration": {"position_embedding_type": "learned", "max_position_embeddings": 6}}, (6, 6)),
    ({"max_new_tokens": 2}, (3, 3)),
    ({"generation_config": GenerationConfig(max_length=4)}, (4, 4)),
    # A limit of the call wins.
    ({"max_length": 5, "max_extra_tokens": 9}, (5, 5)),
    ({"of the model": {"max_length": 9}, "generation_config": GenerationConfig(max_extra_tokens=2)}, (5, 8)),
    # Else one of the model, but for the 20 of Seq2SeqTrainer; max_extra_tokens, 4 there, comes last.
    ({"of the model": {"max_length": 4}}, (4, 4)),
    ({"of the model": {"max_new_tokens": 4}}, (5, 5)),
    ({"of the model": {"max_length": 20}}, (7, 10)),
    ({"of the model": {"max_new_tokens": 8}, "max_length": 5}, (5, 5)),
    ({"of the model": {"max_length": 4}, "max_extra_tokens": 1}, (4, 7)),
    # A configuration may be a copy of the model's.
    ({"of the model": {"max_length": 20}, "generation_config": GenerationConfig(max_length=20)}, (7, 10)),
    # Else what transformers does.
    ({"of the model": {"max_length": 20, "max_extra_tokens": None}}, (20, 20)),
]


@pytest.mark.parametrize("beams", (1, 2))
@pytest.mark.parametrize(("given", "lengths"), LIMITS)
def test_the_limit_of_each_row(beams, given, lengths):
    given = dict(given)
    model = random_model(0, **given.pop("of the configuration", {}))
    model.generation_config.update(num_beams=beams, length_penalty=1.0, **given.pop("of the model", {}))
    output = model.generate(**batch_of([[4, EOS], [4, 5, 6, 5, EOS]]), logits_processor=[words_only], **given)
    assert (output != PAD).sum(dim=1).tolist() == list(lengths)
    assert output.shape[1] == lengths[1] and output.is_contiguous()  # or safetensors would not save it


# Logits processors, stopping criteria, prompts


@pytest.mark.parametrize("prompts", ([[BOS]] * 3, [[BOS, 5, 3], [BOS, 4, 4], [BOS, 6, 5]]), ids=("no", "yes"))
def test_greedy_and_beam_search_behind_a_forced_prefix(prompts):
    for seed in range(8):
        model, sources = random_model(seed), random_sources(seed)
        given = {**batch_of(sources), "decoder_input_ids": torch.tensor(prompts)}
        pairs = list(zip(sources, prompts, strict=True))
        expected = pad_right([greedy(model, *pair) for pair in pairs])
        assert model.generate(**given, num_beams=1).tolist() == expected.tolist()
        expected = pad_right([best(model, [source], 3, prompt=prompt)[0] for source, prompt in pairs])
        assert model.generate(**given, num_beams=3).tolist() == expected.tolist()


def greedy(model, source, prompt):
    tokens = list(prompt)
    while len(tokens) - len(prompt) < len(source) + 4 and (len(tokens) == len(prompt) or tokens[-1] != EOS):
        tokens.append(plain.next_log_probs(model, source, [tokens]).argmax().item())
    return tokens


def test_processors_and_criteria_find_each_sentence_at_its_row():
    """Also when other sentences are done: both may keep something for each sentence, and know it by its row."""
    allowed, last = [{3, 4, EOS}, {5, 6, EOS}, {0, 1, EOS}], torch.tensor([3, 6, 1])

    def ends_with_its_own(input_ids, scores, **kwargs):
        return (input_ids[:, -1].view(3, -1) == last[:, None]).flatten()

    for seed in range(8):
        model, sources = random_model(seed), random_sources(seed, (2, 9, 5))
        expected = []
        for source, may, end in zip(sources, allowed, last.tolist(), strict=True):
            rules = {"forbidden": lambda _, may=may: set(range(7)) - may, "ends": lambda y, end=end: y[-1] == end}
            expected += best(model, [source], 3, **rules)
        ids, mask = batch_of(sources).values()
        given = ids, None, [], [ends_with_its_own], lambda row, tokens: sorted(allowed[row])  # by transformers' order
        output = model.generate(*given, num_beams=3, attention_mask=mask)
        assert output.tolist() == pad_right(expected).tolist(), f"seed {seed}"


BY_ITSELF = {"renormalize_logits": True, "remove_invalid_values": True, "forced_bos_token_id": 5, "min_length": 3}
BY_ITSELF |= {"suppress_tokens": [5], "begin_suppress_tokens": [5], "bad_words_ids": [[5]], "forced_eos_token_id": EOS}
BY_ITSELF |= {"sequence_bias": {(5,): -1.0}, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5, "min_new_tokens": 2}
BY_ITSELF |= {"exponential_decay_length_penalty": (2, 1.1), "watermarking_config": WatermarkingConfig()}
AT_ITS_ROW = {"encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 1}


@pytest.mark.parametrize(("setting", "value"), [*BY_ITSELF.items(), *AT_ITS_ROW.items()])
def test_sentences_leave_the_batch_unless_a_processor_finds_them_at_their_rows(setting, value):
    """The decoder gets fewer rows than with another processor, which is unknown and changes nothing."""
    model, rows = random_model(0), []
    given = {**batch_of(random_sources(0, (1, 9, 2))), "num_beams": 3, setting: value}
    model.get_decoder().embed_tokens.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    expected, count = model.generate(**given).tolist(), sum(rows)
    unknown = lambda input_ids, scores: scores  # noqa: E731
    unknown.never_raises = True
    assert model.generate(**given, logits_processor=[unknown]).tolist() == expected
    assert (count < sum(rows) - count) == (setting in BY_ITSELF)


def test_a_model_whose_beams_are_set_to_one_is_saved(tmp_path):
    """transformers refuses to save what only beams use; with beams, the saved model has the alpha of 6.1."""
    model, sources = random_model(0), batch_of(random_sources(0, (3, 1, 4)))
    model.generation_config = default_generation_config(model.config)
    expected = {beams: model.generate(**sources, num_beams=beams).tolist() for beams in (1, 4)}
    model.generation_config.update(num_beams=1, early_stopping=True)
    model.save_pretrained(tmp_path)
    loaded, kept = type(model).from_pretrained(tmp_path), model.generation_config
    loaded.generation_config.save_pretrained(tmp_path)
    assert loaded.generation_config.num_beams == 1 and (kept.length_penalty, kept.early_stopping) == (0.6, True)
    assert loaded.generate(**sources).tolist() == expected[1]
    assert loaded.generate(**sources, num_beams=4).tolist() == expected[4]


@pytest.mark.parametrize("beams", [1, 3])
def test_eos_is_forced_at_the_limit_of_each_sentence(beams):
    """As of a sentence by itself."""
    settings = {"num_beams": beams, "forced_eos_token_id": [EOS], "max_extra_tokens": 0}
    for seed in range(4):
        model, sources = random_model(seed, sharpness=0.1), random_sources(seed, (2, 9, 4))
        alone = [model.generate(**batch_of([source]), **settings)[0].tolist() for source in sources]
        assert model.generate(**batch_of(sources), **settings).tolist() == pad_right(alone).tolist()
        assert all(EOS in tokens for tokens in alone)


class ToTheLimit(BeamSearch):
    def done(self):
        return torch.zeros(len(self.limits), dtype=torch.bool)


RAISING = [{"exponential_decay_length_penalty": (1, 1.8)}, {"sequence_bias": {(5,): 3.0}}]
RAISING += [{"logits_processor": [lambda input_ids, scores: scores + 1]}]


@pytest.mark.parametrize("setting", RAISING)
def test_no_hypothesis_beats_the_best_where_scores_may_rise(setting):
    for seed in range(8):
        model, inputs = random_model(seed), batch_of(random_sources(seed))
        settings = {"num_beams": 3, "max_extra_tokens": 8, **setting}
        expected = model.generate(**inputs, **settings, search=ToTheLimit)
        assert model.generate(**inputs, **settings).tolist() == expected.tolist()


def test_stop_strings_end_a_hypothesis_as_in_transformers():
    """Under its rules; but for the padding, of which it makes EOS where the pad token is 0."""
    tokenizer, stops = make_tokenizer(["a b c"]), string.ascii_lowercase
    settings = {"stop_strings": [*stops], "tokenizer": tokenizer, "num_beams": 3, "max_new_tokens": 8}
    texts = []
    for seed in range(4):
        model = random_model(seed, vocab_size=len(tokenizer))
        inputs = batch_of(random_sources(seed, vocab_size=len(tokenizer)))
        theirs = GenerationMixin.generate(model, **inputs, **settings)
        ours = model.generate(**inputs, **settings, length_penalty_type="length")
        texts += tokenizer.batch_decode(ours, skip_special_tokens=True)
        assert texts[-len(ours) :] == tokenizer.batch_decode(theirs, skip_special_tokens=True)
    assert any(text[-1] in stops for text in texts)


# What return_dict_in_generate returns


@pytest.mark.parametrize("alpha", ALPHAS)
def test_scores_can_be_recomputed(alpha):
    for seed in range(4):
        model, sources = random_model(seed), random_sources(seed)
        settings = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": alpha, "output_logits": True}
        output = model.generate(**batch_of(sources), **settings, **SCORED)
        transition = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
        assert transition.shape == output.beam_indices.shape == output.sequences[:, 1:].shape
        assert_close(output.token_log_probs, transition)
        assert output.scores[0].shape == (3 * 4, 7)
        assert_close(output.scores, tuple(logits.log_softmax(dim=-1) for logits in output.logits))


@pytest.mark.parametrize("beams", (1, 3))
def test_attentions_hidden_states_and_logits_are_those_of_a_forward_pass(beams):
    """Of each step of the returned hypothesis, up to the one that gives EOS."""
    model, sources = random_model(4, decoder_layers=2), random_sources(4)
    details = {"output_attentions": True, "output_hidden_states": True}
    output = model.generate(**batch_of(sources), num_beams=beams, output_logits=True, **details, **SCORED)
    for row, source in enumerate(sources):
        width, tokens = len(source), output.sequences[row].tolist()
        steps = tokens.index(EOS) if EOS in tokens else width + 4
        path = output.beam_indices[row, :steps].tolist() if beams > 1 else [row] * steps
        with torch.no_grad():
            forward = model(torch.tensor([source]), decoder_input_ids=torch.tensor([tokens[:steps]]), **details)
        for step, beam in enumerate(path):
            cross, states = output.cross_attentions[step][1][beam], output.decoder_hidden_states[step][2][beam]
            assert_close(cross[:, 0, :width], forward.cross_attentions[1][0, :, step])
            assert_close(states[0], forward.decoder_hidden_states[2][0, step])
            assert_close(output.logits[step][beam], forward.logits[0, step])
        assert_close(output.encoder_attentions[0][row, :, :width, :width], forward.encoder_attentions[0][0])


# What is refused

ODD_SETTINGS = [
    ({"num_beams": 0}, "num_beams must be a whole number of at least 1, not 0"),
    ({"length_penalty_type": "log"}, "length_penalty_type must be gnmt or length, not 'log'"),
    ({"length_penalty": math.nan}, "length_penalty must be a number from -10 to 10, not nan"),
    ({"streamer": "any"}, "beam search takes no streamer"),
]


@pytest.mark.parametrize(("given", "message"), ODD_SETTINGS, ids=lambda value: str(value)[:40])
def test_generate_names_the_setting_that_means_nothing(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        random_model(0).generate(torch.tensor([[3, EOS]]), **{"num_beams": 4} | given)
