"""What an output has to contain and to begin with.

For phrases that it has to contain, beams are allocated dynamically by the algorithm of Post & Vilar 2018
(arXiv:1804.06609), on tensors as in Hu et al. 2019 (N19-1090): hypotheses that lack as many tokens form a bank, and the
banks share the beams. A phrase is met where its tokens follow each other anywhere in the output, the prompt included.

Axes: B sentences, K hypotheses, C phrases of a sentence, A alternatives of a phrase, L tokens, V vocabulary.
"""

import copy
from collections import deque
from collections.abc import Iterator, Sequence
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
    alike = force_words_ids if depth == 4 else [[p if _depth(p) == 2 else [p] for p in force_words_ids]]
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


class NoConstraints:
    """The empty constraint, of a search that has no phrases to meet: as `Constraints`, which documents the methods."""

    def select(self, *_: torch.Tensor) -> "NoConstraints":
        return self

    gather = extend = select

    def all_met(self) -> bool:
        return True

    def forbid_end(self, log_probs: torch.Tensor) -> torch.Tensor:
        return log_probs

    def top_sums(self, score: torch.Tensor, log_probs: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        return top_sums(score, log_probs, k)

    def rank(self, score: torch.Tensor) -> torch.Tensor:
        return torch.arange(score.shape[1], device=score.device)

    def allocate(self, score: torch.Tensor, beams: int) -> torch.Tensor:
        return score.topk(min(beams, score.shape[1])).indices

    def nearest_first(self, score: torch.Tensor) -> torch.Tensor:
        return self.rank(score).expand_as(score)


class Automaton:
    """The pattern-matching machine of Aho & Corasick 1975 for the phrases of B sentences, each with a root of its own.

    A node is a beginning of phrases: the longest that an output ends in. There are about as many nodes as tokens in all
    phrases; the first B are the roots.
    """

    def __init__(self, phrases: list[Phrases], device: torch.device):
        self.children: list[dict[int, int]] = [{} for _ in phrases]  # of each node, by token
        roots, remaining = list(range(len(phrases))), []  # of each node; (node, phrase, tokens)
        for root, number, tokens in _alternatives(phrases):
            node = root
            for length, token in enumerate(tokens):
                remaining.append((node, number, len(tokens) - length))
                node = self.children[node].setdefault(token, len(self.children))
                if node == len(self.children):
                    self.children.append({})
                    roots.append(root)
            remaining.append((node, number, 0))
        self.failure = list(range(len(self.children)))  # the next shorter beginning that an output there ends in
        # How many further tokens each phrase takes; 0 where a sentence has fewer phrases.
        rest = torch.full((len(self.children), max(1, *map(len, phrases))), 2**30, dtype=torch.int32)
        for root, of_sentence in enumerate(phrases):
            rest[root, len(of_sentence) :] = 0
        if remaining:
            nodes, numbers, counts = torch.tensor(remaining).unbind(1)
            rest.view(-1).scatter_reduce_(0, nodes * rest.shape[1] + numbers, counts.int(), "amin")
        queue = deque(range(len(phrases)))
        while queue:
            node = queue.popleft()
            for token, child in self.children[node].items():
                queue.append(child)
                self.failure[child] = node if node < len(phrases) else self.next(self.failure[node], token)
                torch.minimum(rest[child], rest[self.failure[child]], out=rest[child])
        self.whole = rest[: len(phrases)].float().to(device)  # (B, C), the tokens of the shortest alternative
        self.saved = (rest[roots] - rest).to(device)  # (nodes, C), how many of these tokens are there already
        self.ends = (rest == 0).to(device)  # (nodes, C), whether an alternative ends there

    def next(self, node: int, token: int) -> int:
        """The node after a further token."""
        while token not in self.children[node] and self.failure[node] != node:
            node = self.failure[node]
        return self.children[node].get(token, node)

    def ways_from(self, node: int) -> list[int]:
        """The tokens by which a phrase begins or goes on."""
        tokens = set(self.children[node])
        while self.failure[node] != node:
            node = self.failure[node]
            tokens.update(self.children[node])
        return sorted(tokens)

    def follow(self, node: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        """The nodes after further tokens, both of one shape."""
        pairs = zip(*torch.stack((node, token)).flatten(1).tolist(), strict=True)
        return torch.tensor([self.next(*pair) for pair in pairs], device=node.device).view_as(node)


@dataclass(frozen=True)
class Constraints:
    """The phrases of B sentences, and how much of them K hypotheses of each contain."""

    automaton: Automaton
    eos: torch.Tensor  # (number of EOS tokens,)
    whole: torch.Tensor  # (B, C), the tokens of each phrase, by its shortest alternative; 0 where there is none
    node: torch.Tensor  # (B, K)
    met: torch.Tensor  # (B, K, C), whether an alternative has occurred; True where there is no phrase

    @classmethod
    def start(
        cls, phrases: list[Phrases], prompts: torch.Tensor, limits: torch.Tensor, eos: torch.Tensor
    ) -> "Constraints":
        """Behind prompts (B, K, length). Phrases that together are longer than a sentence's limit (B,) are left out,
        the last ones first."""
        fitting = [_fitting(of_sentence, limit) for of_sentence, limit in zip(phrases, limits.tolist(), strict=True)]
        automaton = Automaton(fitting, prompts.device)
        node = torch.arange(len(fitting), device=prompts.device)[:, None].expand(prompts.shape[:2])
        constraints = cls(automaton, eos, automaton.whole, node, automaton.ends[node])
        parent = torch.arange(prompts.shape[1], device=prompts.device).expand(prompts.shape[:2])
        for step in range(1, prompts.shape[2]):  # behind the start token
            constraints = constraints.extend(parent, prompts[..., step])
        return constraints

    def select(self, sentences: torch.Tensor) -> "Constraints":
        """Those of some sentences, given as a mask (B,) or as indices."""
        of_sentences = {name: getattr(self, name)[sentences] for name in ("whole", "node", "met")}
        return replace(self, **of_sentences)

    def gather(self, index: torch.Tensor) -> "Constraints":
        """Those of the hypotheses at `index` (B, k)."""
        sentences = torch.arange(index.shape[0], device=index.device)[:, None]
        return replace(self, node=self.node[sentences, index], met=self.met[sentences, index])

    def extend(self, parent: torch.Tensor, token: torch.Tensor) -> "Constraints":
        """Of hypotheses that continue those at `parent` (B, k) by `token` (B, k)."""
        old = self.gather(parent)
        node = self.automaton.follow(old.node, token)
        return replace(self, node=node, met=old.met | self.automaton.ends[node])

    def _whole_phrases(self) -> torch.Tensor:
        """The tokens of the phrases that are not met, by their shortest alternatives. (B, K)"""
        return (~self.met).float().matmul(self.whole[..., None]).squeeze(-1).long()

    def lacking(self) -> torch.Tensor:
        """With how many further tokens a hypothesis meets all phrases: one as it has begun, the others whole. (B, K)"""
        return self._whole_phrases() - self.automaton.saved[self.node].masked_fill(self.met, 0).amax(dim=-1)

    def all_met(self) -> torch.Tensor:
        """Whether a hypothesis meets all phrases. (B, K)"""
        return self.met.all(dim=-1)

    def forbid_end(self, log_probs: torch.Tensor) -> torch.Tensor:
        """The next tokens' log-probabilities (B, K, V), where no hypothesis ends that lacks a phrase."""
        ends = torch.isin(torch.arange(log_probs.shape[-1], device=log_probs.device), self.eos)
        return log_probs.masked_fill(ends & ~self.all_met()[..., None], -torch.inf)

    def top_sums(self, score: torch.Tensor, log_probs: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As `top_sums` of cpu_vanilla.py, with the candidates of Post & Vilar beside the k best: for each hypothesis
        its best token, and those with which a phrase goes on; of these, the k that come first in `allocate`. A sentence
        without phrases has the k best alone."""
        vocab_size = log_probs.shape[-1]
        best, index = top_sums(score, log_probs, k)
        always = best.shape[1] + score.shape[1]  # the k best, and each hypothesis' best token
        more, more_index = self._going_on(score, log_probs)
        best, index = torch.cat((best, more), dim=1), torch.cat((index, more_index), dim=1)
        index, order = index.sort(dim=1, stable=True)
        again = nn.functional.pad(index[:, 1:] == index[:, :-1], (1, 0))
        best, rank = best.gather(1, order).masked_fill(again, -torch.inf).sort(dim=1, descending=True)
        index, order = index.gather(1, rank).clamp(min=0), order.gather(1, rank)
        alive = best.masked_fill(torch.isin(index % vocab_size, self.eos), -torch.inf)
        chosen = self.extend(index // vocab_size, index % vocab_size).allocate(alive, k)
        kept = (order < always).scatter(1, chosen, True)
        best, rank = best.masked_fill(~kept, -torch.inf).topk(min(always + k, best.shape[1]))
        return best, index.gather(1, rank)

    def _going_on(self, score: torch.Tensor, log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each hypothesis with its best token, then with those by which a phrase begins or goes on.

        Returns:
            (B, K + K * W), the sums and their index as `top_sums` has them; -inf and -1 where there is none.
        """
        beams, vocab_size = log_probs.shape[1:]
        rows = [torch.tensor(self.automaton.ways_from(node), dtype=torch.long) for node in self.node.flatten().tolist()]
        ways = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1).to(score.device)
        token = torch.cat((log_probs.argmax(dim=-1), ways.view(len(score), -1)), dim=1)
        hypothesis = torch.arange(beams, device=score.device)
        parent = torch.cat((hypothesis, hypothesis.repeat_interleave(ways.shape[1]))).expand_as(token)
        useful = self.extend(parent, token).lacking() < self._whole_phrases().gather(1, parent)
        useful[:, :beams] = (self.whole > 0).any(dim=1, keepdim=True)
        index = (parent * vocab_size + token).masked_fill(~useful, -1)
        sums = score.gather(1, parent) + log_probs.flatten(1).gather(1, index.clamp(min=0))
        return sums.masked_fill(~useful, -torch.inf), index

    def rank(self, score: torch.Tensor) -> torch.Tensor:
        """How many hypotheses before each, best first by `score` (B, K), are in the same bank: (B, K), K for -inf."""
        impossible = score == -torch.inf
        bank, order = self.lacking().masked_fill(impossible, -1).sort(dim=1, stable=True)
        place = torch.arange(score.shape[1], device=score.device).expand_as(bank)
        rank = place - torch.searchsorted(bank, bank)
        return torch.zeros_like(place).scatter(1, order, rank).masked_fill(impossible, score.shape[1])

    def allocate(self, score: torch.Tensor, beams: int) -> torch.Tensor:
        """Which of the hypotheses fill the beams, by `score` (B, K) best first. (B, beams)

        The banks take turns, each with its best, and the bank that lacks least begins.
        """
        bank = self.lacking()
        turn = self.rank(score) * (bank.max() + 1) + bank
        chosen = turn.topk(min(beams, turn.shape[1]), largest=False).indices
        return chosen.gather(1, score.gather(1, chosen).argsort(dim=1, descending=True))

    def nearest_first(self, score: torch.Tensor) -> torch.Tensor:
        """The order of the hypotheses by what they lack; of those that lack as much, that of `score` (B, K)."""
        return self.lacking().argsort(dim=1, stable=True)


def _alternatives(phrases: list[Phrases]) -> Iterator[tuple[int, int, list[int]]]:
    """Each alternative: its sentence, the number of its phrase there, and its tokens."""
    for sentence, of_sentence in enumerate(phrases):
        for number, alternatives in enumerate(of_sentence):
            for tokens in alternatives:
                yield sentence, number, tokens


class ForcedPrefix(LogitsProcessor):
    """Lets the output of each sentence begin with given tokens, in any search; their probabilities count as they are.

    Args:
        prefixes: the tokens of each sentence of the batch, behind the start token; empty for none.
    """

    def __init__(self, prefixes: Sequence[Sequence[int]]):
        rows = [torch.tensor(prefix, dtype=torch.long) for prefix in prefixes]
        self.prefixes = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)  # (B, longest)

    def select(self, sentences: torch.Tensor) -> "ForcedPrefix":
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


__all__ = ["Constraints", "ForcedPrefix", "NoConstraints", "phrases_of"]
