"""Translator: text in, translations, scores and word alignments out, by either engine."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..decoding_vanilla import (
    DecodingOptions,
    Found,
    Hypothesis,
    Translation,
    cut_texts,
    join_hypotheses,
    make_batches,
)
from ..loading import load_model, load_tokenizer, model_folder
from ..progress import progress_bar
from ..protect import replace_in_pair
from ..spans_vanilla import has_reserved, span_pattern
from ..splitting_vanilla import check_texts, encode
from .alignment import Links, align_pairs, align_translations, encode_words
from .engines import Engine, TorchEngine
from .ensemble import Ensemble
from .prefixes import begin_with, check_prefix, prefix_ids
from .scoring import PairScore, check_pairs
from .terms import Terminology

ENGINES = ("torch", "ctranslate2")


class Translator:
    """A model with its tokenizer, for text.

        translator = Translator.from_pretrained("runs/mine/model")
        translator.translate(["A dog runs."])

    Threads may share one: each call keeps its own state. Exceptions are a model in training mode, which a call changes
    while it runs; a tokenizer that is switched from source to target, such as Marian's; and progress bars.

    Args:
        model: one of this package or another encoder-decoder of transformers, or an `Ensemble`; it is in evaluation
            mode during each call. None: see `engine`.
        engine: computes in place of the model.
    """

    def __init__(self, model: PreTrainedModel | None, tokenizer: PreTrainedTokenizerBase, engine: Engine | None = None):
        self.model, self.tokenizer = model, tokenizer
        self._last_terms: tuple[list, Terminology] | None = None
        self.engine: Engine = TorchEngine(model, tokenizer) if engine is None else engine  # type: ignore[arg-type]

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *others: str | Path,
        device: str | torch.device | None = None,
        dtype: torch.dtype | str = torch.float32,
        revision: str | None = None,
        engine: str = "torch",
        quantization: str | None = None,
        inter_threads: int | None = None,
    ) -> Self:
        """Load a model and its tokenizer, or several models of one vocabulary as an `Ensemble`.

        Args:
            name, others: what save_pretrained wrote, model and tokenizer in one folder each, or their names on the Hub.
            device: such as "cuda:1", "mps" or "cpu"; None is the GPU where there is one, or else the CPU.
            dtype: in which the engine torch computes.
            revision: of names on the Hub, as `model_folder` has it.
            engine: "torch", which searches exactly as 6.1 does, or "ctranslate2", which is faster (ctranslate2.py) and
                has one model; `vanilla export --to ctranslate2` may have written its folder.
            quantization, inter_threads: of ctranslate2, as `load_engine` has them.

        Raises:
            ValueError: for a folder that lacks the model or the tokenizer, whose weights do not fit or are not finite,
                or whose tokenizer does not fit the model; for models of different vocabularies; and for a device that
                is not there.
        """
        if engine not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}")
        folders = [model_folder(each, revision) for each in (name, *others)]
        tokenizers = [load_tokenizer(folder) for folder in folders]
        if engine == "ctranslate2":
            from .ctranslate2 import load_engine  # which needs a package that the other engine does not

            if len(folders) > 1:
                raise ValueError("models: the engine ctranslate2 runs one, the engine torch several")
            if dtype != torch.float32:
                raise ValueError(f"dtype {dtype}: the engine torch has one; the engine ctranslate2 has quantization")
            own = load_engine(folders[0], tokenizers[0], device, quantization, inter_threads)
            return cls(None, tokenizers[0], own)
        for option, value in (("quantization", quantization), ("inter_threads", inter_threads)):
            if value is not None:
                raise ValueError(f"{option} {value}: the engine torch has none; the engine ctranslate2 has")
        for folder, tokenizer in zip(folders[1:], tokenizers[1:], strict=True):
            if tokenizer.get_vocab() != tokenizers[0].get_vocab():
                sizes = f"of {len(tokenizers[0])} and {len(tokenizer)} tokens"
                raise ValueError(f"vocabulary: {folders[0]} and {folder} have different ones, {sizes}")
        device = usable_device(device)
        models = [load_model(folder, dtype).to(device) for folder in folders]  # type: ignore[arg-type]
        return cls((models[0] if len(models) == 1 else Ensemble(models)).eval(), tokenizers[0])

    def translate(self, texts: Sequence[str], *, show_progress: bool = False, **options) -> list[str]:
        """The best translation of each text, in their order; of one without letters itself.

        Args:
            texts: each line of a text is translated separately. A line longer than those of the model's training is
                translated sentence by sentence (`split_texts`), and the log warns of it.
            show_progress: a progress bar on stderr.
            options: those of `translations`.

        Raises:
            ValueError: as `translations` does.
        """
        return [found.hypotheses[0].text for found in self._in_order(texts, show_progress, options)]

    def nbest(
        self, texts: Sequence[str], nbest: int, *, show_progress: bool = False, **options
    ) -> list[list[Hypothesis]]:
        """The `nbest` best translations of each text, best first, with scores and tokens.

        A text without letters has one, itself, of score 0. A text in pieces has the best combinations of the pieces',
        whose scores add up. Arguments and errors are those of `translate`.
        """
        options |= {"nbest": nbest, "with_scores": True}
        return [found.hypotheses for found in self._in_order(texts, show_progress, options)]

    def _in_order(self, texts: Sequence[str], show_progress: bool, options: dict) -> list[Translation]:
        texts = check_texts(texts)
        found: dict[int, Translation] = {}
        with progress_bar(total=len(texts), unit=" sentences", disable=not show_progress) as bar:
            for rows, translations in self.translations(texts, **options):
                found.update(zip(rows, translations, strict=True))
                bar.update(len(rows))
        return [found[row] for row in range(len(texts))]

    def translations(
        self,
        texts: Sequence[str],
        *,
        terms: Iterable[tuple[str, ...]] = (),
        prefix: str | Sequence[str] = "",
        seed: int | None = None,
        **options,
    ) -> Iterator[tuple[list[int], list[Translation]]]:
        """Translate texts batch by batch.

        What the log warns of has the numbers of its texts: `rows` of the record. So have the errors of terms and
        prefixes: see `RowError`.

        Args:
            terms: pairs (source term, target term), as `read_terms` returns them. Where a text has the source term, as
                whole words, the translation has the target term: torch searches for it, ctranslate2 has a reserved
                token in its place (spans_vanilla.py). The log warns of one that is lost.
            prefix: what every translation begins with, or a list with the beginning of each. It counts in score and
                length.
            seed: of the samples of do_sample=True, num_beams=1. By the engine torch it and a text alone decide the
                samples of the text; ctranslate2 has one for each process, which its first samples take.
            options: those of `DecodingOptions`, such as
                tokens_per_batch, the most source tokens of a batch, padding included, times the beams or samples; None
                is 4096 on a CPU, 32768 on a GPU;
                max_source_tokens: if given, lines of up to so many tokens, EOS included, are translated whole, whatever
                the model has seen, and longer ones in pieces of at most so many;
                tgt_lang, the target language of a model of several: its tag, such as ">>de<<", is put before the tokens
                of each line that has none;
                source_prefix, which T5 reads before each source, such as "translate English to German: ";
                protect, the spans that are copied, {kind: regular expression}, in place of the model's own; {} is none;
                and what generate() takes.

        Yields:
            The numbers of the texts that a batch completes, and their translations.

        Raises:
            ValueError: if tokens_per_batch is below 1, a seed has no samples, a prefix contains EOS or is longer than
                the limit, there are terms for a search that has none, and as split_texts, Terminology and generate()
                do.
        """
        chosen = DecodingOptions(self.engine.model, self.tokenizer, **options)
        if seed is not None and not (chosen.generation_config.do_sample and chosen.beams == 1):
            raise ValueError(f"seed {seed}: needs do_sample=True and num_beams=1")
        terminology = self._terminology([*terms])
        if terminology.targets and self.model is None:
            terminology.protect_in(chosen)
        elif terminology.targets and (not chosen.is_own or chosen.beams == 1):
            raise ValueError("terms need a model of this package, num_beams of at least 2 and no samples")
        else:
            terminology.keep_in(chosen)
        pieces = cut_texts(self.tokenizer, texts, chosen)
        prefixes = prefix_ids(prefix, self.tokenizer, pieces, chosen)
        for row, (ids, of_text) in enumerate(zip(prefixes, pieces, strict=True)):
            pieces[row] = begin_with(ids, terminology.add_to(of_text))
        found = self.engine.search(make_batches(pieces, chosen), chosen, seed)
        if chosen.with_scores:
            found = map(self._with_tokens, found)
        for rows, translations in join_hypotheses(pieces, found, chosen):
            for row, translation in zip(rows, translations, strict=True):
                check_prefix(row, prefixes[row], translation)
                terminology.warn_of_missing(row, translation)
            yield rows, translations

    def _terminology(self, terms: list[tuple[str, ...]]) -> Terminology:
        """The Terminology of these terms; the last one is kept, as a service has the same ones in each call."""
        key = [*map(tuple, terms)]
        if self._last_terms is None or self._last_terms[0] != key:
            self._last_terms = key, Terminology(terms, self.tokenizer)
        return self._last_terms[1]

    def _with_tokens(self, found: Found) -> Found:
        """What a search found in a batch, with the tokens as text."""

        def add(one: Hypothesis) -> Hypothesis:
            return one._replace(tokens=tuple(token_texts(self.tokenizer, one.ids[1:])))

        keys, hypotheses = found
        return keys, [[*map(add, each)] for each in hypotheses]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        tokens_per_batch: int | None = None,
        show_progress: bool = False,
    ) -> list[PairScore]:
        """log P(target | source) of given pairs, without label smoothing. An empty text is scored as EOS alone.

        Args:
            tokens_per_batch: the most tokens of a batch on either side, padding included.

        Raises:
            ValueError: if the numbers differ, one is a string, or tokens_per_batch is below 1.
        """
        check_pairs(sources, targets)
        if has_reserved(self.tokenizer):  # as in training
            spans = span_pattern(self.engine.model.config.protected_spans)
            pairs = [replace_in_pair(*pair, spans) for pair in zip(sources, targets, strict=True)]
            sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        ids = list(encode(self.tokenizer, sources)), list(encode(self.tokenizer, targets, "text_target"))
        scores = [PairScore(0.0, 0)] * len(sources)
        found = self.engine.log_probs(*ids, tokens_per_batch)
        for row, values in progress_bar(found, total=len(sources), unit=" pairs", disable=not show_progress):
            scores[row] = PairScore(sum(values), len(values))
        return scores

    def align(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        layer: int = 0,
        tokens_per_batch: int | None = None,
    ) -> list[Links]:
        """Align the words of each target with those of its source; white space separates words.

        Args:
            layer: of the decoder, from 0. Which one is best depends on the model, as later layers attend to what
                predicts the next token. It was the third of six in Chen et al. 2020 (arXiv:2004.14837), and the first
                of four in a model of Multi30k.
            tokens_per_batch: the most tokens of a batch on either side, padding included.

        Returns:
            For each pair its links (source word, target word), both from 0, sorted; see `alignment.align`.

        Raises:
            ValueError: if the numbers differ, the decoder has no such layer, or the tokenizer is not fast.
        """
        check_pairs(sources, targets)
        self.check_alignable(layer)
        words = encode_words(self.tokenizer, sources, "text"), encode_words(self.tokenizer, targets, "text_target")
        return align_pairs(self.engine, *words, layer, tokens_per_batch)

    def align_translations(
        self,
        sources: Sequence[str],
        found: Sequence[Translation],
        *,
        layer: int = 0,
        tokens_per_batch: int | None = None,
    ) -> list[Links]:
        """As `align`, of each source and its best translation, which may have been made in pieces."""
        self.check_alignable(layer)
        return align_translations(self.engine, self.tokenizer, sources, found, layer, tokens_per_batch)

    def check_alignable(self, layer: int) -> None:
        """Raise ValueError unless the engine tells of this layer, and the tokenizer where in a text a token stands."""
        if not 0 <= layer < self.engine.aligned_layers:
            raise ValueError(f"layer must be from 0 to {self.engine.aligned_layers - 1} with this engine, not {layer}")
        if not self.tokenizer.is_fast:
            raise ValueError("alignments need a fast tokenizer, one that tells where in the text each token stands")


def usable_device(device: str | torch.device | None) -> torch.device:
    """The device, by default the GPU where there is one, or else the CPU; ValueError for one that is not there."""
    if device is None:
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: {device} cannot be used: {str(error).splitlines()[0]}") from error


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text; together they are the text with its special tokens.

    If a character takes several tokens, one for each byte, the last of them has it, and the others have nothing.
    """
    texts, start, whole = [], 0, 0  # the tokens from `start` on are decoded, those before `whole` have their text
    for end in range(1, len(ids) + 1):
        parts = [*ids[start:whole]], [*ids[start:end]]
        before, after = (str(tokenizer.decode(part, clean_up_tokenization_spaces=False)) for part in parts)
        if after.endswith("\ufffd") and end < len(ids):
            texts.append("")
            continue
        texts.append(after[len(before) :])
        start, whole = whole, end
    return texts
