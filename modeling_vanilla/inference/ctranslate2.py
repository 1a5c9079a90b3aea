"""CTranslate2 as an engine: it searches, scores and attends without Python's loop.

Of 6.1 it has the beams and the limit of each output. Its length penalty is |Y|^alpha, so it is asked for all beams, and
the best by the model's own penalty is taken. What stays different: a hypothesis that ends while it is not among the
best `num_beams` is lost, and a sentence is done when so many hypotheses have ended (PATIENCE), whatever may follow.
benchmarks/engine.py measures how often that matters. Probabilities without bad_words_ids and repeated n-grams add up to
1, as with renormalize_logits=True.
"""

import ctypes
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import torch
from ctranslate2 import Translator, get_cuda_device_count, set_random_seed
from transformers import GenerationConfig, PreTrainedTokenizerBase, TemperatureLogitsWarper, TopKLogitsWarper

from ..configuration_vanilla import VanillaConfig
from ..decoding_vanilla import WIDER, Batch, DecodingOptions, Found, Hypothesis, default_tokens, order, order_of_best
from ..generation_vanilla import follows_the_source
from ..interop.to_ctranslate2 import check_generation_config, to_ctranslate2, vocabulary
from ..loading import load_config, load_model
from ..search_vanilla import length_penalty
from .engines import Ids, pair_batches

POSITIONS = 4096  # of a model that is converted to be run at once: the longest source or translation, in tokens
QUEUE = 4  # batches that wait for each translator
# By early_stopping, with length_penalty_type="length": a sentence is done when num_beams times so many hypotheses have
# ended. transformers stops there with True; with "never" only where nothing better can follow; with False in between.
# Unset it is False there, and here the fastest.
PATIENCE = {False: 1.5, "never": 1000}
DEFAULT_TOP_K = 50  # of samples, as in transformers
_SEED: list[int | None] = []  # of the samples of this process, once it has drawn any; None if none was given
_TRANSLATORS: WeakSet[Translator] = WeakSet()


def _leave_to_parent() -> None:
    """In a fork, keep each translator of the parent to the end: without its threads, it cannot be deleted."""
    for translator in _TRANSLATORS:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(translator))


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_leave_to_parent)


