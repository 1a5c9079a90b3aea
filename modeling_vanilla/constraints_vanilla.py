"""What an output has to contain and to begin with.

For phrases that it has to contain, beams are allocated dynamically by the algorithm of Post & Vilar 2018
(arXiv:1804.06609), on tensors as in Hu et al. 2019 (N19-1090): hypotheses that lack as many tokens form a bank, and the
banks share the beams. A phrase is met where its tokens follow each other anywhere in the output, the prompt included.

Axes: B sentences, K hypotheses, C phrases of a sentence, A alternatives of a phrase, L tokens, V vocabulary.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import LogitsProcessor

from .cpu_vanilla import top_sums

Phrases = list[list[list[int]]]  # of a sentence: of each phrase its alternatives, of each alternative its tokens


def phrases_of(force_words_ids: list, sentences: int, eos: Sequence[int], vocab_size: float) -> list[Phrases]:
    """The phrases of each sentence.

    Args:
        force_words_ids: as transformers had it, for all sentences alike: phrases, lists of token ids, or in place of a
            phrase a list of alternatives, of which one is enough. Or a list of such lists, one for each sentence, where
            every phrase is a list of alternatives.

    Raises:
        ValueError: if it is none of these; if the number of sentences differs; for a phrase that is empty or contains
            EOS or what is no token.
    """
    depth = _depth(force_words_ids)
    if depth not in (2, 3, 4):
        raise ValueError(f"force_words_ids must be phrases, which are lists of token ids, not {force_words_ids!r:.60}")
    if depth == 4 and len(force_words_ids) != sentences:
        raise ValueError(f"force_words_ids are of {len(force_words_ids)} sentences, the batch has {sentences}")
    alike = [[one if _depth(one) == 2 else [one] for one in force_words_ids]] if depth < 4 else force_words_ids
    if not all(alternatives for of_sentence in alike for alternatives in of_sentence):
        raise ValueError(f"force_words_ids has a phrase without alternatives: {force_words_ids!r:.60}")
    for phrase in (phrase for of_sentence in alike for alternatives in of_sentence for phrase in alternatives):
        if not isinstance(phrase, list) or not phrase:
            raise ValueError(f"force_words_ids has a phrase without tokens: {phrase!r:.60}")
        for token in phrase:
            if not isinstance(token, int) or not 0 <= token < vocab_size:
                raise ValueError(f"force_words_ids must hold tokens from 0 to {vocab_size - 1}, not {token!r:.60}")
            if token in eos:
                raise ValueError(f"force_words_ids must not contain the end-of-sentence token {token}: {phrase!r:.60}")
    return alike if depth == 4 else alike * sentences


def _depth(value) -> int:
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _fitting(phrases: Phrases, limit: int) -> Phrases:
    """The phrases without those for which the ones before leave no room."""
    fitting = []
    for alternatives in phrases:
        shortest = min(map(len, alternatives))
        if shortest <= limit:
            limit -= shortest
            fitting.append(alternatives)
    return fitting


@dataclass(frozen=True)
class Constraints:
    """The phrases of B sentences, and how much of them K hypotheses of each contain."""

    phrases: torch.Tensor  # (B, C, A, L), -1 past the end
    matched: torch.Tensor  # (B, K, C, A, L), whether the last l + 1 tokens are the first l + 1 of the phrase
    met: torch.Tensor  # (B, K, C), whether an alternative has occurred; True where there is no phrase

    @classmethod
    def start(cls, phrases: list[Phrases], prompts: torch.Tensor, limits: torch.Tensor) -> "Constraints":
        """Behind prompts (B, K, length). Phrases that together are longer than a sentence's limit (B,) are left out,
        the last ones first."""
        fitting = [_fitting(one, limit) for one, limit in zip(phrases, limits.tolist(), strict=True)]
        alternatives = [one for of_sentence in fitting for one in of_sentence]
        sizes = (
            max(1, *map(len, fitting)),
            max(map(len, alternatives), default=1),
            max((len(tokens) for one in alternatives for tokens in one), default=1),
        )
        table = torch.full((len(fitting), *sizes), -1)
        for b, of_sentence in enumerate(fitting):
            for c, one in enumerate(of_sentence):
                for a in range(sizes[1]):
                    tokens = one[a % len(one)]  # repeated up to A
                    table[b, c, a, : len(tokens)] = torch.tensor(tokens)
        table = table.to(prompts.device)
        matched = torch.zeros((*prompts.shape[:2], *sizes), dtype=torch.bool, device=prompts.device)
        met = (table[:, None, :, 0, 0] < 0).expand(matched.shape[:3])
        constraints, parent = cls(table, matched, met), torch.arange(prompts.shape[1], device=prompts.device)
        for step in range(1, prompts.shape[2]):  # behind the start token
            constraints = constraints.extend(parent.expand(prompts.shape[:2]), prompts[..., step])
        return constraints

    def of(self, sentences: torch.Tensor) -> "Constraints":
        """Those of some sentences, given as a mask (B,) or as indices."""
        return Constraints(*(value[sentences] for value in vars(self).values()))

    def gather(self, index: torch.Tensor) -> "Constraints":
        """Those of the hypotheses at `index` (B, k)."""
        sentences = torch.arange(index.shape[0], device=index.device)[:, None]
        return replace(self, matched=self.matched[sentences, index], met=self.met[sentences, index])

    def extend(self, parent: torch.Tensor, token: torch.Tensor) -> "Constraints":
        """Of hypotheses that continue those at `parent` (B, k) by `token` (B, k)."""
        old = self.gather(parent)
        # The shift-and algorithm of Baeza-Yates & Gonnet 1992.
        before = nn.functional.pad(old.matched[..., :-1], (1, 0), value=True)
        matched = before & (token[..., None, None, None] == self.phrases[:, None])
        last = torch.arange(matched.shape[-1], device=token.device) == self._lengths[..., None] - 1
        return replace(self, matched=matched, met=old.met | (matched & last[:, None]).any(-1).any(-1))

    @property
    def _lengths(self) -> torch.Tensor:
        """(B, C, A)"""
        return (self.phrases >= 0).sum(dim=-1)

    def _begun(self) -> torch.Tensor:
        """How many tokens of an alternative, at most, its hypothesis ends in. (B, K, C, A)"""
        return (self.matched * torch.arange(1, self.matched.shape[-1] + 1, device=self.met.device)).amax(dim=-1)

    def lacking(self) -> torch.Tensor:
        """With how many further tokens a hypothesis meets all phrases: one as it has begun, the others whole. (B, K)"""
        whole = self._lengths.amin(dim=-1)[:, None].masked_fill(self.met, 0)
        rest = (self._lengths[:, None] - self._begun()).amin(dim=-1).masked_fill(self.met, 0)
        return whole.sum(dim=-1) - (whole - rest).amax(dim=-1)

    def next_tokens(self) -> torch.Tensor:
        """The token with which each unmet alternative goes on, -1 where there is none. (B, K, C * A)"""
        longest = self.phrases.shape[-1] - 1
        phrases = self.phrases[:, None].expand(self.matched.shape)
        token = phrases.gather(-1, self._begun().clamp(max=longest)[..., None]).squeeze(-1)
        return token.masked_fill(self.met[..., None], -1).flatten(2)

    def top_sums(self, score: torch.Tensor, log_probs: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As `top_sums` of cpu_vanilla.py, with the candidates of Post & Vilar beside the k best: for each hypothesis
        its best token and those with which a phrase goes on. A sentence without phrases has the k best alone."""
        vocab_size = log_probs.shape[-1]
        best, index = top_sums(score, log_probs, k)
        tokens = torch.cat((log_probs.argmax(dim=-1, keepdim=True), self.next_tokens()), dim=-1)
        nowhere = (tokens < 0) | (self.phrases < 0).flatten(1).all(dim=-1)[:, None, None]
        first = torch.arange(score.shape[1], device=score.device)[:, None] * vocab_size
        more = (score[..., None] + log_probs.gather(-1, tokens.clamp(min=0))).masked_fill(nowhere, -torch.inf)
        best = torch.cat((best, more.flatten(1)), dim=1)
        index = torch.cat((index, (first + tokens).masked_fill(nowhere, -1).flatten(1)), dim=1)
        index, order = index.sort(dim=-1)
        again = nn.functional.pad(index[:, 1:] == index[:, :-1], (1, 0))
        best, order = best.gather(1, order).masked_fill(again, -torch.inf).sort(dim=-1, descending=True)
        return best, index.gather(1, order).clamp(min=0)

    def rank(self, score: torch.Tensor) -> torch.Tensor:
        """How many hypotheses before each, best first by `score` (B, K), are in the same bank: (B, K), K for -inf."""
        bank = self.lacking()
        possible = score > -torch.inf
        same = (bank[:, :, None] == bank[:, None, :]) & possible[:, None, :]
        return same.tril(diagonal=-1).sum(dim=-1).masked_fill(~possible, score.shape[1])

    def allocate(self, score: torch.Tensor, beams: int) -> torch.Tensor:
        """Which of the hypotheses fill the beams, by `score` (B, K) best first. (B, beams)

        The banks take turns, each with its best, and the bank that lacks least begins.
        """
        bank = self.lacking()
        turn = self.rank(score) * (bank.max() + 1) + bank
        chosen = turn.topk(min(beams, turn.shape[1]), largest=False).indices
        return chosen.gather(1, score.gather(1, chosen).argsort(dim=1, descending=True))


