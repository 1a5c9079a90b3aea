"""The search for outputs that contain given phrases.

Dynamic beam allocation of Post & Vilar 2018 (arXiv:1804.06609), on tensors as in Hu et al. 2019 (N19-1090): hypotheses
that miss the same number of tokens form a bank, and the banks share the beams. A phrase is met if its tokens follow
each other somewhere in the output, the prompt included.

Axes: B sentences, K hypotheses, C phrases of a sentence, L tokens of a phrase, V vocabulary.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..search_vanilla import BeamSearch, Hypotheses

Phrases = list[list[int]]  # of a sentence, each its tokens


def constrained(phrases: list[Phrases]) -> Callable[..., "ConstrainedSearch"]:
    """The argument `search` of generate() for outputs that contain the phrases of each sentence of the batch.

    No phrase may be empty or contain EOS. A phrase is left out if the limit of its sentence has no room for it after
    those before.
    """
    return functools.partial(ConstrainedSearch, phrases)


@dataclass(frozen=True)
class Constraints:
    """The phrases of B sentences, and what K hypotheses of each sentence contain of them."""

    tokens: torch.Tensor  # (B, C, L), -1 behind the end of a phrase
    size: torch.Tensor  # (B, C), the number of tokens of each phrase; 0 where there is none
    begun: torch.Tensor  # (B, K, C, L + 1), whether the output ends with the first 0, 1 ... L tokens of the phrase
    met: torch.Tensor  # (B, K, C), whether the phrase has occurred; True where there is none

    @classmethod
    def start(cls, phrases: list[Phrases], prompts: torch.Tensor, limits: torch.Tensor) -> "Constraints":
        """The constraints of prompts (B, K, length); limits (B,) are the largest numbers of new tokens."""
        fitting: list[Phrases] = []
        for of_sentence, room in zip(phrases, limits.tolist(), strict=True):
            fitting.append([])
            for phrase in of_sentence:
                if len(phrase) <= room:
                    room -= len(phrase)
                    fitting[-1].append(phrase)
        longest = max((len(phrase) for of_sentence in fitting for phrase in of_sentence), default=0)
        tokens = torch.full((len(fitting), max(1, *map(len, fitting)), longest), -1)
        for row, of_sentence in enumerate(fitting):
            for number, phrase in enumerate(of_sentence):
                tokens[row, number, : len(phrase)] = torch.tensor(phrase)
        tokens = tokens.to(prompts.device)
        size = (tokens >= 0).sum(dim=-1)
        begun = torch.arange(longest + 1, device=tokens.device) == 0
        met = (size == 0)[:, None].expand(-1, prompts.shape[1], -1)
        constraints = cls(tokens, size, begun.expand(*met.shape, -1), met)
        parent = torch.arange(prompts.shape[1], device=prompts.device).expand(prompts.shape[:2])
        for step in range(1, prompts.shape[2]):  # behind the start token
            constraints = constraints.extend(parent, prompts[..., step])
        return constraints

    def select(self, sentences: torch.Tensor) -> "Constraints":
        """The constraints of some sentences, given as indices."""
        return Constraints(**{name: tensor[sentences] for name, tensor in vars(self).items()})

    def gather(self, index: torch.Tensor) -> "Constraints":
        """The constraints of the hypotheses at `index` (B, k)."""
        sentences = torch.arange(index.shape[0], device=index.device)[:, None]
        return replace(self, begun=self.begun[sentences, index], met=self.met[sentences, index])

    def extend(self, parent: torch.Tensor, token: torch.Tensor) -> "Constraints":
        """The constraints of the hypotheses at `parent` (B, k), each continued by its `token` (B, k)."""
        old = self.gather(parent)
        equal = self.tokens[:, None] == token[..., None, None]
        begun = nn.functional.pad(old.begun[..., :-1] & equal, (1, 0), value=True)
        ends = self.size[:, None, :, None].expand(*old.met.shape, 1)
        return replace(self, begun=begun, met=old.met | begun.gather(-1, ends).squeeze(-1))

    def unmet_tokens(self) -> torch.Tensor:
        """The number of tokens of the phrases that are not met, (B, K)."""
        return (self.size[:, None] * ~self.met).sum(dim=-1)

    def missing(self) -> torch.Tensor:
        """The number of tokens that meet all phrases: the rest of one that has begun, and all of the others. (B, K)"""
        lengths = torch.arange(self.begun.shape[-1], device=self.begun.device)
        begun = (self.begun * lengths).amax(dim=-1) * ~self.met
        return self.unmet_tokens() - begun.amax(dim=-1)

    def all_met(self) -> torch.Tensor:
        """Whether a hypothesis meets all phrases. (B, K)"""
        return self.met.all(dim=-1)

    def continuations(self, score: torch.Tensor, log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Continue each hypothesis with its best token, and with those that begin or continue a phrase.

        Returns:
            (B, K + K * C * L): the sums of score (B, K) and log_probs (B, K, V), -inf for none; and their indices,
            hypothesis * V + token, -1 for none.
        """
        beams, vocab_size = log_probs.shape[1:]
        ways = self.tokens[:, None].masked_fill(~self.begun[..., :-1], -1).flatten(2)  # (B, K, C * L)
        token = torch.cat((log_probs.argmax(dim=-1), ways.flatten(1)), dim=1)
        hypothesis = torch.arange(beams, device=score.device)
        parent = torch.cat((hypothesis, hypothesis.repeat_interleave(ways.shape[2]))).expand_as(token)
        useful = self.extend(parent, token).missing() < self.unmet_tokens().gather(1, parent)
        useful &= token >= 0
        useful[:, :beams] = self.size.any(dim=1, keepdim=True)
        index = (parent * vocab_size + token).masked_fill(~useful, -1)
        sums = score.gather(1, parent) + log_probs.flatten(1).gather(1, index.clamp(min=0))
        return sums.masked_fill(~useful, -torch.inf), index

    def allocate(self, score: torch.Tensor, beams: int) -> torch.Tensor:
        """The indices of the hypotheses that fill the beams, given `score` (B, K) best first. (B, beams)

        The banks take turns, each with its best hypothesis; the bank that misses least is first.
        """
        missing, impossible, size = self.missing(), score == -torch.inf, score.shape[1]
        bank, order = missing.masked_fill(impossible, -1).sort(dim=1, stable=True)
        number = torch.arange(size, device=score.device).expand_as(bank)
        rank = number - torch.searchsorted(bank, bank)  # in the bank
        rank = torch.zeros_like(number).scatter(1, order, rank).masked_fill(impossible, size)
        turn = rank * (missing.max() + 1) + missing
        chosen = turn.topk(min(beams, size), largest=False).indices
        return chosen.gather(1, score.gather(1, chosen).argsort(dim=1, descending=True))


