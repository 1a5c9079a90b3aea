"""Section 6.1: beam search with the length penalty of GNMT, at most input length + 50 tokens.

generate() stays the one door: greedy search, sampling, logits processors, stopping criteria and streamers are those of
transformers. What differs is the search itself, and the limit on the output's length, which is each sentence's own.
"""

import math
from dataclasses import dataclass
from numbers import Integral, Real

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.generation import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutput

from .configuration_vanilla import VanillaConfig


def default_generation_config(config: VanillaConfig) -> GenerationConfig:
    """The search of 6.1: beam 4, alpha 0.6 (`length_penalty`), at most 50 tokens more than the source has."""
    return GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        length_penalty_type="gnmt",
        max_extra_tokens=50,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


LENGTH_PENALTIES = ("gnmt", "length")


def length_penalty(length: torch.Tensor | int, alpha: float, kind: str = "gnmt") -> torch.Tensor | float:
    """What log P(Y|X) is divided by. |Y| counts EOS.

    kind "gnmt": ((5 + |Y|) / 6)^alpha (6.1, after Wu et al. 2016, Eq. 14); "length": |Y|^alpha, as in transformers.
    """
    return ((5 + length) / 6 if kind == "gnmt" else length) ** alpha


def check_generation_inputs(
    config: VanillaConfig,
    generation_config: GenerationConfig,
    input_ids: torch.Tensor | None,
    attention_mask: torch.Tensor | None = None,
    **settings,
) -> None:
    """Find fault with what generate() is given, before any of it is computed.

    Args:
        input_ids: (B, S) source tokens, if it is these that are given. attention_mask: (B, S).
        settings: what goes before the fields of generation_config.

    Raises:
        ValueError: for a setting or a tensor that has no meaning; it names the field and the value.
    """

    def check(name: str, kind: type, least: float, what: str) -> None:
        value = settings.get(name, getattr(generation_config, name, None))
        number = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not (number and value >= least):
            raise ValueError(f"{name} must be {what}, not {value!r}")

    check("num_beams", Integral, 1, "a whole number of at least 1")
    check("max_extra_tokens", Integral, 0, "a whole number of at least 0")
    check("length_penalty", Real, -math.inf, "a finite number")
    kind = settings.get("length_penalty_type", getattr(generation_config, "length_penalty_type", None))
    if kind is not None and kind not in LENGTH_PENALTIES:
        raise ValueError(f"length_penalty_type must be one of {', '.join(LENGTH_PENALTIES)}, not {kind!r}")
    if input_ids is None:
        return
    if input_ids.dim() != 2 or not input_ids.numel():
        raise ValueError(f"input_ids must be (sentences, tokens) and not empty, not of shape {tuple(input_ids.shape)}")
    least, most = (int(bound) for bound in input_ids.aminmax())
    if least < 0 or most >= config.vocab_size:
        raise ValueError(
            f"input_ids must be from 0 to {config.vocab_size - 1}, as vocab_size is {config.vocab_size}; "
            f"{least if least < 0 else most} is not"
        )
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask must have the shape of input_ids, {tuple(input_ids.shape)}, "
            f"not {tuple(attention_mask.shape)}"
        )


