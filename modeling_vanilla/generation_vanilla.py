"""Section 6.1's search, and its limit by the length of each source, behind generate() of transformers."""

import copy
import functools
import inspect
import math
from numbers import Integral, Real

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    GenerationMode,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

from .cache_vanilla import CACHE, OLD_NAME, named_cache
from .configuration_vanilla import VanillaConfig, token_ids
from .search_vanilla import LENGTH_PENALTIES, BeamSearch, BeamSearchOutput, NextTokens

OWN_VALUES = ("max_extra_tokens", "length_penalty_type")  # which transformers' generate() does not know
# Values that count something, and the least that each may be.
LEAST = {"num_beams": 1, "num_return_sequences": 1, "max_new_tokens": 1, "max_length": 1, "max_extra_tokens": 0}
# Values for which None counts as not given, as in Seq2SeqTrainer; transformers would fail.
NEVER_NONE = ("num_beams", "num_return_sequences", "length_penalty")
# The processors of transformers that treat each row by itself; a caller's own may say so by an attribute `row_by_row`.
# Others know a sentence by its row (encoder_..., guidance_scale, SynthID's). One that is missing here only costs time;
# a wrong one would change the result.
_NAMES = """ExponentialDecayLengthPenalty ForcedBOSTokenLogitsProcessor ForcedEOSTokenLogitsProcessor
InfNanRemoveLogitsProcessor LogitNormalization MinLengthLogitsProcessor MinNewTokensLengthLogitsProcessor
NoBadWordsLogitsProcessor NoRepeatNGramLogitsProcessor RepetitionPenaltyLogitsProcessor SequenceBiasLogitsProcessor
SuppressTokensAtBeginLogitsProcessor SuppressTokensLogitsProcessor WatermarkLogitsProcessor"""
ROW_BY_ROW = _NAMES.split()
# The processors of transformers that may raise a token's score above log 1, so that a score may rise with its length.
# A caller's own counts as one unless it says `never_raises`.
_RAISING = """ExponentialDecayLengthPenalty SequenceBiasLogitsProcessor WatermarkLogitsProcessor
UnbatchedClassifierFreeGuidanceLogitsProcessor SynthIDTextWatermarkLogitsProcessor"""
RAISING = _RAISING.split()
SEARCH = {"num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "gnmt", "max_extra_tokens": 50}  # 6.1
LEAST_TEMPERATURE = 1e-6  # below, logits divided by it overflow


def default_generation_config(config: VanillaConfig) -> GenerationConfig:
    """The search of 6.1: beam 4, alpha 0.6 (`length_penalty`), at most 50 tokens more than the source has."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    tokens = {name: getattr(config, name) for name in names}
    tokens["pad_token_id"] = next(iter(token_ids(config.pad_token_id)), None)  # transformers saves no negative
    return GenerationConfig(**SEARCH, **tokens)


def complete_search(search: GenerationConfig, num_beams: int | None = None) -> None:
    """Give a search of several beams that names no length penalty that of 6.1; transformers' own default is another.

    num_beams: of the search; None for its own. transformers refuses to save a penalty without beams.
    """
    if getattr(search, "length_penalty_type", None) is None:
        search.length_penalty_type = SEARCH["length_penalty_type"]
    is_own = search.length_penalty_type == SEARCH["length_penalty_type"]
    if is_own and search.length_penalty is None and (num_beams or search.num_beams or 1) > 1:
        search.length_penalty = SEARCH["length_penalty"]


def savable(search: GenerationConfig) -> GenerationConfig:
    """A copy that transformers saves: without beams, it refuses a length penalty and early stopping."""
    search = copy.copy(search)
    if (search.num_beams or 1) == 1:
        search.length_penalty = search.early_stopping = None
    return search


def generation_config_of(
    model: PreTrainedModel, generation_config: GenerationConfig | None = None, **given
) -> GenerationConfig:
    """The values of a call: given, else generation_config's, else the model's; ValueError for impossible ones."""
    config = copy.copy(model.generation_config)
    for name, value in _given(model, generation_config, given).items():
        if name in OWN_VALUES or hasattr(config, name):
            setattr(config, name, value)
    if model.config.model_type == VanillaConfig.model_type:
        complete_search(config)

    def require(condition: bool, name: str, meaning: str) -> None:
        if not condition:
            raise ValueError(f"{name} must be {meaning}, not {getattr(config, name)!r}")

    for name, least in LEAST.items():
        value = getattr(config, name, None)
        is_count = isinstance(value, Integral) and not isinstance(value, bool)
        require(value is None or (is_count and value >= least), name, f"a whole number of at least {least}")
    alpha, known = config.length_penalty, (None, *LENGTH_PENALTIES)
    is_alpha = isinstance(alpha, Real) and abs(alpha) <= 10  # beyond, the penalty of long outputs overflows
    require(alpha is None or is_alpha, "length_penalty", "a number from -10 to 10")
    require(getattr(config, "length_penalty_type", None) in known, "length_penalty_type", "gnmt or length")
    for name, value in vars(config).items():
        require(not isinstance(value, float) or math.isfinite(value), name, "finite")
    temperature = config.temperature
    cold = isinstance(temperature, Real) and 0 < temperature < LEAST_TEMPERATURE  # transformers refuses those up to 0
    require(not cold, "temperature", f"at least {LEAST_TEMPERATURE}")
    return config


def follows_the_source(config: GenerationConfig, given: dict) -> bool:
    """Whether max_extra_tokens limits the outputs of a call that gives neither max_new_tokens nor max_length."""
    if getattr(config, "max_extra_tokens", None) is None:
        return False
    # Seq2SeqTrainer writes transformers' default, 20, into the configuration of each model that it evaluates.
    has_other = config.max_new_tokens or config.max_length not in (None, 20)
    return given.get("max_extra_tokens") is not None or not has_other


def _given(model: PreTrainedModel, generation_config: GenerationConfig | None, given: dict) -> dict:
    """What a call of generate() sets: by the configuration that it passes, and by its arguments, which win.

    A value of the configuration that equals the model's own counts as not given: it may be a copy.
    """
    known, own = {*vars(GenerationConfig()), *OWN_VALUES}, vars(model.generation_config)
    configured = {} if generation_config is None else vars(generation_config)
    configured = {name: value for name, value in configured.items() if name in known and name[0] != "_"}
    configured = {name: value for name, value in configured.items() if value is not None and value != own.get(name)}
    given = {name: value for name, value in given.items() if value is not None or name not in NEVER_NONE}
    return {**configured, **given}


class SourceLengthCriteria(StoppingCriteria):
    """Ends each sequence at the length of its sentence, lengths (B,); a sentence may have several rows."""

    def __init__(self, lengths: Tensor, can_pad: bool):
        self.lengths = lengths
        if can_pad:
            self.eos_token_id = None  # transformers pads rows that are done if a criterion has this attribute

    def __call__(self, input_ids: Tensor, scores, **kwargs) -> Tensor:
        return input_ids.shape[1] >= self.lengths.repeat_interleave(len(input_ids) // len(self.lengths))


class ForcedEos(LogitsProcessor):
    """Forces EOS, one of `eos`, on each sequence at the length of its sentence, lengths (B,), as its last token.

    transformers' own forces it at the limit of the batch.
    """

    row_by_row = never_raises = True

    def __init__(self, lengths: Tensor, eos: int | list[int]):
        self.lengths, self.eos = lengths, eos

    def select(self, sentences: Tensor) -> "ForcedEos":
        """The processor of some sentences of the batch, given as indices (B',)."""
        return ForcedEos(self.lengths[sentences], self.eos)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids (rows, length), with as many rows for each sentence; scores (rows, V)."""
        last = input_ids.shape[1] + 1 >= self.lengths.repeat_interleave(len(input_ids) // len(self.lengths))
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.eos] = 0
        return torch.where(last[:, None], forced, scores)


class GnmtGenerationMixin(GenerationMixin):
    """GenerationMixin with the search of 6.1 behind generate(num_beams=...)."""

    @torch.no_grad()
    def generate(self, *args, search=BeamSearch, **kwargs):
        """As GenerationMixin's, with the search and the limit of 6.1.

        The limit of the output is max_new_tokens, max_length, or the source's length + max_extra_tokens, whichever the
        call or its generation_config sets, in this order; else the first that the model's own has, but for a
        max_length of 20; else that of transformers. `length_penalty` is GNMT's alpha; with
        length_penalty_type="length" all rules are those of transformers. Sampling with beams is left to transformers.
        `search` is BeamSearch or a subclass of it.
        """
        given = inspect.signature(super().generate).bind(*args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        inputs, generation_config = given.pop("inputs", None), given.pop("generation_config", None)
        given = named_cache(_given(self, generation_config, given), CACHE)
        given.pop("labels", None)  # Seq2SeqTrainer passes them on
        config = generation_config_of(self, **given)
        # A negative token means none; transformers would pad with it, also with EOS.
        given |= {name: None for name in ("pad_token_id", "eos_token_id") if not token_ids(getattr(config, name))}
        ids, pad = given.get("input_ids") if inputs is None else inputs, self.config.pad_token_id
        is_padding = pad is not None and pad not in token_ids(self.config.eos_token_id)
        if ids is not None and is_padding and given.get("attention_mask") is None:
            # Else, transformers lets an encoder-decoder read the padding.
            given["attention_mask"] = (ids != pad).long()
        if given.get("encoder_outputs") is not None:  # of which transformers repeats each row in place
            given["encoder_outputs"] = copy.copy(given["encoder_outputs"])
        limits, new_tokens = {name: given.get(name) for name in ("max_new_tokens", "max_length")}, None
        prompt = _prompt_length(given.get("decoder_input_ids"), config)
        if any(limits.values()):
            given |= limits
        elif follows_the_source(config, given):
            new_tokens = _source_lengths(ids, given) + config.max_extra_tokens
            if self.config.position_embedding_type == "learned":
                new_tokens = new_tokens.clamp(max=max(1, self.config.max_position_embeddings - prompt))
            given |= {"max_new_tokens": int(new_tokens.max()), "max_length": None}
            if config.forced_eos_token_id is not None:
                forced = ForcedEos(prompt + new_tokens, config.forced_eos_token_id)
                given["logits_processor"] = [forced, *(given.get("logits_processor") or ())]
                given["forced_eos_token_id"] = None
        criteria = given["stopping_criteria"] = list(given.get("stopping_criteria") or ())
        if given.get("custom_generate") is None and config.get_generation_mode() is GenerationMode.BEAM_SEARCH:
            for name in ("streamer", "decoder_attention_mask"):
                if given.get(name) is not None:
                    raise ValueError(f"beam search takes no {name}, a search with num_beams=1 does")
            if config.stop_strings is not None and given.get("tokenizer") is not None:
                # transformers does not pass the tokenizer on.
                criteria.append(StopStringCriteria(given.pop("tokenizer"), config.stop_strings))
                given["stop_strings"] = None
            # transformers decides by FSDP and ZeRO-3 for its own searches, and does not tell this one.
            mode = self._extract_generation_mode_kwargs(None, {}, given.pop("synced_gpus", None), None, None)
            complete_search(self.generation_config, config.num_beams)  # Seq2SeqTrainer fills what is None
            if config.length_penalty is not None:
                given["length_penalty"] = config.length_penalty
            given["custom_generate"] = functools.partial(
                beam_search,
                search=search,
                penalty_type=config.length_penalty_type,
                new_tokens=new_tokens,
                synced_gpus=mode["synced_gpus"],
            )
        elif new_tokens is not None:
            criteria.append(SourceLengthCriteria(prompt + new_tokens, bool(token_ids(config.pad_token_id))))
        given = {name: value for name, value in given.items() if name not in OWN_VALUES}
        return super().generate(inputs, **given)

    @functools.wraps(GenerationMixin.prepare_inputs_for_generation)  # which transformers asks for its arguments
    def prepare_inputs_for_generation(self, *args, **kwargs):
        """As GenerationMixin's, with the cache by the name under which PEFT replaces it with a tuned prefix."""
        return named_cache(super().prepare_inputs_for_generation(*args, **kwargs), OLD_NAME)

    def create_masks_for_generate(self, *, attention_mask=None, **kwargs):
        """The decoder makes its mask itself; that of transformers for a static cache would replace it."""
        return attention_mask


def _prompt_length(decoder_input_ids: Tensor | None, config: GenerationConfig) -> int:
    """The number of tokens in the decoder's prompt; transformers puts the start token before one that lacks it."""
    start = config.bos_token_id if config.decoder_start_token_id is None else config.decoder_start_token_id
    if decoder_input_ids is None or start is None:  # transformers raises an error where there is no start token
        return 1
    starts = torch.as_tensor(start, device=decoder_input_ids.device)  # () or (B,)
    return decoder_input_ids.shape[1] + int((decoder_input_ids[:, 0] != starts).all())


def _source_lengths(ids: Tensor | None, given: dict) -> Tensor:
    """The number of tokens of each source (B,), without padding if there is a mask."""
    if given.get("attention_mask") is not None:
        return (given["attention_mask"] != 0).sum(dim=-1)
    sources = (ids, given.get("inputs_embeds"), (given.get("encoder_outputs") or [None])[0])
    source = next(source for source in sources if source is not None)
    return torch.full((len(source),), source.shape[1], device=source.device)


def _is_of_the_search(criterion: StoppingCriteria, config: GenerationConfig) -> bool:
    """Whether it is a limit or the EOS of the configuration, both of which BeamSearch handles."""
    if type(criterion) is EosTokenCriteria:
        return {*criterion.eos_token_id.tolist()} == {*token_ids(config.eos_token_id)}
    return isinstance(criterion, MaxLengthCriteria)


def _may_raise(processor: LogitsProcessor) -> bool:
    """Whether it may raise a token's score above log 1."""
    kind = type(processor)
    known = kind.__name__ in RAISING if kind.__module__.startswith("transformers.") else True
    return known and not getattr(processor, "never_raises", False)


def beam_search(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    search=BeamSearch,
    penalty_type: str = "gnmt",
    new_tokens: Tensor | None = None,
    synced_gpus: bool = False,
    **model_kwargs,
) -> BeamSearchOutput | Tensor:
    """Beam search (6.1), as GenerationMixin.generate calls it: with each sentence K times.

    input_ids: (B * K, prompt), the decoder's prompts. new_tokens: (B,), the limit of each sentence. synced_gpus:
    whether the processes that share the weights take as many steps.
    """
    config = generation_config
    criteria = StoppingCriteriaList(one for one in stopping_criteria if not _is_of_the_search(one, config))
    limit = min(criterion.max_length for criterion in stopping_criteria if isinstance(criterion, MaxLengthCriteria))
    prompts = input_ids.unflatten(0, (-1, config.num_beams))
    limits = torch.full((len(prompts),), limit - prompts.shape[-1], device=input_ids.device)
    limits = limits if new_tokens is None else torch.minimum(limits, new_tokens)
    # Sentences that are done leave the batch, unless each step is returned, a processor or criterion may know a
    # sentence by its row, or the last one must stay for other processes.
    row_by_row = all(type(one).__name__ in ROW_BY_ROW or getattr(one, "row_by_row", False) for one in logits_processor)
    drop_done = row_by_row and not (criteria or config.return_dict_in_generate or synced_gpus)
    prompts = prompts[:, :1] if drop_done else prompts
    decoder = NextTokens(model, config, logits_processor, model_kwargs)
    decoder.reorder(torch.arange(0, len(input_ids), config.num_beams if drop_done else 1, device=input_ids.device))
    state = search(config, prompts, limits, criteria, drop_done, penalty_type)
    state.scores_fall = not any(map(_may_raise, logits_processor))
    while model._has_unfinished_sequences(done := not state.searching.any(), synced_gpus, input_ids.device):
        if done:
            decoder.idle(state.alive.tokens.flatten(0, 1))
            continue
        log_probs, unprocessed = decoder.log_probs(state.alive.tokens.flatten(0, 1))
        rows, sentences = state.step(log_probs, unprocessed)
        decoder.reorder(rows, sentences)
    best = state.finish()
    return decoder.output(best, state) if config.return_dict_in_generate else best.tokens.flatten(0, 1)
