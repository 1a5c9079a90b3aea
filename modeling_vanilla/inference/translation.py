"""Translating many sentences, and scoring pairs: sorted by length, batched by tokens, given back in their order."""

import heapq
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..generation_vanilla import length_penalty
from .ensemble import Ensemble

MAX_SOURCE_TOKENS = 512
# A character may take four tokens, one a byte; the blank before it and the end-of-sentence token come on top.
MIN_SOURCE_TOKENS = 8

# Where a long text is cut, the best place first; what stands before the cut stays with what is before it.
_CLOSING = "[\"'\u2019\u201c\u201d\u00ab\u00bb)\\]]*"  # quotation marks and brackets that may follow the mark
_CUTS = [
    re.compile(rf"[.!?\u2026]+ ?{_CLOSING}\s+|[\u3002\uff01\uff1f]+[\u300d\u300f\uff09]*\s*"),  # ends of sentences
    re.compile(rf"[,;:\u2013\u2014]+ ?{_CLOSING}\s+|[\u3001\uff0c\uff1b\uff1a]+\s*"),  # clause marks
    re.compile(r"\s+"),
    re.compile(r"(?s)."),
]


class Hypothesis(NamedTuple):
    """A translation and its score, log P / ((5 + |Y|) / 6)^alpha (6.1), natural logarithm, |Y| counting EOS."""

    text: str
    score: float


class PairScore(NamedTuple):
    """log P(target | source), natural logarithm, and the number of target tokens, EOS counted in both."""

    log_prob: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """Per token: exp(-log_prob / tokens)."""
        mean = -self.log_prob / self.tokens
        return math.exp(mean) if mean < 709 else math.inf  # exp overflows beyond


