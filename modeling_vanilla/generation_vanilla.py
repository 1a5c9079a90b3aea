"""Section 6.1's search and limit of the output behind generate() of transformers.

Greedy search, sampling, assisted decoding, logits processors, stopping criteria and streamers are transformers' own.
Ours are beam search, which transformers calls as the `custom_generate` that it is handed, and the limit on the output's
length, which depends on each sentence's own source.

A private name of transformers in this file, which any release may change (test_generation.py tells whether one did):
`GenerationMixin._valid_auto_compile_criteria`, whether a step is compiled. It is overridden, as transformers compiles
with a static cache alone; greedy search and sampling ask nothing else.
"""

import copy
import functools
import inspect
import json
from numbers import Integral, Real
from pathlib import Path

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.generation import (
    CompileConfig,
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    logits_process,
)
from transformers.generation.utils import is_deepspeed_zero3_enabled, is_fsdp_managed_module
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import GENERATION_CONFIG_NAME, ModelOutput, cached_file, logging

from .cache_vanilla import CACHE, named_cache
from .configuration_vanilla import VanillaConfig, named_tokens
from .constraints_vanilla import Constraints, ForcedPrefix, phrases_of
from .search_vanilla import LENGTH_PENALTIES, BeamSearch, BeamSearchOutput, NextTokens

logger = logging.get_logger(__name__)

# The further positional arguments of generate().
POSITIONAL = list(inspect.signature(GenerationMixin.generate).parameters)[3:]
# Settings of this search that transformers' generate() does not know.
OWN_SETTINGS = ("max_extra_tokens", "length_penalty_type")
# Each beam holds a score for every token of the vocabulary: 150 MB for a sentence, at 1000 beams and 37000 tokens.
MAX_BEAMS = 1000
# At an alpha of 10 either penalty of 7000 tokens is a 32-bit float; the paper has 0.6.
MAX_ALPHA = 10
# Settings that count something, and the least that each may be.
LEAST = {"num_beams": 1, "num_return_sequences": 1, "max_new_tokens": 1, "max_length": 1}
LEAST |= {"max_extra_tokens": 0, "min_length": 0, "min_new_tokens": 0}
# Settings of which None means that the call does not set them, as Seq2SeqTrainer takes it; transformers would fail.
NEVER_NONE = ("num_beams", "num_return_sequences", "length_penalty")
# Processors of transformers that treat each row by itself. One of any other kind may keep something for each row of the
# batch, which is then kept whole.
ROW_BY_ROW = (
    ForcedPrefix,  # which the search tells of the sentences that remain
    logits_process.ForcedEOSTokenLogitsProcessor,
    logits_process.MinLengthLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.NoBadWordsLogitsProcessor,
    logits_process.NoRepeatNGramLogitsProcessor,
    logits_process.RepetitionPenaltyLogitsProcessor,
    logits_process.SuppressTokensLogitsProcessor,
)


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


def search_settings(
    model: PreTrainedModel, generation_config: GenerationConfig | None = None, **given
) -> GenerationConfig:
    """The settings of a call of generate(): those given, else generation_config's, else the model's.

    Raises:
        ValueError: as `check_search_settings` does.
    """
    settings = copy.deepcopy(model.generation_config)
    for name, value in _without_none({**_set_in(generation_config), **given}).items():
        if name in OWN_SETTINGS or hasattr(settings, name):
            setattr(settings, name, value)
    check_search_settings(settings)
    return settings


def _without_none(settings: dict) -> dict:
    """The settings without those of NEVER_NONE that are None."""
    return {name: value for name, value in settings.items() if value is not None or name not in NEVER_NONE}


def _set_in(generation_config: GenerationConfig | None) -> dict:
    """What is set in a configuration that generate() is called with."""
    values = {} if generation_config is None else vars(generation_config)
    known = (*vars(GenerationConfig()), *OWN_SETTINGS)
    return {name: value for name, value in values.items() if value is not None and name in known and name[0] != "_"}


