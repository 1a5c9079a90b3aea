"""Section 6.1: beam search with the length penalty of GNMT, at most input length + 50 tokens.

generate() of transformers is the one entry point: greedy search, sampling, logits processors, stopping criteria and
streamers are those of transformers. Ours are beam search and the limit on the output's length, which depends on each
sentence's own source.

Axes: B sentences, K beams, V vocabulary.
"""

import functools
import math
from dataclasses import dataclass, field, replace
from numbers import Integral, Real

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.generation import (
    CompileConfig,
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    logits_process,
)
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import GENERATION_CONFIG_NAME, cached_file, logging

from .configuration_vanilla import VanillaConfig
from .constraints_vanilla import Constraints, ForcedPrefix, phrases_of
from .cpu_vanilla import log_softmax, top_sums

logger = logging.get_logger(__name__)


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


def length_penalty(length: torch.Tensor | int, alpha: float, penalty_type: str = "gnmt") -> torch.Tensor | float:
    """What log P(Y|X) is divided by; |Y| is the number of generated tokens, EOS included.

    penalty_type "gnmt": ((5 + |Y|) / 6)^alpha (6.1, after Wu et al. 2016, Eq. 14); "length": |Y|^alpha, as in
    transformers.
    """
    return ((5 + length) / 6 if penalty_type == "gnmt" else length) ** float(alpha)


# Each beam holds a score for every token of the vocabulary: 150 MB for a sentence, at 1000 beams and 37000 tokens.
MAX_BEAMS = 1000
# At an alpha of 10 either penalty of 7000 tokens is a 32-bit float; the paper has 0.6.
MAX_ALPHA = 10
# Settings that count something, and the least that each may be.
LEAST = {"num_beams": 1, "num_return_sequences": 1, "max_new_tokens": 1, "max_length": 1}
LEAST |= {"max_extra_tokens": 0, "min_length": 0, "min_new_tokens": 0}
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def check_search_settings(config: PreTrainedConfig, generation_config: GenerationConfig, **given) -> None:
    """Check the settings of a search.

    At most MAX_BEAMS beams and an alpha from -MAX_ALPHA to MAX_ALPHA are taken.

    Args:
        given: settings of a call, in place of those of generation_config, where None means that one is not set.

    Raises:
        ValueError: for a setting that has no meaning; it names the setting and the value.
    """

    def refuse(name: str, wanted: str, value) -> None:
        raise ValueError(f"{name} must be {wanted}, not {value!r}")

    names = (*LEAST, *TOKENS, "length_penalty", "length_penalty_type", "do_sample")
    settings = {name: getattr(generation_config, name, None) for name in names}
    settings = {name: value for name, value in settings.items() if value is not None}
    needed = ("num_beams", "num_return_sequences", "length_penalty")
    settings |= {name: value for name, value in given.items() if value is not None or name in needed}
    for name, least in LEAST.items():
        if name in settings and not (_is_whole(settings[name]) and settings[name] >= least):
            refuse(name, f"a whole number of at least {least}", settings[name])
    if settings.get("num_beams", 1) > MAX_BEAMS:
        refuse("num_beams", f"at most {MAX_BEAMS}", settings["num_beams"])
    alpha = settings.get("length_penalty", 1.0)
    if not isinstance(alpha, Real) or isinstance(alpha, bool) or not abs(alpha) <= MAX_ALPHA:
        refuse("length_penalty", f"a number from -{MAX_ALPHA} to {MAX_ALPHA}", alpha)
    if settings.get("length_penalty_type", "gnmt") not in LENGTH_PENALTIES:
        refuse("length_penalty_type", f"one of {', '.join(LENGTH_PENALTIES)}", settings["length_penalty_type"])
    if not isinstance(settings.get("do_sample", False), bool):
        refuse("do_sample", "True or False", settings["do_sample"])
    vocab_size = getattr(config, "vocab_size", math.inf)  # a model of another package may have none, or two
    for name in TOKENS:
        ids = settings.get(name, [])
        ids = ids.flatten().tolist() if isinstance(ids, torch.Tensor) else ids
        for token_id in ids if isinstance(ids, list) else [ids]:
            if not (_is_whole(token_id) and 0 <= token_id < vocab_size):
                refuse(name, f"a token of the vocabulary, from 0 to {vocab_size - 1}", token_id)