def load_translator(
    folders: Sequence[str | Path], device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer, or several models of one vocabulary as an `Ensemble`.

    Args:
        folders: what save_pretrained wrote, model and tokenizer in one folder each.

    Raises:
        ValueError: for a folder that lacks the model or the tokenizer or whose weights do not fit, for models of
            different vocabularies, and for a device that is not there.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: {device} cannot be used: {str(error).splitlines()[0]}") from None
    tokenizers = [load_tokenizer(Path(folder)) for folder in folders]
    for folder, tokenizer in zip(folders[1:], tokenizers[1:], strict=True):
        if tokenizer.get_vocab() != tokenizers[0].get_vocab():
            raise ValueError(
                f"vocabulary: {folders[0]} and {folder} have different ones, "
                f"of {len(tokenizers[0])} and {len(tokenizer)} tokens"
            )
    models = [
        _load_model(Path(folder), len(tokenizer), dtype) for folder, tokenizer in zip(folders, tokenizers, strict=True)
    ]
    model = models[0] if len(models) == 1 else Ensemble(models)
    return model.to(device).eval(), tokenizers[0]


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    for file, lacking in (("config.json", "no model folder"), ("tokenizer_config.json", "a model without a tokenizer")):
        if not (folder / file).is_file():
            raise ValueError(f"model: {folder} is {lacking}, as it has no {file}")
    try:
        # trust_remote_code: left open, transformers would ask on the terminal, and read the answer off the input.
        AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (TypeError, ValueError, OSError, StrictDataclassError) as error:
        raise ValueError(f"model: {folder / 'config.json'} is bad: {' '.join(str(error).split())}") from error
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(
            f"model: the tokenizer of {folder} cannot be loaded: {' '.join(str(error).split())}"
        ) from error


def _load_model(folder: Path, vocabulary: int, dtype: torch.dtype) -> PreTrainedModel:
    try:
        model, found = AutoModelForSeq2SeqLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except ValueError as error:
        raise ValueError(f"model: {error}") from error
    except (RuntimeError, SafetensorError) as error:  # of a model of another package
        raise ValueError(f"model: the weights of {folder} cannot be loaded: {str(error).splitlines()[0]}") from error
    if found["missing_keys"]:
        raise ValueError(f"model: the weights of {folder} lack {', '.join(sorted(found['missing_keys'])[:3])}")
    if vocabulary > model.config.vocab_size:
        raise ValueError(
            f"vocabulary: the tokenizer of {folder} has {vocabulary} tokens, the model {model.config.vocab_size}"
        )
    return model


def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int = 4096,
    show_progress: bool = False,
    **generate_kwargs,
) -> list[str]:
    """Translate `sentences` with model.generate, by default the search of 6.1.

    Args:
        sentences: source sentences; one that is empty or blank gives an empty translation.
        tokens_per_batch: the most source tokens of a batch, padding included, times the beams.
        show_progress: a progress bar on stderr.
        generate_kwargs: what model.generate takes.

    Returns:
        One translation for each sentence, in their order.

    Raises:
        ValueError: if tokens_per_batch is below 1, or as model.generate does.
    """
    translations = [""] * len(sentences)
    for rows, _, output in _generate(model, tokenizer, sentences, tokens_per_batch, show_progress, generate_kwargs):
        for row, text in zip(rows, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
            translations[row] = text
    return translations


def translate_nbest(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    nbest: int,
    tokens_per_batch: int = 4096,
    show_progress: bool = False,
    **generate_kwargs,
) -> list[list[Hypothesis]]:
    """The `nbest` best translations of each sentence, the rest as `translate` does.

    Their scores come from a second pass over the finished translations, and equal the search's up to rounding: for its
    own it would have to hold the distribution of every step.

    Returns:
        For each sentence its hypotheses, best first; for one that is empty or blank, the empty one alone, of score 0.

    Raises:
        ValueError: if there are fewer beams than hypotheses asked for, or as `translate` does.
    """
    settings = model.generation_config
    beams = generate_kwargs.get("num_beams") or settings.num_beams or 1
    if not 1 <= nbest <= beams:
        raise ValueError(f"nbest must be from 1 to the number of beams, {beams}, not {nbest}")
    alpha = generate_kwargs.get("length_penalty", settings.length_penalty)
    kind = generate_kwargs.get("length_penalty_type", getattr(settings, "length_penalty_type", None)) or "gnmt"
    generate_kwargs["num_return_sequences"] = nbest
    rows, sources, targets = [], [], []
    for batch, ids, output in _generate(model, tokenizer, sentences, tokens_per_batch, show_progress, generate_kwargs):
        rows += [row for row in batch for _ in range(nbest)]
        sources += [source for source in ids for _ in range(nbest)]
        targets += [_generated(sequence, tokenizer) for sequence in output[:, 1:].tolist()]
    scores = _score(model, tokenizer, sources, targets, tokens_per_batch, show_progress=False)
    texts = [tokenizer.decode(target, skip_special_tokens=True) for target in targets]
    hypotheses = [[] for _ in sentences]
    for row, text, score in zip(rows, texts, scores, strict=True):
        penalty = length_penalty(score.tokens, 1.0 if alpha is None else alpha, kind)
        hypotheses[row].append(Hypothesis(text, score.log_prob / penalty))
    return [sorted(found, key=lambda one: -one.score) or [Hypothesis("", 0.0)] for found in hypotheses]


def score_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    tokens_per_batch: int = 4096,
    show_progress: bool = False,
) -> list[PairScore]:
    """log P(target | source) of given pairs, without label smoothing. An empty text is scored as such, as EOS alone.

    Args:
        tokens_per_batch: the most tokens of a batch on either side, padding included.

    Raises:
        ValueError: if the numbers differ or tokens_per_batch is below 1.
    """
    if len(sources) != len(targets):
        raise ValueError(f"there are {len(sources)} sources but {len(targets)} targets")
    if not sources:
        return []
    source_ids = tokenizer(list(sources), verbose=False).input_ids
    target_ids = tokenizer(text_target=list(targets), verbose=False).input_ids
    return _score(model, tokenizer, source_ids, target_ids, tokens_per_batch, show_progress)


def join_nbest(pieces: Sequence[Sequence[Hypothesis]], nbest: int) -> list[Hypothesis]:
    """The best `nbest` ways to put a text together from the hypotheses of its pieces; their scores add up."""
    joined = pieces[0]
    for piece in pieces[1:]:
        pairs = (
            Hypothesis(" ".join(filter(None, (left.text, right.text))), left.score + right.score)
            for left, right in itertools.product(joined, piece)
        )
        joined = heapq.nlargest(nbest, pairs, key=lambda hypothesis: hypothesis.score)
    return list(joined[:nbest])


