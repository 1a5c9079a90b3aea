"""Score given translations: log P(target | source)."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..progress import progress_bar, track_batches
from ..splitting_vanilla import check_texts, encode
from ..translation_vanilla import batches_by_length, default_tokens, evaluating
from .loading import is_engine


class PairScore(NamedTuple):
    """log P(target | source), natural logarithm, and the number of target tokens, EOS counted in both."""

    log_prob: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """Per token: exp(-log_prob / tokens)."""
        return math.exp(-self.log_prob / self.tokens)


def score_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
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
    source_ids, target_ids = list(encode(tokenizer, sources)), list(encode(tokenizer, targets, "text_target"))
    if is_engine(model):
        log_probs = model.log_probs(model.texts(source_ids), model.texts(target_ids))
        progress = progress_bar(log_probs, disable=not show_progress, total=len(sources), unit=" pairs")
        return [PairScore(sum(values), len(values)) for values in progress]
    scores = [PairScore(0.0, 0)] * len(sources)
    for rows, inputs, labels in pair_batches(model, tokenizer, source_ids, target_ids, tokens_per_batch, show_progress):
        with evaluating(model):
            logits = model(**inputs, use_cache=False).logits.float()
            # log softmax(logits)[label] without the (B, T, V) of a whole log-softmax.
            log_probs = logits.gather(-1, labels[..., None]).squeeze(-1) - logits.logsumexp(dim=-1)
        for row, values in zip(rows, log_probs.cpu().double(), strict=True):
            scores[row] = PairScore(values[: len(target_ids[row])].sum().item(), len(target_ids[row]))
    return scores


def pair_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    tokens_per_batch: int | None,
    show_progress: bool = False,
) -> Iterator[tuple[list[int], dict[str, torch.Tensor], torch.Tensor]]:
    """Pairs of token ids, batch by batch, for a model that reads each target as it stands.

    Args:
        tokens_per_batch: the most tokens of a batch on either side, padding included.

    Yields:
        Row numbers; the model's inputs, (B, S) of the sources and (B, T) of the targets shifted right; labels (B, T).
        Targets are padded on the right, where the decoder's causal mask hides padding from every token.
    """
    for rows in pair_rows(model, sources, targets, tokens_per_batch, show_progress):
        batch = {"input_ids": [sources[row] for row in rows]}
        inputs = tokenizer.pad(batch, padding_side="right", return_tensors="pt").to(model.device)
        ids = [torch.tensor(targets[row], dtype=torch.long) for row in rows]
        labels = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=tokenizer.pad_token_id)
        labels = labels.to(model.device)
        decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
        yield rows, {**inputs, "decoder_input_ids": decoder_input_ids}, labels


def pair_rows(
    model, sources, targets, tokens_per_batch: int | None, show_progress: bool = False
) -> Iterator[list[int]]:
    """The row numbers of each batch of pairs of token ids; arguments as `pair_batches` has them."""
    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    size = default_tokens(model.device) if tokens_per_batch is None else tokens_per_batch
    return track_batches(list(batches_by_length(lengths, size)), " pairs", show_progress)


def check_pairs(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Raise ValueError unless these are two lists of texts of the same length."""
    if len(check_texts(sources, "sources")) != len(check_texts(targets, "targets")):
        raise ValueError(f"there are {len(sources)} sources but {len(targets)} targets")
