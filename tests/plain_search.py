"""What a search is compared with: tensor2tensor's search in plain lists, and every output there is, by brute force."""

import itertools
from collections.abc import Iterable

import torch
from helpers import batch_of, pad_right

from modeling_vanilla import VanillaConfig, VanillaForConditionalGeneration

PAD, BOS, EOS = 0, 1, 2
Scored = tuple[float, list[int]]
SCORED = {"return_dict_in_generate": True, "output_scores": True}


def random_model(seed: int, vocab_size: int = 7, sharpness: float = 0.8, **config) -> VanillaForConditionalGeneration:
    """A tiny model of random weights whose next-token distributions are far from uniform and depend on the prefix."""
    settings = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    settings |= {"d_model": 8, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8} | config
    settings |= {"vocab_size": vocab_size, "tie_word_embeddings": False, "dropout": 0.0}
    model = VanillaForConditionalGeneration(VanillaConfig(**settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=sharpness if name == "lm_head.weight" else 0.4, generator=generator)
    model.generation_config.max_extra_tokens = 4
    return model.eval()


def random_sources(seed: int, lengths: tuple[int, ...] = (1, 4, 2), vocab_size: int = 7) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [[*torch.randint(3, vocab_size, (length - 1,), generator=generator).tolist(), EOS] for length in lengths]


def next_log_probs(model, source: list[int], prefixes: list[list[int]]) -> torch.Tensor:
    """log P(y | prefix, source) of the next token, without cache or padding: (prefixes, V)"""
    sources = torch.tensor([source] * len(prefixes))
    with torch.no_grad():
        logits = model(sources, decoder_input_ids=torch.tensor(prefixes), use_cache=False).logits
    return logits[:, -1].log_softmax(dim=-1)


def log_probs_of(model, source: list[int], generated: list[int]) -> list[float]:
    """log P of each token that was generated, given those before it, from one forward pass over the whole target."""
    target = torch.tensor([[model.generation_config.decoder_start_token_id, *generated[:-1]]])
    with torch.no_grad():
        logits = model(torch.tensor([source]), decoder_input_ids=target).logits[0]
    return logits.log_softmax(dim=-1)[range(len(generated)), generated].tolist()


def penalty(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha


def never(tokens):
    return ()


def search(
    model, source, beams, alpha, limit, prompt=(BOS,), eos=(EOS,), forbidden=never, ends=never, early_stopping=False
) -> tuple[list[Scored], int]:
    """tensor2tensor's beam search for one sentence, in lists.

    Returns the hypotheses as (score, prompt and generated tokens), best first, the finished before the living, and how
    many of them are finished. `forbidden` gives the tokens that may not follow, `ends` whether a hypothesis ends
    without EOS, both from all its tokens.
    """
    alive: list[Scored] = [(0.0, list(prompt))]
    finished: list[Scored] = []
    for length in range(1, limit + 1):
        candidates = []
        log_probs = next_log_probs(model, source, [tokens for _, tokens in alive]).tolist()
        for (total, tokens), row in zip(alive, log_probs, strict=True):
            not_next = set(forbidden(tokens))
            allowed = [token for token in range(len(row)) if token not in not_next]
            candidates += [(total + row[token], [*tokens, token]) for token in allowed]
        candidates = sorted(candidates, reverse=True)[: (1 + len(eos)) * beams]
        ended = [tokens[-1] in eos or ends(tokens) for _, tokens in candidates]
        complete = itertools.compress(candidates, ended)
        finished += [(total / penalty(length, alpha), tokens) for total, tokens in complete]
        finished = sorted(finished, reverse=True)[:beams]
        alive = [candidate for candidate, end in zip(candidates, ended, strict=True) if not end][:beams]
        if not alive:
            break
        if len(finished) == beams:
            out_of_reach = finished[-1][0] > alive[0][0] / max(penalty(limit, alpha), penalty(length + 1, alpha))
            if early_stopping or out_of_reach:
                break
    alive = [(total / penalty(length, alpha), tokens) for total, tokens in alive]
    return finished + alive, len(finished)


def every_output(limit: int, words: Iterable[int] = (0, 1, 3), unfinished: bool = False) -> list[list[int]]:
    """All outputs of at most `limit` tokens: those that end in EOS and, if `unfinished`, those that the limit ends."""
    starts = itertools.chain(*(itertools.product(words, repeat=length) for length in range(limit)))
    at_the_limit = itertools.product(words, repeat=limit) if unfinished else ()
    return [*([*start, EOS] for start in starts), *map(list, at_the_limit)]


def by_score(model, source: list[int], outputs: Iterable[list[int]], alpha: float = 0.6, rule=penalty) -> list[Scored]:
    """The outputs, behind the start token, with their scores, best first."""
    start, scored = model.generation_config.decoder_start_token_id, []
    for length, group in itertools.groupby(sorted(outputs, key=len), key=len):
        rows = torch.tensor([*group])
        read = torch.nn.functional.pad(rows[:, :-1], (1, 0), value=start)
        with torch.no_grad():
            logits = model(torch.tensor([source] * len(rows)), decoder_input_ids=read).logits
        totals = logits.log_softmax(dim=-1).gather(2, rows[..., None]).sum(dim=(1, 2)).tolist()
        scored += [(total / rule(length, alpha), [start, *y]) for total, y in zip(totals, rows.tolist(), strict=True)]
    return sorted(scored, reverse=True)


def assert_finds(model, sources: list[list[int]], expected: list[Scored], message: str = "", **settings) -> None:
    """generate() returns these tokens and scores."""
    inputs, sequences = batch_of(sources), pad_right([tokens for _, tokens in expected]).tolist()
    # Asked for the sequences alone, the search may drop sentences that are done; asked for each step's scores, not.
    assert model.generate(**inputs, **settings).tolist() == sequences, message
    output = model.generate(**inputs, **settings, **SCORED)
    assert output.sequences.tolist() == sequences, message
    scores = torch.tensor([score for score, _ in expected])
    torch.testing.assert_close(output.sequences_scores, scores, rtol=1e-4, atol=1e-4)


def meets(tokens: list[int], phrases: list[list[int]]) -> bool:
    """Whether each phrase stands in the tokens."""
    starts = range(len(tokens))
    return all(any(tokens[start : start + len(phrase)] == phrase for start in starts) for phrase in phrases)
