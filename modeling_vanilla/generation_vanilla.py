"""Section 6.1: beam search with the length penalty of GNMT, at most input length + 50 tokens.

generate() stays the one door: greedy search, sampling, logits processors, stopping criteria and streamers are those of
transformers. What differs is the search itself, and the limit on the output's length, which is each sentence's own.
"""

from dataclasses import dataclass

import torch
from torch import nn
from transformers.generation import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

from .configuration_vanilla import VanillaConfig


def default_generation_config(config: VanillaConfig) -> GenerationConfig:
    """The search of 6.1: beam 4, alpha 0.6 (`length_penalty`), and at most `max_extra_tokens` more than the source has."""
    return GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        max_extra_tokens=50,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def gnmt_penalty(length: torch.Tensor | int, alpha: float) -> torch.Tensor | float:
    """((5 + |Y|) / 6)^alpha: what log P(Y|X) is divided by (6.1, after Wu et al. 2016, Eq. 14). |Y| counts EOS."""
    return ((5 + length) / 6) ** alpha


class SourceLengthCriteria(StoppingCriteria):
    """Ends each sequence at its own number of tokens."""

    def __init__(self, lengths: torch.Tensor):
        self.lengths = lengths

    def __call__(self, input_ids: torch.Tensor, scores, **kwargs) -> torch.Tensor:
        return input_ids.shape[1] >= self.lengths


@dataclass
class Hypotheses:
    """K sequences for each of B sentences, best first.

    tokens (B, K, length) with the prompt; score (B, K), -inf where there is none; path (B, K, steps), the row of the
    flattened (B * K) batch that each generated token came from, -1 past the end.
    """

    tokens: torch.Tensor
    score: torch.Tensor
    path: torch.Tensor

    def best(self, k: int) -> "Hypotheses":
        return self.take(self.score.topk(k).indices)

    def take(self, index: torch.Tensor) -> "Hypotheses":
        """Those at `index` (B, k)."""
        rows = torch.arange(index.shape[0], device=index.device)[:, None]
        return Hypotheses(self.tokens[rows, index], self.score[rows, index], self.path[rows, index])

    def join(self, other: "Hypotheses") -> "Hypotheses":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Hypotheses(*(torch.cat(pair, dim=1) for pair in pairs))

    def lengthen(self, pad_token_id: int) -> "Hypotheses":
        return Hypotheses(
            nn.functional.pad(self.tokens, (0, 1), value=pad_token_id),
            self.score,
            nn.functional.pad(self.path, (0, 1), value=-1),
        )

    def extend(self, parent: torch.Tensor, token: torch.Tensor, score: torch.Tensor) -> "Hypotheses":
        """The continuations of those at `parent` (B, k) by `token` (B, k)."""
        taken = self.take(parent)
        first_row = torch.arange(parent.shape[0], device=parent.device)[:, None] * self.tokens.shape[1]
        return Hypotheses(
            torch.cat((taken.tokens, token[..., None]), dim=-1),
            score,
            torch.cat((taken.path, (parent + first_row)[..., None]), dim=-1),
        )