def split_long(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    max_source_tokens: int = MAX_SOURCE_TOKENS,
) -> list[list[str]]:
    """Cut each text that is too long for the model into as few pieces as its sentence ends allow.

    A single sentence that is too long is cut at clause marks, if need be at blanks, at last between characters. What
    is short enough is left as it is. The pieces of a text, one behind the other, are the text: nothing is lost.

    Args:
        max_source_tokens: the most tokens of a piece, EOS included. A model with learned positions may allow fewer.

    Raises:
        ValueError: if max_source_tokens is below 8, which may be too few for one character.
    """
    if max_source_tokens < MIN_SOURCE_TOKENS:
        raise ValueError(f"max_source_tokens must be at least {MIN_SOURCE_TOKENS}, not {max_source_tokens}")
    if getattr(model.config, "position_embedding_type", None) == "learned":
        max_source_tokens = min(max_source_tokens, model.config.max_position_embeddings)

    def count(texts: list[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(texts, verbose=False).input_ids] if texts else []

    def cut(text: str, cuts: list[re.Pattern], limit: int) -> list[str]:
        ends = [match.end() for match in cuts[0].finditer(text)]
        parts = [text[start:end] for start, end in itertools.pairwise([0, *ends, len(text)]) if end > start]
        pieces, sizes = [], []
        # Tokens add up: every part but one has an EOS too many, and a blank at its end is the start of the next word.
        for part, size in zip(parts, count([part.removesuffix(" ") for part in parts]), strict=True):
            if pieces and sizes[-1] + size - 1 <= limit:
                pieces[-1] += part
                sizes[-1] += size - 1
            elif size <= limit or len(cuts) == 1:
                pieces.append(part)
                sizes.append(size)
            else:
                finer = cut(part, cuts[1:], limit)
                pieces += finer
                sizes += count(finer)
        return pieces

    def fit(text: str, limit: int) -> list[str]:
        # They may not quite add up, as around white space other than blanks: then there is too much in a piece.
        pieces = cut(text, _CUTS, limit)
        sizes = count([piece.strip() for piece in pieces])
        return [
            shorter
            for piece, size in zip(pieces, sizes, strict=True)
            for shorter in ([piece] if size <= max_source_tokens or limit < 2 else fit(piece, limit * 3 // 4))
        ]

    return [
        [sentence] if size <= max_source_tokens else fit(sentence, max_source_tokens)
        for sentence, size in zip(sentences, count(list(sentences)), strict=True)
    ]


def token_batches(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Row numbers in batches of rows of similar length, the longest first.

    That order makes what does not fit in memory fail at once, and lets the estimate of the time left err high.

    Args:
        lengths: tokens of each row.
        tokens_per_batch: the most tokens of a batch, padding included; one row makes a batch whatever its length.

    Raises:
        ValueError: if tokens_per_batch is below 1.
    """
    if tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch must be at least 1, not {tokens_per_batch}")
    rows = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while rows:
        count = max(1, tokens_per_batch // max(1, lengths[rows[0]]))
        yield rows[:count]
        rows = rows[count:]


def _generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    tokens_per_batch: int,
    show_progress: bool,
    generate_kwargs: dict,
) -> Iterator[tuple[list[int], list[list[int]], torch.Tensor]]:
    """What model.generate gives for the sentences that are not blank, by batch: row numbers, source ids, output."""
    filled = [row for row, sentence in enumerate(sentences) if sentence.strip()]
    ids = tokenizer([sentences[row] for row in filled], verbose=False).input_ids if filled else []
    beams = generate_kwargs.get("num_beams") or model.generation_config.num_beams or 1
    with tqdm(total=len(filled), unit=" sentences", disable=not show_progress) as bar:
        for batch in token_batches([len(row) * beams for row in ids], tokens_per_batch):
            sources = [ids[row] for row in batch]
            inputs = tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(model.device)
            with torch.inference_mode():
                output = model.generate(
                    input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, **generate_kwargs
                )
            yield [filled[row] for row in batch], sources, output
            bar.update(len(batch))


def _generated(sequence: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens of one row of generate()'s output, its padding taken off; EOS, if it has one, is the last."""
    if tokenizer.eos_token_id in sequence:
        return sequence[: sequence.index(tokenizer.eos_token_id) + 1]
    while sequence and sequence[-1] == tokenizer.pad_token_id:
        sequence = sequence[:-1]
    return sequence


def _score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    tokens_per_batch: int,
    show_progress: bool,
) -> list[PairScore]:
    scores: list[PairScore | None] = [None] * len(sources)
    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    with tqdm(total=len(sources), unit=" pairs", disable=not show_progress) as bar:
        for rows in token_batches(lengths, tokens_per_batch):
            inputs = tokenizer.pad({"input_ids": [sources[row] for row in rows]}, return_tensors="pt").to(model.device)
            labels = pad_targets([targets[row] for row in rows], tokenizer.pad_token_id).to(model.device)
            with torch.inference_mode():
                logits = model(
                    input_ids=inputs.input_ids,
                    attention_mask=inputs.attention_mask,
                    decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels),
                    use_cache=False,
                ).logits.float()
                # No log-softmax of (B, T, V): what it takes from the one logit wanted suffices.
                log_probs = logits.gather(-1, labels[..., None]).squeeze(-1) - logits.logsumexp(dim=-1)
            for row, values in zip(rows, log_probs.double().cpu(), strict=True):
                scores[row] = PairScore(values[: len(targets[row])].sum().item(), len(targets[row]))
            bar.update(len(rows))
    return scores


def pad_targets(targets: Sequence[list[int]], pad_token_id: int) -> torch.Tensor:
    """(B, T) of token ids, padded on the right, where the decoder's causal mask hides padding from every token."""
    rows = [torch.tensor(target, dtype=torch.long) for target in targets]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_token_id)