def check_search_settings(generation_config: GenerationConfig) -> None:
    """Raise ValueError for a setting that has no meaning; it names the setting and the value.

    At most MAX_BEAMS beams and an alpha from -MAX_ALPHA to MAX_ALPHA are taken.
    """

    def refuse(name: str, meaning: str) -> None:
        raise ValueError(f"{name} must be {meaning}, not {getattr(generation_config, name)!r}")

    for name, least in LEAST.items():
        value = getattr(generation_config, name, None)
        if value is not None and not (isinstance(value, Integral) and type(value) is not bool and value >= least):
            refuse(name, f"a whole number of at least {least}")
    if (generation_config.num_beams or 1) > MAX_BEAMS:
        refuse("num_beams", f"at most {MAX_BEAMS}")
    alpha = generation_config.length_penalty
    if alpha is not None and not (isinstance(alpha, Real) and type(alpha) is not bool and abs(alpha) <= MAX_ALPHA):
        refuse("length_penalty", f"a number from -{MAX_ALPHA} to {MAX_ALPHA}")
    if getattr(generation_config, "length_penalty_type", None) not in (None, *LENGTH_PENALTIES):
        refuse("length_penalty_type", f"one of {', '.join(LENGTH_PENALTIES)}")


class SourceLengthCriteria(StoppingCriteria):
    """Ends each sequence at its own number of tokens.

    Args:
        lengths: (B,), of each sentence, which may have several rows.
    """

    def __init__(self, lengths: torch.Tensor):
        self.lengths = lengths

    def __call__(self, input_ids: torch.Tensor, scores, **kwargs) -> torch.Tensor:
        lengths = self.lengths.to(input_ids.device)  # without a source they are on the CPU
        return input_ids.shape[1] >= lengths.repeat_interleave(len(input_ids) // len(lengths))


def generate(
    model: PreTrainedModel,
    inputs: torch.Tensor | None = None,
    generation_config: GenerationConfig | None = None,
    *args,
    **kwargs,
) -> ModelOutput | torch.Tensor:
    """generate() of an encoder-decoder of transformers, with the search and the limit of 6.1.

    The limit of the output: max_new_tokens or max_length, where the call, or the generation_config that it hands over,
    sets one; else the source's own length + max_extra_tokens, where the call, its generation_config or
    model.generation_config sets that; else what transformers does.

    In a folder with custom_generate/generate.py this is called by
    model.generate(..., custom_generate=FOLDER, trust_remote_code=True).

    Args:
        args, kwargs: what the model's generate() takes, max_extra_tokens, length_penalty_type, as `length_penalty` has
            it, and force_words_ids, as `phrases_of` takes them.

    Raises:
        ValueError: as `check_search_settings` does, for a model without an encoder, for force_words_ids in another
            search, for constraints, and for a streamer in this one.
    """
    if not model.config.is_encoder_decoder:
        raise ValueError(f"the search is one of encoder-decoders; {type(model).__name__} is none")
    given = {**_set_in(generation_config), **dict(zip(POSITIONAL, args, strict=False)), **kwargs}
    given = named_cache(_without_none(given), CACHE)
    given.pop("labels", None)  # Seq2SeqTrainer passes them on
    settings = search_settings(model, **given)
    encoded = given.get("encoder_outputs")
    if encoded is not None:  # of a tuple transformers would make no source; and in a ModelOutput it repeats each row
        given["encoder_outputs"] = BaseModelOutput(*encoded) if isinstance(encoded, tuple) else copy.copy(encoded)
    limits, new_tokens = output_limits(model.config, settings, inputs, given)
    given = {name: value for name, value in given.items() if name not in OWN_SETTINGS} | limits
    criteria = given["stopping_criteria"] = list(given.get("stopping_criteria") or ())
    with_beams = (settings.num_beams or 1) > 1 and (getattr(settings, "num_beam_groups", None) or 1) == 1
    customised = given.get("custom_generate") is not None
    if settings.force_words_ids is not None and not customised and (settings.do_sample or not with_beams):
        raise ValueError("force_words_ids need a search with num_beams of at least 2 and do_sample=False")
    if given.get("constraints") is not None and not customised:
        raise ValueError("constraints are not taken; give their words as force_words_ids")
    if with_beams and not customised:
        if given.get("streamer") is not None:
            raise ValueError("a streamer needs num_beams=1")
        if settings.stop_strings is not None and given.get("tokenizer") is not None:
            # transformers does not hand the tokenizer over.
            criteria.append(StopStringCriteria(given.pop("tokenizer"), settings.stop_strings))
            given["stop_strings"] = None
        given["force_words_ids"] = None  # by their name transformers would look for the search that it has taken out
        given["custom_generate"] = functools.partial(
            beam_search,
            penalty_type=getattr(settings, "length_penalty_type", None) or "gnmt",
            new_tokens=new_tokens,
            phrases=settings.force_words_ids,
            share_encoding=getattr(model, "beams_share_encoding", False),
            synced_gpus=_gpus_are_synced(model) if given.get("synced_gpus") is None else given["synced_gpus"],
        )
    elif new_tokens is not None:
        prompt = _prompt_length(settings, given.get("decoder_input_ids"))
        criteria.append(SourceLengthCriteria(prompt + new_tokens))
    return GenerationMixin.generate(model, inputs, **given)


def beam_search(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    penalty_type: str = "gnmt",
    new_tokens: torch.Tensor | None = None,
    phrases: list | None = None,
    share_encoding: bool = False,
    synced_gpus: bool = False,
    **model_kwargs,
) -> BeamSearchOutput | torch.Tensor:
    """Beam search (6.1), or with do_sample sampling with beams.

    The model is used through `NextTokens.log_probs` and `NextTokens.reorder` alone.

    Args:
        input_ids: (B * K, prompt), decoder prompts, each K times, as are the encoder's outputs.
        penalty_type: as `length_penalty` takes it. new_tokens: (B,), the most tokens that each sentence may get.
        phrases: force_words_ids, as `phrases_of` takes them.
        share_encoding: whether the model takes one encoding for all beams of a sentence.
        synced_gpus: whether forward passes go on until all processes are done.
    """
    config = generation_config
    # EOS and the limits are the search's own matter.
    own = MaxLengthCriteria | EosTokenCriteria
    criteria = StoppingCriteriaList(criterion for criterion in stopping_criteria if not isinstance(criterion, own))
    limit = min(criterion.max_length for criterion in stopping_criteria if isinstance(criterion, MaxLengthCriteria))
    prompts = input_ids.unflatten(0, (-1, config.num_beams))
    limits = torch.full((len(prompts),), limit - prompts.shape[-1], device=input_ids.device)
    limits = limits if new_tokens is None else torch.minimum(limits, new_tokens.to(limits.device))
    # Sentences that are done leave the batch, unless a caller gets each step's whole batch, or a processor or
    # criterion may look for a sentence at its row.
    row_by_row = not criteria and all(type(processor) in ROW_BY_ROW for processor in logits_processor)
    drop_done = row_by_row and not (config.return_dict_in_generate or synced_gpus)
    prompts = prompts[:, :1] if drop_done else prompts
    decoder = NextTokens(model, config, logits_processor, model_kwargs, share_encoding)
    decoder.reorder(torch.arange(0, len(input_ids), config.num_beams if drop_done else 1, device=input_ids.device))
    search = BeamSearch.start(config, prompts, limits, criteria, drop_done, penalty_type)
    if phrases is not None:
        vocab_size = getattr(model.config, "vocab_size", float("inf"))  # some models have none, or two
        of_sentences = phrases_of(phrases, len(prompts), search.eos.tolist(), vocab_size)
        search.constraints = Constraints.start(of_sentences, prompts, limits, search.eos)
    while any_process(search.searching.any(), synced_gpus, input_ids.device):
        log_probs = decoder.log_probs(search.alive.tokens.flatten(0, 1))
        if search.searching.any():  # otherwise, another process needs this one's part in the forward pass
            decoder.reorder(*search.step(*log_probs))
    best = search.finish()
    return decoder.output(best, search) if config.return_dict_in_generate else best.tokens.flatten(0, 1)


def any_process(searching: torch.Tensor, synced_gpus: bool, device: torch.device) -> bool:
    """Whether this process is searching, or with synced_gpus any."""
    if synced_gpus:
        searching = searching.to(device, torch.float32)
        torch.distributed.all_reduce(searching, op=torch.distributed.ReduceOp.MAX)
    return bool(searching)


def output_limits(
    config: PreTrainedConfig, settings: GenerationConfig, inputs: torch.Tensor | None, given: dict
) -> tuple[dict[str, int | None], torch.Tensor | None]:
    """The limit of the output, by the rule that `generate` documents.

    Args:
        config: the model's. settings: of the whole call. given: in the call itself. inputs: the source, or it is there.

    Returns:
        What transformers is to take as the limit, and the most new tokens of each sentence, (B,), where they depend on
        its source.
    """
    limits = {name: given.get(name) for name in ("max_new_tokens", "max_length")}
    extra = getattr(settings, "max_extra_tokens", None)
    if any(limits.values()):
        return limits, None
    if extra is None:
        return {}, None
    new_tokens = _source_lengths(inputs, given) + extra
    if getattr(config, "position_embedding_type", None) == "learned":
        prompt = given.get("decoder_input_ids")
        read = config.max_position_embeddings - (1 if prompt is None else prompt.shape[1])
        new_tokens = new_tokens.clamp(max=max(1, read))
    return {"max_new_tokens": int(new_tokens.max()), "max_length": None}, new_tokens


def _source_lengths(inputs: torch.Tensor | None, given: dict) -> torch.Tensor:
    """The tokens of each source, without padding where there is a mask. (B,)"""
    if given.get("attention_mask") is not None:
        return (given["attention_mask"] != 0).sum(dim=-1)
    encoded = given.get("encoder_outputs")
    sources = (inputs, given.get("input_ids"), given.get("inputs_embeds"), None if encoded is None else encoded[0])
    source = next((source for source in sources if source is not None), torch.empty(1, 1))  # transformers takes BOS
    return torch.full((len(source),), source.shape[1], device=source.device)


def _prompt_length(settings: GenerationConfig, decoder_input_ids: torch.Tensor | None) -> int:
    """Of the decoder's prompt: transformers puts the start token before one that lacks it in all rows."""
    if decoder_input_ids is None:
        return 1
    start = settings.bos_token_id if settings.decoder_start_token_id is None else settings.decoder_start_token_id
    start = torch.as_tensor(start, device=decoder_input_ids.device)  # a list has one for each row
    return decoder_input_ids.shape[1] + int((decoder_input_ids[:, 0] != start).all())


def _gpus_are_synced(model: PreTrainedModel) -> bool:
    """Whether processes need each other's forward passes, as transformers has it: it does not hand this over."""
    sharded = is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)
    return sharded and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