class ForcedPrefix(LogitsProcessor):
    """Lets the output of each sentence begin with given tokens, in any search; their probabilities count as they are.

    Args:
        prefixes: the tokens of each sentence of the batch, behind the start token; empty for none.
    """

    def __init__(self, prefixes: Sequence[Sequence[int]]):
        rows = [torch.tensor(prefix, dtype=torch.long) for prefix in prefixes]
        self.prefixes = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)  # (B, longest)

    def of(self, sentences: torch.Tensor) -> "ForcedPrefix":
        """For some sentences of the batch, given as a mask (B,) or as indices."""
        remaining = copy.copy(self)
        remaining.prefixes = self.prefixes[sentences.cpu()]
        return remaining

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """input_ids (rows, length), as many rows of each sentence; scores (rows, V)."""
        step = input_ids.shape[1] - 1
        if step >= self.prefixes.shape[1]:
            return scores
        rows = len(input_ids) // len(self.prefixes)  # of each sentence
        token = self.prefixes[:, step].to(scores.device).repeat_interleave(rows)[:, None]
        given = token.clamp(min=0)
        forced = torch.full_like(scores, -torch.inf).scatter(1, given, scores.gather(1, given))
        return torch.where(token >= 0, forced, scores)

    def check(self, sequences: torch.Tensor) -> None:
        """Raise ValueError unless the outputs, start token included, are long enough for the prefixes."""
        # The best of each sentence: of others there may be none.
        outputs = sequences[:, 1:].cpu().unflatten(0, (len(self.prefixes), -1))[:, 0]
        for prefix, output in zip(self.prefixes, outputs.tolist(), strict=True):
            tokens = prefix[prefix >= 0].tolist()
            if output[: len(tokens)] != tokens:
                raise ValueError(f"a prefix of {len(tokens)} tokens is longer than the limit of its output")


__all__ = ["Constraints", "ForcedPrefix", "phrases_of"]