class ConstrainedSearch(BeamSearch):
    """Beam search in which a hypothesis may end only if it meets all phrases of its sentence."""

    extended: Constraints  # of the candidates of the present step

    def __init__(self, phrases: list[Phrases], config, prompts: torch.Tensor, limits: torch.Tensor, *args):
        super().__init__(config, prompts, limits, *args)
        self.constraints = Constraints.start(phrases, prompts, limits)  # of the alive hypotheses

    def candidates(self, log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """BeamSearch's candidates and those of Post & Vilar: the best token of each hypothesis, and the k tokens, among
        those that begin or continue a phrase, that `allocate` has first."""
        constraints, score, vocab_size = self.constraints, self.alive.score, log_probs.shape[-1]
        ends = torch.isin(torch.arange(vocab_size, device=log_probs.device), self.eos)
        log_probs = log_probs.masked_fill(ends & ~constraints.all_met()[..., None], -torch.inf)
        best, index = super().candidates(log_probs)
        k, always = best.shape[1], best.shape[1] + score.shape[1]  # the k best, and each hypothesis' best token
        more, more_index = constraints.continuations(score, log_probs)
        best, index = torch.cat((best, more), dim=1), torch.cat((index, more_index), dim=1)
        # Each candidate once, in the order of their sums.
        index, order = index.sort(dim=1, stable=True)
        again = nn.functional.pad(index[:, 1:] == index[:, :-1], (1, 0))
        best, rank = best.gather(1, order).masked_fill(again, -torch.inf).sort(dim=1, descending=True)
        index, order = index.gather(1, rank).clamp(min=0), order.gather(1, rank)
        alive = best.masked_fill(torch.isin(index % vocab_size, self.eos), -torch.inf)
        chosen = constraints.extend(index // vocab_size, index % vocab_size).allocate(alive, k)
        kept = (order < always).scatter(1, chosen, True)
        best, rank = best.masked_fill(~kept, -torch.inf).topk(min(always + k, best.shape[1]))
        index = index.gather(1, rank)
        self.extended = constraints.extend(index // vocab_size, index % vocab_size)
        return best, index

    def divide(self, candidates: Hypotheses) -> tuple[Hypotheses, Hypotheses]:
        """As BeamSearch's, but only candidates that meet all phrases finish, and only these count among the K best."""
        met = self.extended.all_met()
        order = met.int().argsort(dim=1, descending=True, stable=True)
        back = order.argsort(dim=1)
        finishing, others = (half.gather(back) for half in super().divide(candidates.gather(order)))
        return finishing.masked(met), others

    def keep(self, others: Hypotheses) -> Hypotheses:
        """The K candidates that the banks choose; at the limit, those that miss the fewest tokens first."""
        chosen = self.extended.allocate(others.score, self.config.num_beams)
        missing = self.extended.gather(chosen).missing() * (self.length >= self.limits)[:, None]
        chosen = chosen.gather(1, missing.argsort(dim=1, stable=True))
        self.constraints = self.extended.gather(chosen)
        return others.gather(chosen)

    def select(self, remaining: torch.Tensor) -> None:
        super().select(remaining)
        self.constraints = self.constraints.select(remaining)