@functools.cache
def can_compile(device_type: str) -> bool:
    """Whether torch.compile works for a device; if it does not, a warning says why."""
    try:
        torch.compile(torch.neg)(torch.zeros(2, device=device_type))
    except Exception as error:  # of torch's many kinds
        logger.warning("compile: this goes on without, as torch.compile fails: %s", str(error).strip().splitlines()[0])
        return False
    return True


class GnmtGenerationMixin(GenerationMixin):
    """GenerationMixin with the search of 6.1 behind generate(num_beams=...).

    `length_penalty` is GNMT's alpha. With `length_penalty_type="length"` it is transformers' exponent of the length,
    and the other rules of the search are those of transformers, too, so that outputs can be compared.
    """

    # In beam search; see CrossAttention.
    beams_share_encoding = True

    @torch.no_grad()
    def generate(self, inputs=None, generation_config=None, *args, compile: bool = False, **kwargs):
        """As GenerationMixin's, and takes the same; search and limit as the function `generate` has them.

        Args:
            compile: compile the decoding step by torch.compile: once, for batches and lengths of any size. Where that
                fails, as without a C++ compiler, there is a warning, and the step runs as it is.

        Raises:
            ValueError: as `generate` does, for tensors that do not belong together, and with `compile` for a model that
                cannot be compiled.
        """
        if compile and not self._can_compile_fullgraph:
            raise ValueError(f"compile: a {type(self).__name__} cannot be compiled")
        if compile and can_compile(self.device.type):
            kwargs["compile_config"] = CompileConfig(dynamic=True, mode="default")
        ids, pad = kwargs.get("input_ids") if inputs is None else inputs, self.config.pad_token_id
        is_padding = pad is not None and pad not in named_tokens(self.config.eos_token_id)
        if ids is not None and is_padding and kwargs.get("attention_mask") is None:
            # Without a mask, transformers lets an encoder-decoder read the padding.
            kwargs["attention_mask"] = (ids != pad).long()
        # Autocast caches the weights that it has converted, but not in inference mode: there it would convert them
        # again in every step. (GenerationMixin switches gradients off.)
        with torch.inference_mode(False):
            return generate(self, inputs, generation_config, *args, **kwargs)

    def adjust_generation_fn(self, generation_config, from_auto_class, from_pipeline, name, *args, **kwargs):
        """Called by from_pretrained: read generation_config.json; a folder without one gets the default search.

        Raises:
            ValueError: if the file is bad, for which transformers takes another configuration without a word, or its
                decoder would be given a token that the model does not have.
        """
        try:
            super().adjust_generation_fn(generation_config, from_auto_class, from_pipeline, name, *args, **kwargs)
            if generation_config is None and name is not None:
                where = {key: kwargs[key] for key in ("cache_dir", "revision", "subfolder") if key in kwargs}
                saved = _saved_generation_config(name, **where)
                self.generation_config = saved or default_generation_config(self.config)
            check_search_settings(self.generation_config)
            _check_tokens(self.generation_config, self.config.vocab_size)
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"the generation configuration of {name} is bad: {' '.join(str(error).split())}"
            ) from error

    def create_masks_for_generate(self, *, attention_mask=None, **kwargs):
        """The decoder makes its own mask, with the window; transformers' for a static cache would take its place."""
        return attention_mask

    def _valid_auto_compile_criteria(self, model_kwargs, generation_config) -> bool:
        # transformers compiles with a static cache alone, where each step attends to all positions there may ever be.
        config = generation_config.compile_config
        if config is not None and config.dynamic:
            return True
        return super()._valid_auto_compile_criteria(model_kwargs, generation_config)


def _check_tokens(generation_config: GenerationConfig, vocab_size: int) -> None:
    """Raise ValueError if the decoder would be given a token that the model does not have."""
    for field in ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"):
        for token in named_tokens(getattr(generation_config, field)):
            if token >= vocab_size:
                raise ValueError(f"{field} {token}: the model has {vocab_size} tokens")


def _saved_generation_config(name: str, **where) -> GenerationConfig | None:
    """That of a folder, or of what is downloaded of a repository, if it has one; ValueError if that is no JSON."""
    try:
        file = cached_file(name, GENERATION_CONFIG_NAME, **where, local_files_only=True)
    except OSError:
        return None
    try:
        return GenerationConfig.from_dict(json.loads(Path(file).read_text(encoding="utf-8")))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"it cannot be read as JSON: {error}") from error


__all__ = [
    "GnmtGenerationMixin",
    "SourceLengthCriteria",
    "check_search_settings",
    "default_generation_config",
    "generate",
    "search_settings",
]