def _is_whole(value) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_generation_inputs(
    config: VanillaConfig,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    inputs_embeds: torch.Tensor | None = None,
    encoder_outputs: BaseModelOutput | tuple | None = None,
    decoder_input_ids: torch.Tensor | None = None,
    decoder_attention_mask: torch.Tensor | None = None,
    **others,
) -> None:
    """Check the tensors that generate() is given before anything is computed; `others` are not looked at.

    Args:
        input_ids: (B, S) source tokens; or inputs_embeds: (B, S, D); or encoder_outputs. attention_mask: (B, S).
        decoder_input_ids: (B, T), by default the start token. decoder_attention_mask: of the same shape.

    Raises:
        ValueError: for a tensor that has no meaning; it names the tensor and the value.
    """
    for name, ids in {"input_ids": input_ids, "decoder_input_ids": decoder_input_ids}.items():
        if ids is not None:
            _check_ids(config, name, ids)
    sources = [input_ids, inputs_embeds, None if encoder_outputs is None else encoder_outputs[0]]
    shape = next((source.shape[:2] for source in sources if source is not None), None)
    if shape is None:
        return
    target = (shape[0], 1) if decoder_input_ids is None else decoder_input_ids.shape
    if target[0] != shape[0]:
        raise ValueError(f"decoder_input_ids are of {target[0]} sentences, the source of {shape[0]}")
    masks = {"attention_mask": (attention_mask, shape), "decoder_attention_mask": (decoder_attention_mask, target)}
    for name, (mask, shape) in masks.items():
        if mask is not None and mask.shape != shape:
            raise ValueError(
                f"{name} must be of shape {tuple(shape)}, as its tokens are, not {tuple(mask.shape)}; "
                "only forward() takes a mask of four axes"
            )


def _check_ids(config: VanillaConfig, name: str, ids: torch.Tensor) -> None:
    if ids.dim() != 2 or not ids.numel():
        raise ValueError(f"{name} must be (sentences, tokens) and not empty, not of shape {tuple(ids.shape)}")
    least, most = (int(bound) for bound in ids.aminmax())
    if least < 0 or most >= config.vocab_size:
        raise ValueError(
            f"{name} must be from 0 to {config.vocab_size - 1}, as vocab_size is {config.vocab_size}; "
            f"{least if least < 0 else most} is not"
        )


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


# Sentences that are done leave the batch when no more of it than this is still searched, as the rest is copied
# (benchmarks/decode.py).
FEW_ENOUGH = 7 / 8


# Of cached_file: None for a file that is neither in the folder nor downloaded.
_ONLY_IF_HERE = {"local_files_only": True, "_raise_exceptions_for_missing_entries": False}
_ONLY_IF_HERE["_raise_exceptions_for_connection_errors"] = False


@functools.cache
def can_compile(device_type: str) -> bool:
    """Whether torch.compile works for a device; if it does not, a warning says why."""
    try:
        torch.compile(torch.neg)(torch.zeros(2, device=device_type))
    except Exception as error:  # of torch's many kinds
        logger.warning("compile: this goes on without, as torch.compile fails: %s", str(error).strip().splitlines()[0])
        return False
    return True


class SourceLengthCriteria(StoppingCriteria):
    """Ends each sequence at its own number of tokens."""

    def __init__(self, lengths: torch.Tensor):
        self.lengths = lengths

    def __call__(self, input_ids: torch.Tensor, scores, **kwargs) -> torch.Tensor:
        return input_ids.shape[1] >= self.lengths