# Tokens whose largest log-probability is looked at before any of them: a width that torch's maximum is fast at.
BLOCK = 64
# Logits that are turned into log-probabilities at once.
AT_ONCE = 2**18
# Finished sentences leave the batch when no more of it than this is still searched: it costs a copy of all the rest.
FEW_ENOUGH = 7 / 8


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

    def row(self, rows: torch.Tensor) -> "Hypotheses":
        """Those of some sentences, by a mask (B,) or their numbers."""
        return Hypotheses(self.tokens[rows], self.score[rows], self.path[rows])

    def take(self, index: torch.Tensor) -> "Hypotheses":
        """Those at `index` (B, k) of each sentence."""
        rows = torch.arange(index.shape[0], device=index.device)[:, None]
        return Hypotheses(self.tokens[rows, index], self.score[rows, index], self.path[rows, index])

    def best(self, k: int) -> "Hypotheses":
        """The k with the highest score, or all where there are no more."""
        return self.take(self.score.topk(min(k, self.score.shape[1])).indices)

    def only(self, mask: torch.Tensor, penalty: float = 1.0) -> "Hypotheses":
        """With the scores divided by `penalty`, and none where `mask` (B, K) is False."""
        return Hypotheses(self.tokens, (self.score / penalty).masked_fill(~mask, -torch.inf), self.path)

    def join(self, other: "Hypotheses") -> "Hypotheses":
        """Both sets as one."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Hypotheses(*(torch.cat(pair, dim=1) for pair in pairs))

    def lengthen(self, pad_token_id: int, by: int = 1) -> "Hypotheses":
        """Padded by some more steps."""
        return Hypotheses(
            nn.functional.pad(self.tokens, (0, by), value=pad_token_id),
            self.score,
            nn.functional.pad(self.path, (0, by), value=-1),
        )

    def grow(self, score: torch.Tensor, index: torch.Tensor, vocabulary: int) -> "Hypotheses":
        """Continued by one token each: from `index` (B, k), hypothesis * V + token, with the new `score` (B, k)."""
        parent, token = index // vocabulary, index % vocabulary
        taken = self.take(parent)
        first_row = torch.arange(index.shape[0], device=index.device)[:, None] * self.score.shape[1]
        return Hypotheses(
            torch.cat((taken.tokens, token[..., None]), dim=-1),
            score,
            torch.cat((taken.path, (parent + first_row)[..., None]), dim=-1),
        )


class GnmtGenerationMixin(GenerationMixin):
    """GenerationMixin with the search of 6.1 behind generate(num_beams=...).

    `length_penalty` is GNMT's alpha. With `length_penalty_type="length"` it is transformers' exponent of the length,
    and the rules of the search are those of transformers, too, so that outputs can be compared. `max_extra_tokens` is
    the output's limit beyond each source's own length; giving `max_new_tokens` or `max_length` replaces it.
    """

    @torch.no_grad()
    def generate(self, inputs=None, generation_config=None, *args, **kwargs):
        """As GenerationMixin's, and takes the same; raises ValueError as `check_generation_inputs` does."""
        source = inputs if inputs is not None else kwargs.get("input_ids")
        given = {name: value for name, value in kwargs.items() if name != "input_ids"}
        check_generation_inputs(self.config, generation_config or self.generation_config, source, **given)
        # Autocast keeps the weights that it has converted, but not in inference mode: there it would convert them anew
        # in every step. (GenerationMixin switches gradients off.)
        with torch.inference_mode(False):
            return super().generate(inputs, generation_config, *args, **kwargs)

    def adjust_generation_fn(self, *args, **kwargs):
        super().adjust_generation_fn(*args, **kwargs)
        # A folder without a generation configuration, such as VanillaModel writes, is searched as any other.
        if self.generation_config._from_model_config:
            self.generation_config = default_generation_config(self.config)

    def _prepare_model_inputs(self, inputs, bos_token_id, model_kwargs):
        inputs, name, model_kwargs = super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)
        # transformers leaves an encoder-decoder without a mask reading the padding.
        pads = name == "input_ids" and self.config.pad_token_id is not None
        if pads and model_kwargs.get("attention_mask") is None:
            model_kwargs["attention_mask"] = (inputs != self.config.pad_token_id).long()
        return inputs, name, model_kwargs

    def _prepare_generation_config(self, generation_config, *args, **kwargs):
        # What the caller of generate() says of the length counts. A max_length in the model's own configuration does
        # not: Seq2SeqTrainer leaves a 20 there.
        given = generation_config is not None and generation_config.max_length is not None
        given |= kwargs.get("max_length") is not None
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, *args, **kwargs)
        if given or generation_config.max_new_tokens is not None:
            generation_config.max_extra_tokens = None
        return generation_config, model_kwargs

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
        if extra is not None:
            has_default_max_length = False
            generation_config.max_length = input_ids_length + inputs_tensor.shape[1] + extra
            if self.config.position_embedding_type == "learned":
                generation_config.max_length = min(generation_config.max_length, self.config.max_position_embeddings)
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

        By the rules of transformers (`length_penalty_type="length"`), the score is log P / |Y|^alpha, only the `beam`
        best continuations may end, and at the limit the living compete as if they had ended.

        Args:
            input_ids: (B * beams, prompt) decoder prompts, each repeated for its beams. The rest as in GenerationMixin.
        """
        config = generation_config
        beams, alpha = config.num_beams, config.length_penalty
        kind = getattr(config, "length_penalty_type", None) or "gnmt"
        eos, pad = config._eos_token_tensor, config._pad_token_tensor
        eos = torch.empty(0, dtype=torch.long, device=input_ids.device) if eos is None else eos
        pad = 0 if pad is None else int(pad)
        # EOS and the limit are judged here; what else the user gave ends a hypothesis as EOS does.
        other_criteria = StoppingCriteriaList(
            [rule for rule in stopping_criteria if not isinstance(rule, MaxLengthCriteria | EosTokenCriteria)]
        )
        model_kwargs.pop("labels", None)  # Seq2SeqTrainer passes them on
        model_kwargs["output_attentions"] = config.output_attentions
        model_kwargs["output_hidden_states"] = config.output_hidden_states
        trace = _Trace(config)
        tokens = input_ids.unflatten(0, (-1, beams))
        batch_size, _, prompt_length = tokens.shape
        limits = self._length_limits(config, input_ids, model_kwargs)[::beams] - prompt_length
        longest = [rule.max_length - prompt_length for rule in stopping_criteria if isinstance(rule, MaxLengthCriteria)]
        limits = limits.clamp(max=min(longest, default=None))
        nothing = torch.full(tokens.shape[:2], -torch.inf, device=tokens.device)
        # All beams start from the same prompt: only the first counts, or each would find the same continuations.
        score = nothing.clone()
        score[:, 0] = 0
        no_path = torch.empty((*tokens.shape[:2], 0), dtype=torch.long, device=tokens.device)
        alive, finished = Hypotheses(tokens, score, no_path), Hypotheses(tokens, nothing, no_path)
        # Finished sentences leave the batch, unless somebody must find each at its row or see every step's whole batch.
        seen_by_row = other_criteria or any(_may_know_rows(one, batch_size, beams) for one in logits_processor)
        shrinks = not (config.return_dict_in_generate or synced_gpus or seen_by_row)
        side_by_side = shrinks and _can_lie_side_by_side(self, model_kwargs)
        if shrinks:
            alive = alive.best(1)
            if model_kwargs.get("decoder_attention_mask") is not None:
                model_kwargs["decoder_attention_mask"] = model_kwargs["decoder_attention_mask"][::beams]
        if side_by_side:
            _lay_side_by_side(model_kwargs, alive.tokens, self.dtype)
        sentences = torch.arange(batch_size, device=tokens.device)  # which one each row of the batch is
        searching = torch.ones_like(sentences, dtype=torch.bool)  # whether the sentence of that row is not done yet
        results: list[tuple[torch.Tensor, Hypotheses]] = []  # which sentences, and theirs
        keep = beams * (1 + max(1, eos.numel()))
        length = 0

        while self._has_unfinished_sequences(not searching.any(), synced_gpus, device=tokens.device):
            flat_tokens = alive.tokens.flatten(0, 1)
            if side_by_side:
                new_tokens = alive.tokens[..., -1] if length else alive.tokens[:, 0]
            else:
                new_tokens = flat_tokens[:, -1:] if length and model_kwargs.get("use_cache") else flat_tokens
            outputs = self(decoder_input_ids=new_tokens, **model_kwargs, return_dict=True)
            if not searching.any():
                continue  # another process is still searching and needs this one's part in each forward
            model_kwargs["past_key_values"] = outputs.past_key_values
            logits = outputs.logits[:, -alive.tokens.shape[1] if side_by_side else -1 :].flatten(0, 1)
            if logits_processor or trace.steps or config.do_sample:
                logits = logits.float()
                log_probs = logits_processor(flat_tokens, logits.log_softmax(dim=-1))
                trace.add(outputs, logits, log_probs)
                continuations = (_sampled_sums if config.do_sample else _largest_sums)(alive.score, log_probs, keep)
            else:
                continuations = _largest_sums_of_logits(alive.score, logits, keep)
            grown = alive.grow(*continuations, logits.shape[-1])
            length += 1
            ended = torch.isin(grown.tokens[..., -1], eos)
            if other_criteria:
                ended |= other_criteria(grown.tokens.flatten(0, 1), None).view_as(ended)
            may_end = ended
            if kind == "length":
                ended = ended | (length >= limits)[:, None]
                may_end = ended & (torch.arange(ended.shape[1], device=ended.device) < beams)
            ending = grown.only(may_end, length_penalty(length, alpha, kind))
            finished = finished.lengthen(pad).join(ending).best(beams)
            parents, alive = alive, grown.only(~ended).best(beams)

            done = (length >= limits) | _out_of_reach(finished.score, alive.score, length, limits, kind, config)
            newly = done & searching
            searching = searching & ~done
            if newly.any():
                best = _finished_first(finished.row(newly), alive.row(newly), length_penalty(length, alpha, kind))
                results.append((sentences[newly], best))
            if shrinks and searching.sum() <= len(searching) * FEW_ENOUGH:
                alive, finished = alive.row(searching), finished.row(searching)
                sentences, limits = sentences[searching], limits[searching]
                _drop_sentences(model_kwargs, searching, side_by_side)
                searching = searching[searching]
            if side_by_side:
                _see_on(model_kwargs, alive.path[..., -1], parents.score.shape[1])
            else:
                _reorder(model_kwargs, alive.path[..., -1])

        longest = max(best.tokens.shape[-1] for _, best in results)
        padded = [vars(best.lengthen(pad, longest - best.tokens.shape[-1])).values() for _, best in results]
        best = Hypotheses(*(torch.cat(parts) for parts in zip(*padded, strict=True)))
        best = best.row(torch.cat([rows for rows, _ in results]).argsort())
        best = best.take(torch.arange(config.num_return_sequences, device=tokens.device).expand(batch_size, -1))
        steps = int((best.path >= 0).sum(dim=-1).max())
        sequences = best.tokens.flatten(0, 1)[:, : prompt_length + steps]
        if not config.return_dict_in_generate:
            return sequences
        return trace.output(sequences, best, steps, model_kwargs)


def _may_know_rows(processor: LogitsProcessor, batch_size: int, beams: int) -> bool:
    """Whether a logits processor may treat a row of the batch by its place there.

    One of transformers' own can know the place only by what it holds: as many things as there are rows or sentences, a
    function that it calls with the row, an object with a memory. One from elsewhere may do anything.
    """
    if not type(processor).__module__.startswith("transformers."):
        return True
    for held in vars(processor).values():
        if isinstance(held, torch.Tensor | list | tuple | dict):
            size = held.shape[:1].numel() if isinstance(held, torch.Tensor) else len(held)
            if size in (batch_size, batch_size * beams):
                return True
        elif not (held is None or isinstance(held, Real | str)):
            return True
    return False


def _sampled_sums(score: torch.Tensor, log_probs: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `_largest_sums`, of sums drawn without replacement in proportion to their exponentials."""
    sums = (score[..., None] + log_probs.view(*score.shape, -1)).flatten(1)
    # The largest of the sums plus Gumbel noise are such a draw, even from too few.
    index = (sums - torch.empty_like(sums).exponential_().log()).topk(min(keep, sums.shape[1])).indices
    drawn, order = sums.gather(1, index).sort(dim=1, descending=True)
    return drawn, index.gather(1, order)