class CTranslate2Engine:
    """The methods are documented in engines.Engine; `load_engine` makes it."""

    aligned_layers = 1  # ALIGNMENT_LAYER alone

    def __init__(
        self,
        translator: Translator,
        config: VanillaConfig,
        generation_config: GenerationConfig,
        tokenizer: PreTrainedTokenizerBase,
    ):
        self._translator, self.tokenizer, self.process = translator, tokenizer, os.getpid()
        _TRANSLATORS.add(translator)
        device = torch.device(translator.device)
        self.model = SimpleNamespace(config=config, generation_config=generation_config, device=device)
        self.tokens = vocabulary(tokenizer, config.vocab_size)
        self.ids = {token: number for number, token in enumerate(self.tokens)}

    @property
    def translator(self) -> Translator:
        """ValueError in a fork of the process that loaded it, where it would wait for threads that are not there."""
        if os.getpid() != self.process:
            raise ValueError("engine: one of ctranslate2 does not work in a fork of its process; load it there")
        return self._translator

    def search(self, batches: Iterable[Batch], options: DecodingOptions, seed: int | None = None) -> Iterator[Found]:
        ct2_options, limit = self._ct2_options(options), output_limit(options, self.model.config)
        if options.generation_config.do_sample:
            _seed_process(seed)
        waiting: deque[tuple] = deque()
        for keys, pieces in batches:
            sources, limits = [piece.ids for piece in pieces], [limit(len(piece.ids)) for piece in pieces]
            given = ct2_options
            if any(piece.prefix for piece in pieces):
                # Only our score includes the prefix, and so may favour longer outputs: ask for more.
                more = {"patience": max(2, ct2_options["patience"]), "num_hypotheses": 2 * options.beams}
                more = more if options.beams > 1 else {}
                given = {**ct2_options, **more, "target_prefix": self._texts(piece.prefix for piece in pieces)}
            found = self.translator.translate_batch(self._texts(sources), max_decoding_length=max(limits), **given)
            waiting.append((keys, pieces, sources, limits, given, found))
            if len(waiting) > QUEUE * self.translator.num_translators:
                yield self._found(options, *waiting.popleft())
        while waiting:
            yield self._found(options, *waiting.popleft())

    def _ct2_options(self, options: DecodingOptions) -> dict:
        """The arguments of translate_batch for all batches."""
        generation = options.generation_config
        check_generation_config({**vars(generation), **options.arguments}, self.model.config)
        waits = getattr(generation, "length_penalty_type", None) == "length"
        only_best = waits and not options.can_choose
        sampled: dict = {}
        if generation.do_sample:
            temperature, top_k = generation.temperature, generation.top_k
            if top_k is None and "top_k" not in options.arguments:
                top_k = DEFAULT_TOP_K
            top_k = TopKLogitsWarper(top_k).top_k if top_k else 0
            temperature = 1.0 if temperature is None else TemperatureLogitsWarper(temperature).temperature
            sampled = {"sampling_topk": min(top_k, len(self.tokens)), "sampling_temperature": temperature}
        return {
            "patience": PATIENCE.get(generation.early_stopping, 1) if waits else 1,
            "beam_size": options.beams,
            # By our penalty, or by its spans, another may be the best.
            "num_hypotheses": options.nbest if generation.do_sample or only_best else options.beams,
            "length_penalty": 1.0 if generation.length_penalty is None else generation.length_penalty,
            "repetition_penalty": generation.repetition_penalty or 1.0,
            "no_repeat_ngram_size": generation.no_repeat_ngram_size or 0,
            "suppress_sequences": self._texts(generation.bad_words_ids or ()) or None,
            "min_decoding_length": 0,
            "return_end_token": True,
            "return_scores": True,
            "max_input_length": 0,
            "asynchronous": True,
            **sampled,
        }

    def _found(self, options: DecodingOptions, keys, pieces, sources, limits, ct2_options, found) -> Found:
        """The `options.nbest` best hypotheses of each source of a batch."""
        results = self._results(found, sources)
        longer = {
            row: limit  # the batch has that of its longest source
            for row, limit in enumerate(limits)
            if max(map(len, results[row].hypotheses)) > limit
        }
        again = []
        for row, limit in longer.items() if options.beams > 1 else ():  # a single one is cut
            own = {name: value[row : row + 1] for name, value in ct2_options.items() if name == "target_prefix"}
            given = {**ct2_options, **own, "max_decoding_length": limit}
            again += self.translator.translate_batch(self._texts([sources[row]]), **given)
        for row, result in zip(longer, self._results(again, sources), strict=False):
            results[row] = result
        rows = [
            (row, [self.ids[token] for token in each[: limits[row]]])
            for row, one in enumerate(results)
            for each in one.hypotheses
        ]
        # Scores lack the probability of a prefix, and are those of more tokens than the limit allows.
        exact = options.with_scores or "target_prefix" in ct2_options or (longer and not again)
        log_probs: Iterable[Sequence[float]]
        if exact:
            log_probs = self._log_probs([sources[row] for row, _ in rows], [ids for _, ids in rows])
        else:
            scores = [score for result in results for score in result.scores]
            alpha = ct2_options["length_penalty"]
            log_probs = [[score * len(ids) ** alpha] for score, (_, ids) in zip(scores, rows, strict=True)]
        start, eos = self.model.config.decoder_start_token_id or 0, self.model.config.eos_token_id
        grouped: list[list[Hypothesis]] = [[] for _ in sources]
        formula: Any = getattr(options.generation_config, "length_penalty_type", None)
        for (row, ids), values in zip(rows, log_probs, strict=True):
            penalty = length_penalty(len(ids) or 1, ct2_options["length_penalty"], formula)
            score, finished = sum(values) / float(penalty), ids[-1:] == [eos]
            finished |= formula == "length"  # as the search of transformers has it
            shown = tuple(values) if exact else ()
            grouped[row].append(Hypothesis("", score, (), shown, (start, *ids), finished, score))
        most = None if options.can_choose else options.nbest
        best = [sorted(each, key=order, reverse=True)[:most] for each in grouped]
        decode = partial(self.tokenizer.decode, skip_special_tokens=True)
        texts = [[one._replace(text=str(decode([*one.ids[1:]]))) for one in each] for each in best]
        chosen = [options.choose(*each)[: options.nbest] for each in zip(pieces, texts, strict=True)]
        if ct2_options["beam_size"] == options.beams and (again := options.lacking(chosen)):
            beams, prefixes = WIDER * options.beams, ct2_options.get("target_prefix")
            more: dict = {"beam_size": beams, "num_hypotheses": beams, "max_batch_size": max(1, len(pieces) // WIDER)}
            more |= {"target_prefix": [prefixes[row] for row in again]} if prefixes else {}
            wide = {**ct2_options, **more}
            rest = [pieces[row] for row in again], [sources[row] for row in again], [limits[row] for row in again]
            found = self.translator.translate_batch(self._texts(rest[1]), max_decoding_length=max(rest[2]), **wide)
            for row, each in zip(
                again, self._found(options, keys, *rest, ct2_options=wide, found=found)[1], strict=True
            ):
                chosen[row] = max(chosen[row], each, key=order_of_best)
        return keys, chosen

    def log_probs(
        self, sources: Ids, targets: Ids, tokens_per_batch: int | None = None
    ) -> Iterator[tuple[int, list[float]]]:
        yield from enumerate(self._log_probs(sources, targets, tokens_per_batch))

    def _log_probs(self, sources: Ids, targets: Ids, tokens_per_batch: int | None = None) -> Iterator[list[float]]:
        """In the order of the pairs; a target may lack EOS."""
        eos = self.model.config.eos_token_id
        read = [target[:-1] if [*target[-1:]] == [eos] else target for target in targets]  # CTranslate2 adds it
        size = default_tokens(self.model.device) if tokens_per_batch is None else tokens_per_batch
        batches = {"max_batch_size": size, "batch_type": "tokens", "max_input_length": 0, "asynchronous": True}
        found = self.translator.score_batch(self._texts(sources), self._texts(read), **batches)
        for target, result in zip(targets, found, strict=True):
            yield self._results([result], sources, targets)[0].log_probs[: len(target)]

    def cross_attention(
        self, sources: Ids, targets: Ids, layer: int, tokens_per_batch: int | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        for rows in pair_batches(sources, targets, tokens_per_batch, self.model.device):
            own, read = [sources[row] for row in rows], [targets[row][:-1] for row in rows]  # without EOS
            given = {"max_decoding_length": max(map(len, read)) + 1, "max_input_length": 0, "beam_size": 1}
            given |= {"return_attention": True, "return_end_token": True, "asynchronous": True}
            found = self.translator.translate_batch(self._texts(own), self._texts(read), **given)
            for row, result in zip(rows, self._results(found, own, read), strict=True):
                yield row, torch.tensor(result.attention[0])

    def _results(self, found: Iterable, sources: Ids, targets: Ids = ()) -> list:
        """The results of asynchronous calls; ValueError where CTranslate2 fails, as for a text without positions."""
        try:
            return [one.result() for one in found]
        except RuntimeError as error:
            longest = max([*sources, *targets], key=len)
            text = str(self.tokenizer.decode([*longest], skip_special_tokens=True))
            raise ValueError(f"{text!r:.60}, of {len(longest)} tokens: CTranslate2: {error}") from error

    def _texts(self, rows: Iterable[Iterable[int]]) -> list[list[str]]:
        """Token ids as CTranslate2 takes them."""
        return [[self.tokens[number] for number in ids] for ids in rows]


def _seed_process(seed: int | None) -> None:
    """Set the seed of samples; ValueError for a second one.

    A thread of CTranslate2 takes the seed of its process at its first sample, and never another.
    """
    if not _SEED:
        _SEED.append(seed)
        if seed is not None:
            set_random_seed(seed % (2**32 - 1))  # one number more would mean none
    if seed not in (None, *_SEED):
        before = "without a seed" if _SEED[0] is None else f"by seed {_SEED[0]}"
        raise ValueError(f"seed {seed}: ctranslate2 has one for each process, and this one has drawn {before}")


def output_limit(options: DecodingOptions, config: VanillaConfig) -> Callable[[int], int]:
    """The most tokens of an output, given those of its source, by the rules of `generate` (generation_vanilla.py)."""
    given, generation = options.arguments, options.generation_config
    room = config.max_position_embeddings if config.position_embedding_type == "learned" else math.inf
    if given.get("max_new_tokens"):
        return lambda source: given["max_new_tokens"]
    if given.get("max_length"):
        return lambda source: given["max_length"] - 1
    if follows_the_source(generation, given):
        extra: int = generation.max_extra_tokens  # type: ignore[attr-defined]
        return lambda source: int(min(source + extra, room - 1))
    return lambda source: generation.max_new_tokens or (generation.max_length or 21) - 1  # 20 new ones by default


def load_engine(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    device: str | torch.device | None = None,
    quantization: str | None = None,
    inter_threads: int | None = None,
) -> CTranslate2Engine:
    """A model, which is converted, or a folder that `vanilla export --to ctranslate2` wrote, as it is.

    Args:
        device: None is every GPU, where there are some, else the CPU.
        quantization: a compute_type of CTranslate2, such as "int8"; None is that of an exported folder, else float16 on
            a GPU and float32 on a CPU.
        inter_threads: batches that are translated at the same time; None is one on each core, or on each GPU.

    Raises:
        ValueError: if CTranslate2 cannot express the model, or the device lacks the quantization.
    """
    if inter_threads is not None and inter_threads < 1:
        raise ValueError(f"inter_threads must be at least 1, not {inter_threads}")
    try:
        device = torch.device(device or ("cuda" if get_cuda_device_count() else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"device: {device} cannot be used: {str(error).splitlines()[0]}") from error
    on_gpu = device.type == "cuda"
    index = list(range(get_cuda_device_count())) if on_gpu and device.index is None else device.index or 0
    # Translators of one thread translate more than one of several.
    threads = inter_threads or (1 if on_gpu else torch.get_num_threads())
    place: dict[str, Any] = {"device": device.type, "device_index": index}
    start = partial(Translator, inter_threads=threads, intra_threads=1, **place)
    try:
        if (folder / "model.bin").is_file():
            config, search = load_config(folder), GenerationConfig.from_pretrained(folder, local_files_only=True)
            translator = start(str(folder), compute_type=quantization or "default")
        else:
            model: Any = load_model(folder)
            config, search = model.config, model.generation_config
            with TemporaryDirectory() as temporary:
                to_ctranslate2(model, tokenizer, Path(temporary), positions=POSITIONS)
                translator = start(temporary, compute_type=quantization or ("float16" if on_gpu else "float32"))
    except RuntimeError as error:
        raise ValueError(f"CTranslate2: {error}") from error
    return CTranslate2Engine(translator, config, search, tokenizer)
