"""Section 6.1: beam search with the length penalty of GNMT. Axes: B sentences, K beams, V vocabulary."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers.generation import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

from .cache_vanilla import CACHE
from .configuration_vanilla import token_ids

LENGTH_PENALTIES = ("gnmt", "length")
# Sentences that are done leave the batch, which copies the rest, once at most this share of it is still searched.
DROP_SHARE = 7 / 8


def length_penalty(length: Tensor | int, alpha: float, penalty_type: str = "gnmt") -> Tensor | float:
    """What log P(Y|X) is divided by; |Y| is the number of generated tokens, EOS included.

    "gnmt": ((5 + |Y|) / 6)^alpha (6.1, after Wu et al. 2016, Eq. 14); "length": |Y|^alpha, as in transformers.
    """
    return ((5 + length) / 6 if penalty_type == "gnmt" else length) ** float(alpha)


@dataclass
class Hypotheses:
    """K sequences for each of B sentences, best first."""

    tokens: Tensor  # (B, K, length), prompt included
    score: Tensor  # (B, K), by which they are ranked; -inf where there is no hypothesis
    log_prob: Tensor  # (B, K), log P by the model
    path: Tensor  # (B, K, steps), the row of the flattened batch that each token continued, -1 past the end

    def select(self, sentences: Tensor) -> "Hypotheses":
        """The hypotheses of some sentences, given as indices (B',)."""
        return Hypotheses(*(value[sentences] for value in vars(self).values()))

    def gather(self, index: Tensor) -> "Hypotheses":
        """The hypotheses at `index` (B, k) of each sentence."""
        sentences = torch.arange(index.shape[0], device=index.device)[:, None]
        return Hypotheses(*(value[sentences, index] for value in vars(self).values()))

    def top(self, k: int) -> "Hypotheses":
        """The k hypotheses with the highest scores, or all if there are fewer."""
        return self.gather(self.score.topk(min(k, self.score.shape[1])).indices)

    def masked(self, mask: Tensor) -> "Hypotheses":
        """The hypotheses where `mask` (B, K) is True, and none elsewhere."""
        return replace(self, score=self.score.masked_fill(~mask, -torch.inf))

    @staticmethod
    def concat(parts: Sequence["Hypotheses"], dim: int) -> "Hypotheses":
        values = (vars(part).values() for part in parts)
        return Hypotheses(*(torch.cat(each, dim) for each in zip(*values, strict=True)))

    def pad(self, pad_token_id: int, steps: int = 1) -> "Hypotheses":
        """The hypotheses, padded by `steps` positions."""
        tokens = nn.functional.pad(self.tokens, (0, steps), value=pad_token_id)
        return replace(self, tokens=tokens, path=nn.functional.pad(self.path, (0, steps), value=-1))

    def extend(self, score: Tensor, index: Tensor, log_probs: Tensor) -> "Hypotheses":
        """Continue hypotheses by a token: score and index (B, k) of `candidates`, log_probs (B, K, V) of the model."""
        vocab_size = log_probs.shape[-1]
        parent, token = index // vocab_size, index % vocab_size
        parents = self.gather(parent)
        first_row = torch.arange(index.shape[0], device=index.device)[:, None] * self.score.shape[1]
        return Hypotheses(
            torch.cat((parents.tokens, token[..., None]), dim=-1),
            score,
            parents.log_prob + log_probs.flatten(1).gather(1, index),
            torch.cat((parents.path, (first_row + parent)[..., None]), dim=-1),
        )


class BeamSearch:
    """The state of a search over B sentences with K beams (6.1).

    Of the 2 K best continuations of the alive hypotheses, those that end compete for the finished list, and the K best
    others stay alive. penalty_type "gnmt" is the paper's search, by the rules of Wu et al. 2016 (section 7) as in
    tensor2tensor; "length" is that of transformers.

    Args:
        prompts: (B, 1 or K, length), equal within a sentence.
        limits: (B,), the largest number of new tokens.
        criteria: the caller's; they end a hypothesis as EOS does.
        drop_done: whether sentences that are done leave the batch.
    """

    def __init__(
        self,
        config: GenerationConfig,
        prompts: Tensor,
        limits: Tensor,
        criteria: StoppingCriteriaList,
        drop_done: bool,
        penalty_type: str,
    ):
        self.config, self.limits, self.criteria = config, limits, criteria
        self.drop_done, self.penalty_type = drop_done, penalty_type
        eos = token_ids(config.eos_token_id)
        self.eos = torch.tensor(eos, dtype=torch.long, device=prompts.device)  # (number of EOS tokens,)
        self.pad = [*token_ids(config.pad_token_id), *eos, 0][0]
        # Only the first of the equal prompts counts, or each beam would find the same.
        score = torch.zeros(prompts.shape[:2], device=prompts.device)
        score[:, 1:] = -torch.inf
        path = prompts.new_empty((*prompts.shape[:2], 0))
        # (B, K), at first as many as prompts. A score is the sum of the tokens' log P after the logits processors.
        self.alive = Hypotheses(prompts, score, torch.zeros_like(score), path)
        nothing = self.alive.gather(limits.new_zeros(len(limits), config.num_beams))
        # (B, K). A score is that sum divided by the length penalty.
        self.finished = replace(nothing, score=torch.full_like(nothing.score, -torch.inf))
        self.sentences = torch.arange(len(limits), device=limits.device)  # (B,), the sentences in the batch
        # (B,), whether a sentence is not done; on the CPU, so that a step waits for a GPU only once.
        self.searching = torch.ones(len(limits), dtype=torch.bool)
        self.scores_fall = True  # whether no logits processor raises a score, which lets the search end early
        self.length = 0  # the number of new tokens so far
        self.results: list[tuple[Tensor, Hypotheses]] = []  # sentences that are done, and their outputs
        self.log_probs: list[Tensor] = []  # before each step, log P of the hypotheses in its rows

    def step(self, log_probs: Tensor, unprocessed: Tensor) -> tuple[Tensor, Tensor | None]:
        """Extend each alive hypothesis by a token.

        Args:
            log_probs, unprocessed: log P (B * K, V) of the next token, after and before the logits processors.

        Returns:
            The rows (B' * K,) of this step's batch that the next step continues, and the indices (B',) of the sentences
            that remain in the batch; None if all remain.
        """
        self.log_probs.append(self.alive.log_prob.flatten())  # (B * K,)
        shape = self.alive.score.shape  # (B, K)
        score, index = self.candidates(log_probs.unflatten(0, shape))  # (B, k) each
        candidates = self.alive.extend(score, index, unprocessed.unflatten(0, shape))  # (B, k)
        self.length += 1
        finishing, others = self.divide(candidates)  # (B, k) each
        self.alive = self.keep(others)  # (B, k) -> (B, K)
        finishing = replace(finishing, score=finishing.score / self.penalty(self.length))
        finished = Hypotheses.concat((self.finished.pad(self.pad), finishing), dim=1)  # (B, K + k)
        self.finished = finished.top(self.config.num_beams)  # (B, K)

        done = ((self.length >= self.limits) | self.done()).cpu()  # (B,); here the host waits for a GPU
        newly = (done & self.searching).nonzero().flatten().to(self.limits.device)  # the rows of sentences done now
        self.searching = self.searching & ~done
        if len(newly):
            self.results.append((self.sentences[newly], self.best(newly)))
        remaining = None
        if self.drop_done and len(newly) and self.searching.sum() <= DROP_SHARE * len(self.searching):
            remaining = self.searching.nonzero().flatten().to(self.limits.device)  # (B',)
            self.select(remaining)  # (B, K) -> (B', K)
        return self.alive.path[..., -1].flatten(), remaining

    def candidates(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """The best sums of score and log P (B, K, V) of the next token, and their indices, hypothesis * V + token.

        (B, k) each, best first; k is 2 K if there is one EOS.
        """
        k, vocab_size = self.config.num_beams * (1 + max(1, self.eos.numel())), log_probs.shape[-1]
        # The best of each hypothesis first: the sums of all tokens would be new memory, which costs a CPU more.
        best = log_probs.topk(min(k, vocab_size))  # (B, K, k)
        index = best.indices + vocab_size * torch.arange(log_probs.shape[1], device=log_probs.device)[:, None]
        sums = (self.alive.score[..., None] + best.values).flatten(1)  # (B, K * k)
        top = sums.topk(min(k, sums.shape[1]))  # (B, k)
        return top.values, index.flatten(1).gather(1, top.indices)

    def divide(self, candidates: Hypotheses) -> tuple[Hypotheses, Hypotheses]:
        """The candidates (B, k) that finish with this token, and those that may stay alive."""
        ended = torch.isin(candidates.tokens[..., -1], self.eos)  # (B, k)
        if self.criteria:
            ended |= self.criteria(candidates.tokens.flatten(0, 1), None).reshape(ended.shape)
        finishing = ended
        if self.penalty_type == "length":  # candidates at the limit end, too, and only the K best finish
            ended = ended | (self.length >= self.limits)[:, None]
            finishing = ended & (torch.arange(ended.shape[1], device=ended.device) < self.config.num_beams)
        return candidates.masked(finishing), candidates.masked(~ended)

    def keep(self, others: Hypotheses) -> Hypotheses:
        """The best K of the candidates (B, k) that may stay alive. (B, K)"""
        return others.top(self.config.num_beams)

    def penalty(self, length: Tensor | int) -> Tensor | float:
        return length_penalty(length, self.config.length_penalty, self.penalty_type)

    def done(self) -> Tensor:
        """Whether no alive hypothesis of a sentence can still be returned. (B,)

        log P falls with each token, unless a logits processor raises it, so an alive hypothesis can at best reach its
        present log P over the largest penalty ahead: the one at the limit, or for a negative alpha the next one.
        transformers takes that of the present length, unless early_stopping is "never", and waits for K to finish.
        early_stopping=True only waits for that.
        """
        finished, best_alive, early_stopping = self.finished.score, self.alive.score[:, 0], self.config.early_stopping
        if early_stopping is True:
            return (finished[:, -1] > -torch.inf) | (best_alive == -torch.inf)
        to_the_limit = self.config.length_penalty > 0
        if self.penalty_type == "gnmt":
            if not self.scores_fall:
                return best_alive == -torch.inf
            worst, ahead = finished[:, self.config.num_return_sequences - 1], self.length + 1
        else:
            worst, ahead = finished[:, -1], self.length
            to_the_limit &= early_stopping == "never"
        return worst >= best_alive / self.penalty(self.limits if to_the_limit else ahead)

    def select(self, remaining: Tensor) -> None:
        """Keep only some sentences in the batch, given as indices (B',)."""
        self.alive, self.finished = self.alive.select(remaining), self.finished.select(remaining)
        self.limits, self.sentences = self.limits[remaining], self.sentences[remaining]
        self.searching = self.searching[remaining.cpu()]

    def best(self, rows: Tensor) -> Hypotheses:
        """The outputs for some sentences (B',): the finished hypotheses, best first, then the alive ones."""
        finished, alive = self.finished.select(rows), self.alive.select(rows)
        alive = replace(alive, score=alive.score / self.penalty(self.length))
        both = Hypotheses.concat((finished, alive), dim=1)  # (B', K + K)
        group = torch.ones_like(both.score)
        group[:, : finished.score.shape[1]] = 2 * (finished.score == -torch.inf)  # no hypothesis: behind the alive ones
        order = group.argsort(dim=1, stable=True)
        return both.gather(order[:, : self.config.num_return_sequences])

    def finish(self) -> Hypotheses:
        """The outputs for all sentences in their order, (B, num_return_sequences)."""
        padded = [best.pad(self.pad, self.length - best.path.shape[-1]) for _, best in self.results]
        order = torch.cat([sentences for sentences, _ in self.results]).argsort()
        best = Hypotheses.concat(padded, dim=0).select(order)
        unused = int((best.path < 0).sum(dim=-1).min())  # steps after the end of the longest
        tokens, path = (each[..., : each.shape[-1] - unused].contiguous() for each in (best.tokens, best.path))
        return replace(best, tokens=tokens, path=path)

    def token_log_probs(self, best: Hypotheses) -> Tensor:
        """log P by the model of each token of `best`, given the tokens before; 0 past the end. (B, K, steps)"""
        # Differences of the search's own sums, so that it keeps no distribution over the vocabulary.
        whole = best.log_prob[..., None]
        before = [self.log_probs[step][best.path[..., step].clamp(min=0)] for step in range(best.path.shape[-1])]
        sums = torch.cat((torch.where(best.path >= 0, torch.stack(before, dim=-1), whole), whole), dim=-1)
        return sums.diff(dim=-1)


@dataclass
class BeamSearchOutput(GenerateBeamEncoderDecoderOutput):
    """The output of beam search in transformers, always with sequences_scores, and with token_log_probs."""

    token_log_probs: Tensor | None = None  # (sequences, steps), as BeamSearch.token_log_probs


class NextTokens:
    """The model as the search sees it. The beams of a sentence share one encoding (B, S, D)."""

    def __init__(self, model, config: GenerationConfig, logits_processor, model_kwargs: dict):
        self.model, self.config, self.logits_processor = model, config, logits_processor
        details = {name: getattr(config, name) for name in ("output_attentions", "output_hidden_states")}
        self.inputs = {CACHE: None, **model_kwargs, **details}
        self.is_first = True  # whether the step to come is the first
        # transformers has repeated each sentence for its beams, also in a cache that it returned.
        first = torch.arange(0, len(self.inputs["encoder_outputs"].last_hidden_state), config.num_beams)
        self.select(first)
        if (past := self.inputs[CACHE]) is not None:
            past.cross_attention_cache.reorder_cache(first)
        asked = {  # of return_dict_in_generate
            "scores": config.output_scores,
            "logits": config.output_logits,
            "decoder_attentions": config.output_attentions,
            "cross_attentions": config.output_attentions,
            "decoder_hidden_states": config.output_hidden_states,
        }
        self.steps = {name: [] for name, recorded in asked.items() if recorded and config.return_dict_in_generate}

    def select(self, sentences: Tensor) -> None:
        """Keep only some sentences of the source, (B, S) -> (B', S)."""
        encoded = self.inputs["encoder_outputs"] = copy.copy(self.inputs["encoder_outputs"])
        encoded["last_hidden_state"] = encoded.last_hidden_state[sentences]
        if self.inputs.get("attention_mask") is not None:
            self.inputs["attention_mask"] = self.inputs["attention_mask"][sentences]

    def log_probs(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """log P (rows, V) of the token after `tokens` (rows, length), after and before the logits processors.

        Unless the caller asks for scores, the second is the first.
        """
        past, unread = self.inputs[CACHE], tokens.shape[1]
        if past is not None:
            unread = unread - int(past.get_seq_length()) if self.is_first else 1
            if unread < 1:
                raise ValueError("the cache has all tokens of the prompt; the search needs one to go on from")
        # The method may be the caller's, and put more into the cache than tokens, as PEFT does for a tuned prefix.
        inputs = self.model.prepare_inputs_for_generation(
            tokens, next_sequence_length=unread, is_first_iteration=self.is_first, **self.inputs
        )
        self.is_first = False
        outputs = self.model(**inputs, return_dict=True)
        self.inputs[CACHE] = outputs.get(CACHE)
        logits = outputs.logits[:, -1].float()  # (rows, V)
        # In place, unless the logits are recorded: a CPU takes long to allocate their memory in each step.
        unprocessed = torch.log_softmax(logits, dim=-1, out=None if "logits" in self.steps else logits)
        # A processor may write into its argument.
        kept = self.logits_processor and self.config.return_dict_in_generate
        log_probs = self.logits_processor(tokens, unprocessed.clone() if kept else unprocessed)
        for name, steps in self.steps.items():
            steps.append({"scores": log_probs, "logits": logits}.get(name, outputs.get(name)))
        return log_probs, unprocessed if kept else log_probs

    def idle(self, tokens: Tensor) -> None:
        """A step for another process, which needs this one's part of the weights."""
        inputs = {**self.inputs, CACHE: None, "use_cache": False, "decoder_input_ids": tokens[:, -1:]}
        self.model(**inputs, return_dict=True)

    def reorder(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Prepare the next step: `rows` (B' * K,) of the last step continue, of the sentences (B',); None means all."""
        past = self.inputs[CACHE]
        if past is not None:
            past.self_attention_cache.reorder_cache(rows)  # (B * K, H, T, d_k) -> (B' * K, H, T, d_k), and the values
        if sentences is None:
            return
        self.select(sentences)
        if past is not None:
            past.cross_attention_cache.reorder_cache(sentences)  # (B, H, S, d_k) -> (B', H, S, d_k), and the values
        selected = (one.select(sentences) if hasattr(one, "select") else one for one in self.logits_processor)
        self.logits_processor = LogitsProcessorList(selected)

    def output(self, best: Hypotheses, search: BeamSearch) -> BeamSearchOutput:
        """The outputs of a search, and what else the caller asks for by return_dict_in_generate."""
        encoder_outputs, past = self.inputs["encoder_outputs"], self.inputs[CACHE]
        for layer in [] if past is None else past.cross_attention_cache.layers:
            # transformers returns a row for each beam.
            layer.keys, layer.values = (
                one.repeat_interleave(self.config.num_beams, 0) for one in (layer.keys, layer.values)
            )
        return BeamSearchOutput(
            sequences=best.tokens.flatten(0, 1),
            sequences_scores=best.score.flatten(),
            token_log_probs=search.token_log_probs(best).flatten(0, 1),
            beam_indices=best.path.flatten(0, 1),
            encoder_attentions=encoder_outputs.get("attentions") if self.config.output_attentions else None,
            encoder_hidden_states=encoder_outputs.get("hidden_states") if self.config.output_hidden_states else None,
            **{CACHE: past},
            **{name: tuple(values) for name, values in self.steps.items()},
        )