def _largest_sums_of_logits(score: torch.Tensor, logits: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`_largest_sums` of the log_probs that the logits (B * K, V) give, without ever holding all of them.

    Some sentences at a time stay in the processor's cache, and a small piece of memory is had again where a large one
    is fetched from the system anew in every step.
    """
    beams = score.shape[1]
    count = max(1, AT_ONCE // (beams * logits.shape[-1]))
    parts = [
        _largest_sums(some, part.float().log_softmax(dim=-1), keep)
        for some, part in zip(score.split(count), logits.split(count * beams), strict=True)
    ]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def _largest_sums(score: torch.Tensor, log_probs: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `keep` largest sums of a hypothesis' score (B, K) and a token's log_prob (B * K, V), largest first.

    A block of tokens whose largest is not among the `keep` largest of all blocks' has none to give: most tokens are
    looked at once, by a plain maximum, and only the others are sorted.

    Returns:
        The sums and their index, hypothesis * V + token. Each (B, keep), or what there is.
    """
    batch_size, beams = score.shape
    vocabulary = log_probs.shape[-1]
    blocks = vocabulary // BLOCK
    rest = torch.arange(blocks * BLOCK, vocabulary, device=score.device)  # too few for a block: all of them are sorted
    index = (torch.arange(beams, device=score.device)[:, None] * vocabulary + rest).flatten().expand(batch_size, -1)
    if blocks:
        largest = log_probs[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)).amax(dim=-1).view(batch_size, beams, -1)
        block = (score[..., None] + largest).flatten(1).topk(min(keep, beams * blocks), sorted=False).indices
        first = block // blocks * vocabulary + block % blocks * BLOCK
        within = torch.arange(BLOCK, device=score.device)
        index = torch.cat(((first[..., None] + within).flatten(1), index), dim=1)
    sums = score.gather(1, index // vocabulary) + log_probs.view(batch_size, -1).gather(1, index)
    best, order = sums.topk(min(keep, beams * vocabulary))
    return best, index.gather(1, order)


def _out_of_reach(finished_score, alive_score, length, limits, kind, config) -> torch.Tensor:
    """Whether no living hypothesis can still be among those returned. (B,)

    Log P only falls as a hypothesis grows, so its best possible score is the present log P over the penalty that is
    kindest to it: the one at the limit, or for a negative alpha the next one. early_stopping=True does not wait.
    transformers takes the present length for the kindest unless early_stopping is "never", and waits for all beams.
    """
    alpha = config.length_penalty
    if config.early_stopping is True:
        return (finished_score[:, -1] > -torch.inf) | (alive_score[:, 0] == -torch.inf)
    if kind == "length":
        longest = limits if config.early_stopping == "never" and alpha > 0 else length
        return finished_score[:, -1] >= alive_score[:, 0] / length_penalty(longest, alpha, kind)
    kindest = length_penalty(limits if alpha > 0 else length + 1, alpha)
    return finished_score[:, config.num_return_sequences - 1] >= alive_score[:, 0] / kindest


def _finished_first(finished: Hypotheses, alive: Hypotheses, penalty: float) -> Hypotheses:
    """The finished, and behind them, where there are too few, the living with their score so far."""
    alive = alive.only(alive.score > -torch.inf, penalty)
    missing = (finished.score == -torch.inf).int() * 2
    order = torch.cat((missing, torch.ones_like(alive.score)), dim=1).argsort(dim=1, stable=True)
    return finished.join(alive).take(order[:, : missing.shape[1]])


def _drop_sentences(model_kwargs: dict, left: torch.Tensor, side_by_side: bool) -> None:
    """Keep, of what is held by sentence, the sentences that are `left` (B,)."""
    left = left.nonzero().flatten()
    memory = model_kwargs["encoder_outputs"].last_hidden_state
    model_kwargs["encoder_outputs"] = BaseModelOutput(memory[left])
    if model_kwargs.get("attention_mask") is not None:
        model_kwargs["attention_mask"] = model_kwargs["attention_mask"][left]
    past = model_kwargs["past_key_values"]
    if past is not None:
        past.cross_attention_cache.reorder_cache(left)
        if side_by_side:
            past.self_attention_cache.reorder_cache(left)


def _reorder(model_kwargs: dict, parents: torch.Tensor) -> None:
    """Bring what is held by hypothesis into the order of the new ones, given the rows (B, K) of their `parents`."""
    rows = parents.flatten()
    if model_kwargs["past_key_values"] is not None:
        model_kwargs["past_key_values"].self_attention_cache.reorder_cache(rows)
    mask = model_kwargs.get("decoder_attention_mask")
    if mask is not None:
        model_kwargs["decoder_attention_mask"] = nn.functional.pad(mask[rows], (0, 1), value=1)


def _can_lie_side_by_side(model: PreTrainedModel, model_kwargs: dict) -> bool:
    """Whether the beams of a sentence can be further positions of one row, told apart by a mask.

    Their keys and values then stay where they are when beams change places. It takes a back end that any mask can be
    given to, and a cache that grows as it is needed.
    """
    past = model_kwargs.get("past_key_values")
    if past is None or past.get_seq_length() or model_kwargs.get("decoder_attention_mask") is not None:
        return False
    configs = [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    any_mask = all(one._attn_implementation in ("eager", "sdpa") and one.attention_window is None for one in configs)
    return any_mask and type(past.self_attention_cache) is DynamicCache


def _lay_side_by_side(model_kwargs: dict, prompts: torch.Tensor, dtype: torch.dtype) -> None:
    """Begin with the masks that the layers want: whole ones, of numbers to add. prompts (B, 1, T)"""
    batch_size, _, length = prompts.shape
    causal = torch.ones(length, length, dtype=torch.bool, device=prompts.device).tril()
    model_kwargs["decoder_attention_mask"] = _as_numbers(causal, dtype).expand(batch_size, 1, -1, -1)
    model_kwargs["decoder_position_ids"] = torch.arange(length, device=prompts.device)[None]
    mask = model_kwargs.get("attention_mask")
    if mask is not None:
        model_kwargs["attention_mask"] = None if mask.all() else _as_numbers(mask.bool()[:, None, None], dtype)


def _see_on(model_kwargs: dict, parents: torch.Tensor, beams: int) -> None:
    """Let each new token see what its parent saw, and itself. parents (B, K): their rows among `beams` a sentence."""
    batch_size, count = parents.shape
    mask = model_kwargs["decoder_attention_mask"]
    itself = _as_numbers(torch.eye(count, dtype=torch.bool, device=mask.device), mask.dtype)
    seen = mask[:, 0, -beams:].flatten(0, 1)[parents]
    seen = torch.cat((seen, itself.expand(batch_size, -1, -1)), dim=-1)
    model_kwargs["decoder_attention_mask"] = seen[:, None]
    model_kwargs["decoder_position_ids"] = model_kwargs["decoder_position_ids"][:, -1:] + 1


def _as_numbers(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to a score: nothing where the mask is True."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


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


__all__ = [
    "GnmtGenerationMixin",
    "SourceLengthCriteria",
    "check_generation_inputs",
    "default_generation_config",
    "length_penalty",
]
