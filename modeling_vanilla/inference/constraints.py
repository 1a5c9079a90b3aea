"""The search for outputs that contain given phrases.

Dynamic beam allocation of Post & Vilar 2018 (arXiv:1804.06609), on tensors as in Hu et al. 2019 (N19-1090): hypotheses
that lack the same number of tokens form a bank, and the banks share the beams. A phrase is met if its tokens follow
each other somewhere in the output, the prompt included.

Axes: B sentences, K hypotheses, C phrases of a sentence, A alternatives of a phrase, L tokens, V vocabulary.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..search_vanilla import BeamSearch, Hypotheses

Phrases = list[list[list[int]]]  # of a sentence: of each phrase its alternatives, of each alternative its tokens


def constrained(phrases: list[Phrases]) -> Callable[..., "ConstrainedSearch"]:
    """The argument `search` of generate() for outputs that contain phrases.

    A phrase is left out if the limit of its sentence has no room for it after those before.

    Args:
        phrases: of each sentence of the batch. The output contains one alternative of each phrase. No alternative may
            be empty or contain EOS.
    """

    def start(config, prompts: torch.Tensor, limits: torch.Tensor, *settings) -> ConstrainedSearch:
        search = ConstrainedSearch.start(config, prompts, limits, *settings)
        search.constraints = Constraints.start(phrases, prompts, limits)
        return search

    return start


class Automaton:
    """The pattern-matching machine of Aho & Corasick 1975 for the phrases of B sentences.

    A node stands for the longest beginning of a phrase with which an output ends. Nodes 0 to B - 1 are the roots, one
    for each sentence; there is at most one further node for each token of the phrases.
    """

    def __init__(self, phrases: list[Phrases], device: torch.device):
        self.children: list[dict[int, int]] = [{} for _ in phrases]  # of each node, by token
        roots, remaining = list(range(len(phrases))), []  # of each node; (node, phrase, tokens)
        alternatives = [
            (root, number, tokens)
            for root, of_sentence in enumerate(phrases)
            for number, choices in enumerate(of_sentence)
            for tokens in choices
        ]
        for root, number, tokens in alternatives:
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
    whole: torch.Tensor  # (B, C), the tokens of each phrase, by its shortest alternative; 0 where there is none
    node: torch.Tensor  # (B, K)
    met: torch.Tensor  # (B, K, C), whether an alternative has occurred; True where there is no phrase

    @classmethod
    def start(cls, phrases: list[Phrases], prompts: torch.Tensor, limits: torch.Tensor) -> "Constraints":
        """Those of prompts (B, K, length); limits (B,) are the most new tokens."""
        fitting: list[Phrases] = []
        for of_sentence, room in zip(phrases, limits.tolist(), strict=True):
            fitting.append([])
            for alternatives in of_sentence:
                shortest = min(map(len, alternatives))
                if shortest <= room:
                    room -= shortest
                    fitting[-1].append(alternatives)
        automaton = Automaton(fitting, prompts.device)
        node = torch.arange(len(fitting), device=prompts.device)[:, None].expand(prompts.shape[:2])
        constraints = cls(automaton, automaton.whole, node, automaton.ends[node])
        parent = torch.arange(prompts.shape[1], device=prompts.device).expand(prompts.shape[:2])
        for step in range(1, prompts.shape[2]):  # behind the start token
            constraints = constraints.extend(parent, prompts[..., step])
        return constraints

    def select(self, sentences: torch.Tensor) -> "Constraints":
        """The constraints of some sentences, given as indices."""
        of_sentences = {name: getattr(self, name)[sentences] for name in ("whole", "node", "met")}
        return replace(self, **of_sentences)

    def gather(self, index: torch.Tensor) -> "Constraints":
        """The constraints of the hypotheses at `index` (B, k)."""
        sentences = torch.arange(index.shape[0], device=index.device)[:, None]
        return replace(self, node=self.node[sentences, index], met=self.met[sentences, index])

    def extend(self, parent: torch.Tensor, token: torch.Tensor) -> "Constraints":
        """The constraints of the hypotheses at `parent` (B, k), each with one of `token` (B, k) after it."""
        old = self.gather(parent)
        node = self.automaton.follow(old.node, token)
        return replace(self, node=node, met=old.met | self.automaton.ends[node])

    def unmet_tokens(self) -> torch.Tensor:
        """The number of tokens of the phrases that are not met, by their shortest alternatives. (B, K)"""
        return (~self.met).float().matmul(self.whole[..., None]).squeeze(-1).long()

    def lacking(self) -> torch.Tensor:
        """The number of tokens that meet all phrases: the rest of one that has begun, and the others whole. (B, K)"""
        return self.unmet_tokens() - self.automaton.saved[self.node].masked_fill(self.met, 0).amax(dim=-1)

    def all_met(self) -> torch.Tensor:
        """Whether a hypothesis meets all phrases. (B, K)"""
        return self.met.all(dim=-1)

    def continuations(self, score: torch.Tensor, log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Continue each hypothesis with its best token, and with those that begin or continue a phrase.

        Returns:
            (B, K + K * W) with W such tokens at most: the sums of score (B, K) and log_probs (B, K, V), -inf for none;
            and their indices, hypothesis * V + token, -1 for none.
        """
        beams, vocab_size = log_probs.shape[1:]
        rows = [torch.tensor(self.automaton.ways_from(node), dtype=torch.long) for node in self.node.flatten().tolist()]
        ways = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1).to(score.device)
        token = torch.cat((log_probs.argmax(dim=-1), ways.view(len(score), -1)), dim=1)
        hypothesis = torch.arange(beams, device=score.device)
        parent = torch.cat((hypothesis, hypothesis.repeat_interleave(ways.shape[1]))).expand_as(token)
        useful = self.extend(parent, token).lacking() < self.unmet_tokens().gather(1, parent)
        useful[:, :beams] = (self.whole > 0).any(dim=1, keepdim=True)
        index = (parent * vocab_size + token).masked_fill(~useful, -1)
        sums = score.gather(1, parent) + log_probs.flatten(1).gather(1, index.clamp(min=0))
        return sums.masked_fill(~useful, -torch.inf), index

    def rank(self, score: torch.Tensor) -> torch.Tensor:
        """The number of better hypotheses in the bank of each, which `score` (B, K) has best first; K for -inf."""
        impossible = score == -torch.inf
        bank, order = self.lacking().masked_fill(impossible, -1).sort(dim=1, stable=True)
        place = torch.arange(score.shape[1], device=score.device).expand_as(bank)
        rank = place - torch.searchsorted(bank, bank)
        return torch.zeros_like(place).scatter(1, order, rank).masked_fill(impossible, score.shape[1])

    def allocate(self, score: torch.Tensor, beams: int) -> torch.Tensor:
        """The indices of the hypotheses that fill the beams, given `score` (B, K) best first. (B, beams)

        The banks take turns, each with its best hypothesis; the bank that lacks least is first.
        """
        bank = self.lacking()
        turn = self.rank(score) * (bank.max() + 1) + bank
        chosen = turn.topk(min(beams, turn.shape[1]), largest=False).indices
        return chosen.gather(1, score.gather(1, chosen).argsort(dim=1, descending=True))


@dataclass
class ConstrainedSearch(BeamSearch):
    """Beam search in which a hypothesis may end only if it meets all phrases of its sentence."""

    constraints: Constraints | None = None  # of the alive hypotheses
    extended: Constraints | None = None  # of the candidates of the present step

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

    def rank(self, score: torch.Tensor) -> torch.Tensor:
        return self.extended.rank(score)

    def may_finish(self) -> torch.Tensor:
        return self.extended.all_met()

    def keep(self, alive: Hypotheses) -> Hypotheses:
        chosen = self.extended.allocate(alive.score, self.beams)
        self.constraints = self.extended.gather(chosen)
        return alive.gather(chosen)

    def unfinished(self, rows: torch.Tensor) -> Hypotheses:
        """BeamSearch's, in the order of what they lack."""
        lacking = self.constraints.select(rows).lacking()
        return super().unfinished(rows).gather(lacking.argsort(dim=1, stable=True))

    def select(self, remaining: torch.Tensor) -> None:
        super().select(remaining)
        self.constraints = self.constraints.select(remaining)