class GnmtGenerationMixin(GenerationMixin):
    """GenerationMixin with the search of 6.1 behind generate(num_beams=...).

    `length_penalty` is GNMT's alpha. With `length_penalty_type="length"` it is transformers' exponent of the length,
    and the other rules of the search are those of transformers, too, so that outputs can be compared. The limit of the
    output is the source's own length + `max_extra_tokens`; `max_new_tokens` or `max_length`, given to generate() or set
    in model.generation_config, replaces it.
    """

    @torch.no_grad()
    def generate(self, inputs=None, generation_config=None, *args, compile: bool = False, **kwargs):
        """As GenerationMixin's, and takes the same.

        Args:
            compile: compile the decoding step by torch.compile: once, for batches and lengths of any size. Where that
                fails, as without a C++ compiler, there is a warning, and the step runs as it is.

        Raises:
            ValueError: as `check_search_settings` and `check_generation_inputs` do, if the positions are learned and
                the output may be longer than them, and if a model that cannot be compiled is to be.
        """
        if compile and not self._can_compile_fullgraph:
            raise ValueError(f"compile: a {type(self).__name__} cannot be compiled")
        if compile and can_compile(self.device.type):
            kwargs["compile_config"] = CompileConfig(dynamic=True, mode="default")
        check_search_settings(self.config, generation_config or self.generation_config, **kwargs)
        check_generation_inputs(self.config, **(kwargs if inputs is None else {**kwargs, "input_ids": inputs}))
        if isinstance(kwargs.get("encoder_outputs"), tuple):  # transformers would take it for no source
            kwargs["encoder_outputs"] = BaseModelOutput(*kwargs["encoder_outputs"])
        # Autocast caches the weights that it has converted, but not in inference mode: there it would convert them
        # again in every step. (GenerationMixin switches gradients off.)
        with torch.inference_mode(False):
            return super().generate(inputs, generation_config, *args, **kwargs)

    def adjust_generation_fn(self, generation_config, from_auto_class, from_pipeline, name, *args, **kwargs):
        """Called by from_pretrained: read generation_config.json; a folder without one gets the default search.

        Raises:
            ValueError: if the file is bad, for which transformers takes another configuration without a word.
        """
        bad = f"the generation configuration of {name} is bad: "
        try:
            super().adjust_generation_fn(generation_config, from_auto_class, from_pipeline, name, *args, **kwargs)
            if not self.generation_config._from_model_config:
                check_search_settings(self.config, self.generation_config)
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(bad + " ".join(str(error).split())) from error
        if self.generation_config._from_model_config:
            where = {key: kwargs[key] for key in ("cache_dir", "revision", "subfolder") if key in kwargs}
            if name is not None and cached_file(name, GENERATION_CONFIG_NAME, **where, **_ONLY_IF_HERE):
                raise ValueError(bad + "it cannot be read as JSON")
            self.generation_config = default_generation_config(self.config)

    def create_masks_for_generate(self, *, attention_mask=None, **kwargs):
        """The decoder makes its own mask, with the window; transformers' for a static cache would take its place."""
        return attention_mask

    def _valid_auto_compile_criteria(self, model_kwargs, generation_config) -> bool:
        # transformers compiles with a static cache alone, where each step attends to all positions there may ever be.
        config = generation_config.compile_config
        if config is not None and config.dynamic:
            return True
        return super()._valid_auto_compile_criteria(model_kwargs, generation_config)

    def _prepare_model_inputs(self, inputs, bos_token_id, model_kwargs):
        inputs, name, model_kwargs = super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)
        # Without a mask, transformers lets an encoder-decoder read the padding.
        pads = name == "input_ids" and self.config.pad_token_id is not None
        if pads and model_kwargs.get("attention_mask") is None:
            model_kwargs["attention_mask"] = (inputs != self.config.pad_token_id).long()
        return inputs, name, model_kwargs

    def _prepare_generation_config(self, generation_config, *args, **kwargs):
        # transformers takes only what the configuration has already, and a plain one has none of these.
        own = {name: kwargs.pop(name) for name in ("max_extra_tokens", "length_penalty_type") if name in kwargs}
        called = any(kwargs.get(name) is not None for name in ("max_length", "max_new_tokens"))
        replaced = called or (generation_config is not None and _max_length_is_set(generation_config))
        if getattr(generation_config, "max_extra_tokens", None) is None:
            replaced |= _max_length_is_set(self.generation_config)
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, *args, **kwargs)
        for name, value in own.items():
            setattr(generation_config, name, value)
        # By its name transformers would look for the search that it has taken out.
        generation_config.phrases, generation_config.force_words_ids = generation_config.force_words_ids, None
        if generation_config.phrases is not None and (generation_config.num_beams == 1 or generation_config.do_sample):
            raise ValueError("force_words_ids need a search with num_beams of at least 2 and do_sample=False")
        if own.get("max_extra_tokens") is not None and not called:
            generation_config.max_new_tokens = None
        elif replaced or generation_config.max_new_tokens is not None:
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
        generation_config = super()._prepare_generated_length(
            generation_config,
            has_default_max_length,
            has_default_min_length,
            model_input_name,
            input_ids_length,
            inputs_tensor,
        )
        longest, positions = generation_config.max_length, self.config.max_position_embeddings
        # The last token is not read.
        if self.config.position_embedding_type == "learned" and longest - 1 > positions:
            raise ValueError(
                f"max_length {longest}, the prompt and the new tokens, is beyond max_position_embeddings {positions}"
            )
        return generation_config

    def _validate_generated_length(self, generation_config, input_ids_length, has_default_max_length):
        # The default is the paper's, not the "model-agnostic" one that transformers warns of.
        has_default_max_length &= getattr(generation_config, "max_extra_tokens", None) is None
        super()._validate_generated_length(generation_config, input_ids_length, has_default_max_length)

    def _expand_inputs_for_generation(self, expand_size=1, is_encoder_decoder=False, input_ids=None, **model_kwargs):
        # Only the decoder's inputs are repeated: the beams of a sentence share its encoding (see CrossAttention).
        decoder = {name: value for name, value in model_kwargs.items() if name.startswith("decoder_")}
        input_ids, decoder = super()._expand_inputs_for_generation(
            expand_size=expand_size, is_encoder_decoder=False, input_ids=input_ids, **decoder
        )
        return input_ids, {**model_kwargs, **decoder}

    def _sample(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        limits = length_limits(generation_config, input_ids, kwargs)
        criteria = StoppingCriteriaList([*stopping_criteria, SourceLengthCriteria(limits)])
        output = super()._sample(input_ids, logits_processor, criteria, generation_config, **kwargs)
        _expand_cross_attention_cache(output)
        return output

    def _assisted_decoding(
        self, input_ids, logits_processor, stopping_criteria, generation_config, inputs_tensor=None, **kwargs
    ):
        # transformers gives inputs_tensor only to a function that names it. There is one sentence.
        limits = length_limits(generation_config, input_ids, kwargs)
        generation_config.max_length = int(limits)  # or the tokens drafted would go beyond it
        criteria = StoppingCriteriaList([*stopping_criteria, SourceLengthCriteria(limits)])
        return super()._assisted_decoding(
            input_ids, logits_processor, criteria, generation_config, inputs_tensor=inputs_tensor, **kwargs
        )

    def _beam_search(
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        **model_kwargs,
    ) -> GenerateBeamEncoderDecoderOutput | torch.Tensor:
        """Beam search (6.1). input_ids (B * K, prompt): decoder prompts, each K times. The rest as in GenerationMixin.

        The model is used through `Decoder.log_probs` and `Decoder.reorder` alone.
        """
        config = generation_config
        # EOS and the limits are the search's own matter.
        own = MaxLengthCriteria | EosTokenCriteria
        criteria = StoppingCriteriaList(criterion for criterion in stopping_criteria if not isinstance(criterion, own))
        limits = length_limits(config, input_ids, model_kwargs)
        for criterion in stopping_criteria:
            if isinstance(criterion, MaxLengthCriteria):
                limits = limits.clamp(max=criterion.max_length)
        # Sentences that are done leave the batch, unless a caller gets each step's whole batch, or a processor or
        # criterion may look for a sentence at its row.
        row_by_row = not criteria and all(type(processor) in ROW_BY_ROW for processor in logits_processor)
        drop_done = row_by_row and not (config.return_dict_in_generate or synced_gpus)
        rows = torch.arange(0, len(input_ids), config.num_beams if drop_done else 1, device=input_ids.device)
        decoder = Decoder(self, config, logits_processor, model_kwargs, len(input_ids))
        decoder.reorder(rows)
        prompts = input_ids[rows].unflatten(0, (len(input_ids) // config.num_beams, -1))
        phrases = config.phrases
        if phrases is not None:
            eos = [] if config._eos_token_tensor is None else config._eos_token_tensor.tolist()
            phrases = phrases_of(phrases, len(prompts), eos, self.config.vocab_size)
        search = BeamSearch.start(config, prompts, limits[:: config.num_beams], criteria, drop_done, phrases)
        while self._has_unfinished_sequences(not search.searching.any(), synced_gpus, device=input_ids.device):
            log_probs = decoder.log_probs(search.alive.tokens.flatten(0, 1))
            if search.searching.any():  # otherwise, another process needs this one's part in the forward pass
                decoder.reorder(*search.step(log_probs))
        best = search.finish()
        return decoder.output(best, search) if config.return_dict_in_generate else best.tokens.flatten(0, 1)


def generate(
    model,
    inputs=None,
    generation_config: GenerationConfig | None = None,
    max_extra_tokens: int | None = None,
    force_words_ids: list | None = None,
    length_penalty_type: str = "gnmt",
    **kwargs,
):
    """generate() of another encoder-decoder of transformers, by the search of this file.

    In a folder with custom_generate/generate.py it is called by
    model.generate(..., custom_generate=FOLDER, trust_remote_code=True).

    Args:
        max_extra_tokens: the limit of each output beyond its own source, unless max_new_tokens or max_length is given.
        force_words_ids: as `GnmtGenerationMixin` takes them. length_penalty_type: as `length_penalty` takes it.
        kwargs: what the model's generate() takes.

    Raises:
        ValueError: as `check_search_settings` does, and for a model without an encoder.
    """
    settings = {"max_extra_tokens": max_extra_tokens, "length_penalty_type": length_penalty_type}
    check_search_settings(model.config, generation_config or model.generation_config, **settings, **kwargs)
    if not model.config.is_encoder_decoder:
        raise ValueError(f"the search is one of encoder-decoders; {type(model).__name__} is none")
    if max_extra_tokens is not None and kwargs.get("max_new_tokens", kwargs.get("max_length")) is None:
        encoded = kwargs.get("encoder_outputs")
        sources = [inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds"), encoded and encoded[0]]
        kwargs["max_new_tokens"] = next(one for one in sources if one is not None).shape[1] + max_extra_tokens

    def search(model, input_ids, generation_config, **others):
        generation_config.phrases = force_words_ids
        for name, value in settings.items():
            setattr(generation_config, name, value)
        return GnmtGenerationMixin._beam_search(model, input_ids, generation_config=generation_config, **others)

    return GenerationMixin.generate(model, inputs, generation_config, custom_generate=search, **kwargs)


def length_limits(generation_config: GenerationConfig, input_ids: torch.Tensor, model_kwargs: dict) -> torch.Tensor:
    """The most tokens, prompt included, of each row of input_ids (rows, prompt). (rows,)"""
    longest = torch.full((input_ids.shape[0],), generation_config.max_length, device=input_ids.device)
    extra = getattr(generation_config, "max_extra_tokens", None)
    mask = model_kwargs.get("attention_mask")
    if extra is None or mask is None:
        return longest
    own = (mask != 0).sum(dim=-1).repeat_interleave(input_ids.shape[0] // mask.shape[0]) + extra + input_ids.shape[1]
    return torch.minimum(longest, own)


def _max_length_is_set(config: GenerationConfig) -> bool:
    """Whether a user has set the max_length of model.generation_config.

    Seq2SeqTrainer fills every field of it that is None with transformers' own default, a max_length of 20 among them:
    beside all the others, a 20 is that default.
    """
    defaults = {name: value for name, value in config._get_default_generation_params().items() if value is not None}
    filled = all(getattr(config, name, None) is not None for name in defaults)
    return config.max_length is not None and not (filled and config.max_length == defaults["max_length"])


def _expand_cross_attention_cache(output) -> None:
    """Repeat the keys and values that beams or samples of a sentence have shared: transformers returns one row each."""
    cache = getattr(output, "past_key_values", None)
    if cache is None or not cache.cross_attention_cache.layers:  # as of a model in ONNX, which has no use for one
        return
    rows, shared = (part.layers[0].keys.shape[0] for part in (cache.self_attention_cache, cache.cross_attention_cache))
    if rows != shared:
        for layer in cache.cross_attention_cache.layers:
            layer.keys, layer.values = (
                kept.repeat_interleave(rows // shared, 0) for kept in (layer.keys, layer.values)
            )


@dataclass
class Hypotheses:
    """K sequences for each of B sentences, best first.

    tokens (B, K, length) with the prompt; score (B, K), -inf where there is none; path (B, K, steps), the row of the
    flattened (B * K) batch that each generated token continued, -1 past the end.
    """

    tokens: torch.Tensor
    score: torch.Tensor
    path: torch.Tensor

    def of(self, sentences: torch.Tensor) -> "Hypotheses":
        """Those of some sentences, given as a mask (B,) or as indices."""
        return Hypotheses(*(value[sentences] for value in vars(self).values()))

    def gather(self, index: torch.Tensor) -> "Hypotheses":
        """Those at `index` (B, k) of each sentence."""
        sentences = torch.arange(index.shape[0], device=index.device)[:, None]
        return Hypotheses(*(value[sentences, index] for value in vars(self).values()))

    def top(self, k: int) -> "Hypotheses":
        """The k with the highest score, or all if there are fewer."""
        return self.gather(self.score.topk(min(k, self.score.shape[1])).indices)

    def masked(self, mask: torch.Tensor) -> "Hypotheses":
        """Only where `mask` (B, K) is True; elsewhere there is none."""
        return replace(self, score=self.score.masked_fill(~mask, -torch.inf))

    def concat(self, other: "Hypotheses") -> "Hypotheses":
        """Both sets as one."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Hypotheses(*(torch.cat(pair, dim=1) for pair in pairs))

    def pad(self, pad_token_id: int, steps: int = 1) -> "Hypotheses":
        """Padded by some steps."""
        tokens = nn.functional.pad(self.tokens, (0, steps), value=pad_token_id)
        return replace(self, tokens=tokens, path=nn.functional.pad(self.path, (0, steps), value=-1))

    def extend(self, score: torch.Tensor, index: torch.Tensor, vocab_size: int) -> "Hypotheses":
        """Continued by one token each, from `index` (B, k), hypothesis * V + token, with the new `score` (B, k)."""
        parent, token = index // vocab_size, index % vocab_size
        parents = self.gather(parent)
        first_row = torch.arange(index.shape[0], device=index.device)[:, None] * self.score.shape[1]
        return Hypotheses(
            torch.cat((parents.tokens, token[..., None]), dim=-1),
            score,
            torch.cat((parents.path, (first_row + parent)[..., None]), dim=-1),
        )


@dataclass(frozen=True)
class Rules:
    """How hypotheses are scored, which of them finish, and when a sentence is done.

    penalty_type "gnmt" is the paper's search, by the rules of Wu et al. 2016 (section 7) as tensor2tensor has them;
    "length" is that of transformers. Its own code is not called, because it needs each source repeated for each beam
    and neither limits each sentence nor drops those that are done.
    """

    penalty_type: str
    alpha: float
    early_stopping: bool | str
    num_return_sequences: int

    def penalty(self, length: torch.Tensor | int) -> torch.Tensor | float:
        return length_penalty(length, self.alpha, self.penalty_type)

    def ends(self, ended: torch.Tensor, at_limit: torch.Tensor, among_best: torch.Tensor):
        """Which of the candidates end, and which of these may enter the finished list.

        By the paper's rules, those that end in EOS. By those of transformers, the candidates at the limit end, too, and
        only as many of the best candidates as there are beams may finish.

        Args:
            ended: (B, k), whether a candidate ends in EOS. at_limit: (B, 1), whether no further token is allowed.
            among_best: (B, k) or (k,), whether there are fewer better candidates than beams.
        """
        if self.penalty_type == "gnmt":
            return ended, ended
        ended = ended | at_limit
        return ended, ended & among_best

    def done(self, finished: torch.Tensor, alive: torch.Tensor, length: int, limits: torch.Tensor) -> torch.Tensor:
        """Whether no alive hypothesis can still be among those returned, given all scores (B, K), best first. (B,)

        log P falls with each token, so an alive hypothesis can at best reach its present log P over the largest penalty
        ahead: the one at the limit, or for a negative alpha the next one. transformers takes the present length's,
        unless early_stopping is "never", and waits for all beams to finish. early_stopping=True waits for nothing else.
        """
        if self.early_stopping is True:
            return (finished[:, -1] > -torch.inf) | (alive[:, 0] == -torch.inf)
        if self.penalty_type == "gnmt":
            worst, ahead = finished[:, self.num_return_sequences - 1], limits if self.alpha > 0 else length + 1
        else:
            worst, ahead = finished[:, -1], limits if self.early_stopping == "never" and self.alpha > 0 else length
        return worst >= alive[:, 0] / self.penalty(ahead)


@dataclass
class BeamSearch:
    """The state of a search over B sentences with K beams (6.1).

    Of the 2 K best continuations of the alive hypotheses, those that end compete for the finished list, and the K best
    others stay alive. A sentence is done at its limit or by `Rules.done`. `Constraints` choose both where there are
    phrases to be met: only a hypothesis that meets them may end.
    """

    rules: Rules
    beams: int
    eos: torch.Tensor  # (number of EOS tokens,)
    pad: int
    criteria: StoppingCriteriaList  # of the caller: they end a hypothesis as EOS does
    do_sample: bool
    drop_done: bool  # whether sentences that are done leave the batch
    alive: Hypotheses  # (B, K); the score is log P
    finished: Hypotheses  # (B, K); the score is log P over the length penalty
    limits: torch.Tensor  # (B,), the most tokens that may be generated
    constraints: Constraints | None  # of the alive hypotheses
    sentences: torch.Tensor  # (B,), which sentence each row is of
    searching: torch.Tensor  # (B,), whether it is not done yet
    length: int = 0  # tokens generated so far
    results: list[tuple[torch.Tensor, Hypotheses]] = field(default_factory=list)  # sentences done, and theirs
    log_probs: list[torch.Tensor] = field(default_factory=list)  # of each step, log P of the rows before it

    @classmethod
    def start(cls, config: GenerationConfig, prompts: torch.Tensor, limits, criteria, drop_done: bool, phrases=None):
        """From prompts (B, 1 or K, length), each K times the same, with the limits (B,) on their total length.

        phrases: of each sentence, as `phrases_of` gives them.
        """
        beams, eos, pad = config.num_beams, config._eos_token_tensor, config._pad_token_tensor
        path = prompts.new_empty((*prompts.shape[:2], 0))
        # All beams start from the same prompt: only the first counts, or each would find the same continuations.
        score = torch.zeros(prompts.shape[:2], device=prompts.device)
        score[:, 1:] = -torch.inf
        alive = Hypotheses(prompts, score, path)
        nothing = alive.gather(limits.new_zeros(len(limits), beams))
        penalty_type = getattr(config, "length_penalty_type", None) or "gnmt"
        return cls(
            rules=Rules(penalty_type, config.length_penalty, config.early_stopping, config.num_return_sequences),
            beams=beams,
            eos=prompts.new_empty(0) if eos is None else eos,
            pad=0 if pad is None else int(pad),
            criteria=criteria,
            do_sample=config.do_sample,
            drop_done=drop_done,
            alive=alive,
            finished=replace(nothing, score=torch.full_like(nothing.score, -torch.inf)),
            limits=limits - prompts.shape[-1],
            constraints=None if phrases is None else Constraints.start(phrases, prompts, limits - prompts.shape[-1]),
            sentences=torch.arange(len(limits), device=limits.device),
            searching=torch.ones_like(limits, dtype=torch.bool),
        )

    def step(self, log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Extend each alive hypothesis by a token, given the next tokens' log-probabilities (B * K, V).

        Returns:
            The rows of this step's batch that the next ones continue, and the sentences of it that remain (None: all).
        """
        self.log_probs.append(self.alive.score.flatten())
        log_probs = log_probs.unflatten(0, self.alive.score.shape)
        constraints = self.constraints
        if constraints is not None:
            log_probs[..., self.eos] = log_probs[..., self.eos].masked_fill(
                constraints.lacking()[..., None] > 0, -torch.inf
            )
        choose = sampled_sums if self.do_sample else top_sums if constraints is None else constraints.top_sums
        score, index = choose(self.alive.score, log_probs, self.beams * (1 + max(1, self.eos.numel())))
        candidates = self.alive.extend(score, index, log_probs.shape[-1])
        self.length += 1
        at_limit = self.length >= self.limits
        ended = torch.isin(candidates.tokens[..., -1], self.eos)
        if self.criteria:
            ended |= self.criteria(candidates.tokens.flatten(0, 1), None).reshape(ended.shape)
        rank = torch.arange(score.shape[1], device=score.device)
        if constraints is not None:
            constraints = constraints.extend(index // log_probs.shape[-1], candidates.tokens[..., -1])
            rank = constraints.rank(score)
        ended, may_finish = self.rules.ends(ended, at_limit[:, None], rank < self.beams)
        if constraints is not None:
            may_finish = may_finish & (constraints.lacking() == 0)
        finishing = replace(candidates, score=score / self.rules.penalty(self.length)).masked(may_finish)
        self.finished = self.finished.pad(self.pad).concat(finishing).top(self.beams)
        self.alive = candidates.masked(~ended)
        if constraints is None:
            self.alive = self.alive.top(self.beams)
        else:
            chosen = constraints.allocate(self.alive.score, self.beams)
            self.alive, self.constraints = self.alive.gather(chosen), constraints.gather(chosen)

        done = at_limit | self.rules.done(self.finished.score, self.alive.score, self.length, self.limits)
        newly = done & self.searching
        self.searching = self.searching & ~done
        if not newly.any():
            return self.alive.path[..., -1].flatten(), None
        self.results.append((self.sentences[newly], self.best(newly)))
        few = self.searching.sum() <= FEW_ENOUGH * len(self.searching)
        remaining = self.drop() if self.drop_done and few else None
        return self.alive.path[..., -1].flatten(), remaining

    def best(self, rows: torch.Tensor) -> Hypotheses:
        """The finished hypotheses of some rows (B,), and where they are too few the alive ones with their score."""
        finished, alive = self.finished.of(rows), self.alive.of(rows)
        if self.constraints is not None:
            alive = alive.gather(self.constraints.of(rows).lacking().argsort(dim=1, stable=True))
        missing = (finished.score == -torch.inf).int() * 2
        order = torch.cat((missing, torch.ones_like(missing[:, :1]).expand(alive.score.shape)), dim=1)
        alive = replace(alive, score=alive.score / self.rules.penalty(self.length))
        return finished.concat(alive).gather(order.argsort(dim=1, stable=True)[:, : missing.shape[1]])

    def drop(self) -> torch.Tensor:
        """Leave out the sentences that are done. Returns the rows (B',) that remain."""
        remaining = self.searching.nonzero().flatten()
        self.alive, self.finished = self.alive.of(remaining), self.finished.of(remaining)
        self.limits, self.sentences = self.limits[remaining], self.sentences[remaining]
        if self.constraints is not None:
            self.constraints = self.constraints.of(remaining)
        self.searching = self.searching[remaining]
        return remaining

    def finish(self) -> Hypotheses:
        """The best hypotheses of all sentences in their order, (B, num_return_sequences)."""
        longest = max(best.tokens.shape[-1] for _, best in self.results)
        padded = [vars(best.pad(self.pad, longest - best.tokens.shape[-1])).values() for _, best in self.results]
        best = Hypotheses(*(torch.cat(parts) for parts in zip(*padded, strict=True)))
        best = best.of(torch.cat([sentences for sentences, _ in self.results]).argsort())
        best = Hypotheses(*(value[:, : self.rules.num_return_sequences] for value in vars(best).values()))
        steps = int((best.path >= 0).sum(dim=-1).max())
        prompt_length = best.tokens.shape[-1] - best.path.shape[-1]
        tokens = best.tokens[..., : prompt_length + steps].contiguous()
        return replace(best, tokens=tokens, path=best.path[..., :steps].contiguous())

    def token_log_probs(self, best: Hypotheses) -> torch.Tensor:
        """log P of each generated token of what `finish` has returned, given those before; 0 past the end. (B, K, T)

        They are differences of the sums that the search has kept, so that no step's distribution is held.
        """
        length = (best.path >= 0).sum(dim=-1)
        whole = (best.score * self.rules.penalty(length))[..., None]
        before = [self.log_probs[step][best.path[..., step].clamp(min=0)] for step in range(best.path.shape[-1])]
        sums = torch.cat((torch.where(best.path >= 0, torch.stack(before, dim=-1), whole), whole), dim=-1)
        return sums.diff(dim=-1)


def sampled_sums(score: torch.Tensor, log_probs: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `top_sums`, but drawn without replacement in proportion to their exponentials."""
    sums = (score[..., None] + log_probs).flatten(1)
    # The largest of the sums plus Gumbel noise are such a draw, also where fewer than k are possible.
    index = (sums - torch.empty_like(sums).exponential_().log()).topk(min(k, sums.shape[1])).indices
    drawn, order = sums.gather(1, index).sort(dim=1, descending=True)
    return drawn, index.gather(1, order)


@dataclass
class BeamSearchOutput(GenerateBeamEncoderDecoderOutput):
    """As transformers has it, but sequences_scores are always there, and

    token_log_probs: (sequences, steps) log P of each generated token given those before, 0 past the end.
    """

    token_log_probs: torch.Tensor | None = None


class Decoder:
    """The model as the search sees it: the next tokens' log-probabilities, and rows to keep or to reorder.

    It also records each step for return_dict_in_generate.

    Args:
        rows: of the first step. A model of transformers has its encoding once for each of them, ours once a sentence.
    """

    def __init__(
        self, model, config: GenerationConfig, logits_processor: LogitsProcessorList, model_kwargs: dict, rows: int
    ):
        self.model, self.config, self.logits_processor = model, config, logits_processor
        model_kwargs.pop("labels", None)  # Seq2SeqTrainer passes them on
        self.inputs = {
            "past_key_values": None,
            **model_kwargs,
            "output_attentions": config.output_attentions,
            "output_hidden_states": config.output_hidden_states,
        }
        self.repeated = len(self.inputs["encoder_outputs"][0]) == rows
        asked = {
            "scores": config.output_scores,
            "logits": config.output_logits,
            "decoder_attentions": config.output_attentions,
            "cross_attentions": config.output_attentions,
            "decoder_hidden_states": config.output_hidden_states,
        }
        compiling = model._valid_auto_compile_criteria(self.inputs, config)
        self.compiled = model.get_compiled_call(config.compile_config) if compiling else None
        self.steps = {name: [] for name, wanted in asked.items() if wanted and config.return_dict_in_generate}

    def log_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        """Of the token after `tokens` (rows, length), logits processors applied. (rows, V)"""
        past = self.inputs["past_key_values"]
        mask = self.inputs.get("decoder_attention_mask")
        if mask is not None:
            self.inputs["decoder_attention_mask"] = nn.functional.pad(
                mask, (0, tokens.shape[1] - mask.shape[1]), value=1
            )
        cached = 0 if past is None else int(past.get_seq_length())
        # With one token in the cache, and only then, the step would be compiled apart.
        forward = self.model if self.compiled is None or cached < 2 else self.compiled
        outputs = forward(decoder_input_ids=tokens[:, cached:].contiguous(), **self.inputs, return_dict=True)
        self.inputs["past_key_values"] = outputs.past_key_values
        logits = outputs.logits[:, -1]
        log_probs = self.logits_processor(tokens, log_softmax(logits))
        for name, steps in self.steps.items():
            steps.append({"scores": log_probs, "logits": logits.float()}.get(name, outputs.get(name)))
        return log_probs

    def reorder(self, rows: torch.Tensor, sentences: torch.Tensor | None = None) -> None:
        """Let the next rows continue these of the last step's, and keep only some sentences of it (None: all)."""
        past, mask = self.inputs["past_key_values"], self.inputs.get("decoder_attention_mask")
        if past is not None:
            past.self_attention_cache.reorder_cache(rows)
        if mask is not None:
            self.inputs["decoder_attention_mask"] = mask[rows]
        encoded = self.inputs["encoder_outputs"].last_hidden_state
        if sentences is not None:
            self.logits_processor = LogitsProcessorList(
                processor.of(sentences) if hasattr(processor, "of") else processor
                for processor in self.logits_processor
            )
        if self.repeated and (sentences is not None or len(rows) != len(encoded)):
            sentences = rows
        if sentences is None:
            return
        self.inputs["encoder_outputs"] = BaseModelOutput(encoded[sentences])
        if self.inputs.get("attention_mask") is not None:
            self.inputs["attention_mask"] = self.inputs["attention_mask"][sentences]
        if past is not None:
            past.cross_attention_cache.reorder_cache(sentences)

    def output(self, best: Hypotheses, search: BeamSearch) -> "BeamSearchOutput":
        """What return_dict_in_generate asks for: the best hypotheses of a search."""
        encoder_outputs = self.inputs["encoder_outputs"]
        output = BeamSearchOutput(
            sequences=best.tokens.flatten(0, 1),
            sequences_scores=best.score.flatten(),
            token_log_probs=search.token_log_probs(best).flatten(0, 1),
            beam_indices=best.path.flatten(0, 1),
            encoder_attentions=encoder_outputs.get("attentions") if self.config.output_attentions else None,
            encoder_hidden_states=encoder_outputs.get("hidden_states") if self.config.output_hidden_states else None,
            past_key_values=self.inputs["past_key_values"],
            **{name: tuple(values[: search.length]) for name, values in self.steps.items()},
        )
        _expand_cross_attention_cache(output)
        return output


__all__ = [
    "BeamSearchOutput",
    "GnmtGenerationMixin",
    "SourceLengthCriteria",
    "check_generation_inputs",
    "check_search_settings",
    "default_generation_config",
    "length_penalty",
]
