"""What an engine does, and torch as one, with a model of transformers or an ensemble. The other is ctranslate2.py."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..decoding_vanilla import (
    Batch,
    DecodingOptions,
    Found,
    batches_by_length,
    default_tokens,
    evaluating,
    search_batches,
)
from ..splitting_vanilla import Piece
from .constraints import constrained
from .ensemble import Ensemble
from .prefixes import ForcedPrefix
from .sampling import random_of, sample

Ids = Sequence[list[int]]  # the tokens of texts, each with EOS


class Engine(Protocol):
    """The computations of a Translator: search, scores, attention."""

    model: Any  # the model, or an object with its config, generation_config and device

    @property
    def aligned_layers(self) -> int:
        """The layers of the decoder, from the first, whose cross-attention it gives."""

    def search(self, batches: Iterable[Batch], options: DecodingOptions, seed: int | None = None) -> Iterator[Found]:
        """The hypotheses of each piece of each batch, with its prefix and phrases; ValueError for what it lacks.

        seed: of samples, if they are to be the same again; ValueError where the engine cannot take it any more.
        """

    def log_probs(
        self, sources: Ids, targets: Ids, tokens_per_batch: int | None = None
    ) -> Iterator[tuple[int, list[float]]]:
        """Of each pair, in any order, its row and log P of each token of its target, given those before."""

    def cross_attention(
        self, sources: Ids, targets: Ids, layer: int, tokens_per_batch: int | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Of each pair, in any order, its row and what each step of the decoder attends to in the source.

        The mean over the heads of a layer, (T or more, S); step t reads token t - 1 of the target.
        """


def generate_arguments(pieces: Sequence[Piece]) -> dict:
    """The arguments of generate() by which translations have the prefixes and the phrases of their pieces."""
    arguments: dict = {}
    if any(piece.phrases for piece in pieces):
        arguments["search"] = constrained([piece.phrases for piece in pieces])
    if any(piece.prefix for piece in pieces):
        arguments["logits_processor"] = [ForcedPrefix([piece.prefix for piece in pieces])]
    return arguments


class TorchEngine:
    """The search of 6.1 by generate(), or that of another model of transformers."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        self.model, self.tokenizer = model, tokenizer
        self.members: list[Any] = list(model.members) if isinstance(model, Ensemble) else [model]

    @property
    def aligned_layers(self) -> int:
        configs = [member.config for member in self.members]
        return min(getattr(each, "decoder_layers", None) or each.num_decoder_layers for each in configs)  # T5's name

    def search(self, batches: Iterable[Batch], options: DecodingOptions, seed: int | None = None) -> Iterator[Found]:
        def further(pieces: Sequence[Piece]) -> dict:
            arguments = generate_arguments(pieces)
            if seed is not None:
                rows = [random_of(seed, piece.ids, [copy]) for piece in pieces for copy in range(options.nbest)]
                arguments["custom_generate"] = partial(sample, generators=rows)
            return arguments

        return search_batches(self.model, self.tokenizer, batches, options, further)

    def log_probs(
        self, sources: Ids, targets: Ids, tokens_per_batch: int | None = None
    ) -> Iterator[tuple[int, list[float]]]:
        for rows, inputs, labels in self._pair_batches(sources, targets, tokens_per_batch):
            with evaluating(self.model):
                logits = self.model(**inputs, use_cache=False).logits.float()
                # log softmax(logits)[label] without the (B, T, V) of a whole log-softmax.
                log_probs = logits.gather(-1, labels[..., None]).squeeze(-1) - logits.logsumexp(dim=-1)
            for row, values in zip(rows, log_probs.double().tolist(), strict=True):
                yield row, values[: len(targets[row])]

    def cross_attention(
        self, sources: Ids, targets: Ids, layer: int, tokens_per_batch: int | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        for rows, inputs, _ in self._pair_batches(sources, targets, tokens_per_batch):
            with evaluating(self.model):
                outputs = [member(**inputs, use_cache=False, output_attentions=True) for member in self.members]
            if not all(one.cross_attentions for one in outputs):
                raise ValueError('alignments of this model need attn_implementation="eager" when it is loaded')
            attention = sum(one.cross_attentions[layer].float().mean(dim=1) for one in outputs)  # (B, T, S)
            for row, weights in zip(rows, attention.cpu(), strict=True):
                yield row, weights[:, : len(sources[row])]

    def _pair_batches(
        self, sources: Ids, targets: Ids, tokens_per_batch: int | None
    ) -> Iterator[tuple[list[int], dict[str, torch.Tensor], torch.Tensor]]:
        """Pairs of token ids, batch by batch, for a model that reads each target as it stands.

        Args:
            tokens_per_batch: the most tokens of a batch on either side, padding included.

        Yields:
            Row numbers; the model's inputs, (B, S) of the sources and (B, T) of the targets shifted right; labels
            (B, T). Targets are padded on the right, where the causal mask hides padding from every token.
        """
        for rows in pair_batches(sources, targets, tokens_per_batch, self.model.device):
            batch = {"input_ids": [sources[row] for row in rows]}
            inputs = self.tokenizer.pad(batch, padding_side="right", return_tensors="pt").to(self.model.device)
            ids = [torch.tensor(targets[row], dtype=torch.long) for row in rows]
            labels = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=self.tokenizer.pad_token_id)
            labels = labels.to(self.model.device)
            yield rows, {**inputs, "decoder_input_ids": self._shifted(labels)}, labels

    def _shifted(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels (B, T) moved right by one, behind the start token."""
        of_model = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if of_model is not None:
            return of_model(labels)
        start = torch.full_like(labels[:, :1], self.model.config.decoder_start_token_id)  # M2M100 and NLLB
        return torch.cat((start, labels[:, :-1]), dim=1)


def pair_batches(sources: Ids, targets: Ids, tokens_per_batch: int | None, device: torch.device) -> Iterator[list[int]]:
    """The rows of batches of pairs; tokens_per_batch counts either side, padding included, None is the device's."""
    lengths = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    return batches_by_length(lengths, default_tokens(device) if tokens_per_batch is None else tokens_per_batch)