class GnmtGenerationMixin(GenerationMixin):
    """GenerationMixin with the search of 6.1 behind generate(num_beams=...).

    `length_penalty` is GNMT's alpha. `max_extra_tokens` is the output's limit beyond each source's own length; giving
    `max_new_tokens` or `max_length` replaces it.
    """

    def _prepare_model_inputs(self, inputs, bos_token_id, model_kwargs):
        inputs, name, model_kwargs = super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)
        # transformers leaves an encoder-decoder without a mask reading the padding.
        if name == "input_ids" and model_kwargs.get("attention_mask") is None:
            model_kwargs["attention_mask"] = (inputs != self.config.pad_token_id).long()
        return inputs, name, model_kwargs

    def _prepare_generated_length(
        self,
        generation_config,
        has_default_max_length,
        has_default_min_length,
        model_input_name,
        input_ids_length,
        inputs_tensor,
    ):
        extra = getattr(generation_config, "max_extra_tokens", None)
        if has_default_max_length and generation_config.max_new_tokens is None and extra is not None:
            generation_config.max_length = input_ids_length + inputs_tensor.shape[1] + extra
            if self.config.position_embedding_type == "learned":
                generation_config.max_length = min(generation_config.max_length, self.config.max_position_embeddings)
            has_default_max_length = False
        else:
            generation_config.max_extra_tokens = None
        return super()._prepare_generated_length(
            generation_config,
            has_default_max_length,
            has_default_min_length,
            model_input_name,
            input_ids_length,
            inputs_tensor,
        )

    def _validate_generated_length(self, generation_config, input_ids_length, has_default_max_length):
        # The default is the paper's, not the "model-agnostic" one that transformers warns of.
        has_default_max_length &= getattr(generation_config, "max_extra_tokens", None) is None
        super()._validate_generated_length(generation_config, input_ids_length, has_default_max_length)

    def _expand_inputs_for_generation(self, expand_size=1, is_encoder_decoder=False, input_ids=None, **model_kwargs):
        # Only the decoder's side is repeated: the beams of a sentence share its encoding (see CrossAttention).
        decoder = {name: value for name, value in model_kwargs.items() if name.startswith("decoder_")}
        input_ids, decoder = super()._expand_inputs_for_generation(
            expand_size=expand_size, is_encoder_decoder=False, input_ids=input_ids, **decoder
        )
        return input_ids, {**model_kwargs, **decoder}

    def _length_limits(self, generation_config, input_ids: torch.Tensor, model_kwargs: dict) -> torch.Tensor:
        """The most tokens, prompt included, that each row of input_ids (rows, prompt) may grow to. (rows,)"""
        longest = torch.full((input_ids.shape[0],), generation_config.max_length, device=input_ids.device)
        extra = getattr(generation_config, "max_extra_tokens", None)
        mask = model_kwargs.get("attention_mask")
        if extra is None or mask is None:
            return longest
        own = mask.sum(dim=-1).repeat_interleave(input_ids.shape[0] // mask.shape[0]) + extra + input_ids.shape[1]
        return torch.minimum(longest, own)

    def _sample(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        limits = self._length_limits(generation_config, input_ids, kwargs)
        criteria = StoppingCriteriaList([*stopping_criteria, SourceLengthCriteria(limits)])
        return super()._sample(input_ids, logits_processor, criteria, generation_config, **kwargs)

    def _beam_search(
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        **model_kwargs,
    ) -> GenerateBeamEncoderDecoderOutput | torch.Tensor:
        """Beam search by tensor2tensor's rules.

        Of the 2 * beam best continuations, those that end in EOS compete for the finished list with
        log P / ((5 + |Y|) / 6)^alpha, and the best others live on. A sentence is done at its length limit, or as soon
        as its worst finished score is out of reach for the living. |Y| counts generated tokens, EOS included.

        Args:
            input_ids: (B * beams, prompt) decoder prompts, each repeated for its beams. The rest as in GenerationMixin.
        """
        config = generation_config
        beams, alpha = config.num_beams, config.length_penalty
        eos, pad = config._eos_token_tensor, int(config._pad_token_tensor)
        # EOS and the limit are judged here; what else the user gave ends a hypothesis as EOS does.
        other_criteria = StoppingCriteriaList(
            [rule for rule in stopping_criteria if not isinstance(rule, MaxLengthCriteria | EosTokenCriteria)]
        )
        model_kwargs["output_attentions"] = config.output_attentions
        model_kwargs["output_hidden_states"] = config.output_hidden_states
        trace = _Trace(config)

        tokens = input_ids.view(-1, beams, input_ids.shape[1])
        batch_size, _, prompt_length = tokens.shape
        limits = self._length_limits(config, input_ids, model_kwargs)[::beams] - prompt_length
        score = torch.zeros(tokens.shape[:2], device=tokens.device)
        no_path = torch.empty((*tokens.shape[:2], 0), dtype=torch.long, device=tokens.device)
        nothing = torch.full_like(score, -torch.inf)
        # All beams start from the same prompt: only the first counts, or each would find the same continuations.
        alive = Hypotheses(tokens, torch.where(torch.arange(beams, device=tokens.device) == 0, score, nothing), no_path)
        finished = Hypotheses(tokens, nothing, no_path)
        done = torch.zeros(batch_size, dtype=torch.bool, device=tokens.device)
        length = 0

        while self._has_unfinished_sequences(bool(done.all()), synced_gpus, device=tokens.device):
            flat_tokens = alive.tokens.flatten(0, 1)
            new_tokens = flat_tokens[:, -1:] if length and model_kwargs.get("use_cache") else flat_tokens
            outputs = self(decoder_input_ids=new_tokens, **model_kwargs, return_dict=True)
            if done.all():
                continue  # another process is still searching and needs this one's part in each forward
            model_kwargs["past_key_values"] = outputs.past_key_values
            logits = outputs.logits[:, -1].float()
            log_probs = logits_processor(flat_tokens, logits.log_softmax(dim=-1))
            trace.add(outputs, logits, log_probs)

            candidates = (alive.score[..., None] + log_probs.view(batch_size, beams, -1)).flatten(1)
            keep = min(beams * (1 + max(1, eos.numel())), candidates.shape[1])
            if config.do_sample:
                top = torch.multinomial(candidates.softmax(dim=-1), keep)
                top = top.gather(1, candidates.gather(1, top).argsort(dim=1, descending=True))
            else:
                top = candidates.topk(keep).indices
            vocabulary = log_probs.shape[-1]
            grown = alive.extend(top // vocabulary, top % vocabulary, candidates.gather(1, top))
            length += 1
            ended = torch.isin(grown.tokens[..., -1], eos)
            if other_criteria:
                ended |= other_criteria(grown.tokens.flatten(0, 1), None).view_as(ended)

            ending = Hypotheses(
                grown.tokens,
                (grown.score / gnmt_penalty(length, alpha)).masked_fill(~ended | done[:, None], -torch.inf),
                grown.path,
            )
            finished = finished.lengthen(pad).join(ending).best(beams)
            alive = Hypotheses(grown.tokens, grown.score.masked_fill(ended, -torch.inf), grown.path).best(beams)
            done |= (length >= limits) | _out_of_reach(finished.score, alive.score, length, limits, config)
            if model_kwargs["past_key_values"] is not None:
                model_kwargs["past_key_values"].self_attention_cache.reorder_cache(alive.path[..., -1].flatten())
            if model_kwargs.get("decoder_attention_mask") is not None:
                model_kwargs["decoder_attention_mask"] = nn.functional.pad(
                    model_kwargs["decoder_attention_mask"], (0, 1), value=1
                )

        best = _finished_first(finished, alive, gnmt_penalty(length, alpha)).take(
            torch.arange(config.num_return_sequences, device=tokens.device).expand(batch_size, -1)
        )
        steps = int((best.path >= 0).sum(dim=-1).max())
        sequences = best.tokens.flatten(0, 1)[:, : prompt_length + steps]
        if not config.return_dict_in_generate:
            return sequences
        return trace.output(sequences, best, steps, model_kwargs)


def _out_of_reach(finished_score, alive_score, length, limits, config) -> torch.Tensor:
    """Whether no living hypothesis can still enter the finished list. (B,)

    Log P only falls as a hypothesis grows, so its best possible score is the present log P over the penalty that is
    kindest to it: the one at the limit, or for a negative alpha the next one. early_stopping=True does not wait.
    """
    full = finished_score[:, -1] > -torch.inf
    if config.early_stopping is True:
        return full
    alpha = config.length_penalty
    kindest = torch.maximum(gnmt_penalty(limits, alpha), torch.as_tensor(gnmt_penalty(length + 1, alpha)))
    return full & (finished_score[:, -1] >= alive_score[:, 0] / kindest)


def _finished_first(finished: Hypotheses, alive: Hypotheses, penalty) -> Hypotheses:
    """The finished, and behind them, where there are too few, the living with their score so far."""
    alive = Hypotheses(alive.tokens, alive.score / penalty, alive.path)
    missing = (finished.score == -torch.inf).int() * 2
    order = torch.cat((missing, torch.ones_like(missing)), dim=1).argsort(dim=1, stable=True)
    return finished.join(alive).take(order)


class _Trace:
    """What return_dict_in_generate gives besides the sequences: one entry a step of each thing asked for."""

    def __init__(self, config: GenerationConfig):
        asked = {
            "scores": config.output_scores,
            "logits": config.output_logits,
            "decoder_attentions": config.output_attentions,
            "cross_attentions": config.output_attentions,
            "decoder_hidden_states": config.output_hidden_states,
        }
        self.config = config
        self.steps = {name: [] for name, wanted in asked.items() if wanted and config.return_dict_in_generate}

    def add(self, outputs, logits: torch.Tensor, log_probs: torch.Tensor) -> None:
        for name, steps in self.steps.items():
            steps.append({"scores": log_probs, "logits": logits}.get(name, outputs.get(name)))

    def output(self, sequences, best: Hypotheses, steps: int, model_kwargs: dict) -> GenerateBeamEncoderDecoderOutput:
        encoder_outputs = model_kwargs["encoder_outputs"]
        return GenerateBeamEncoderDecoderOutput(
            sequences=sequences,
            sequences_scores=best.score.flatten() if self.config.output_scores else None,
            beam_indices=best.path.flatten(0, 1)[:, :steps],
            encoder_attentions=encoder_outputs.get("attentions") if self.config.output_attentions else None,
            encoder_hidden_states=encoder_outputs.get("hidden_states") if self.config.output_hidden_states else None,
            past_key_values=model_kwargs["past_key_values"],
            **{name: tuple(values) for name, values in self.steps.items()},
        )


__all__ = ["GnmtGenerationMixin", "SourceLengthCriteria", "default_generation_config", "gnmt_penalty"]
