"""Validation while training: loss, perplexity per word piece, BLEU and chrF."""

import math

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..inference import translate
from .batching import collate, epoch_batches, pair_lengths
from .checkpoints import whole_model
from .metrics import translation_scores


def validate(
    accelerator: Accelerator,
    model,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    tokenized: Dataset,
    tokens_per_batch: int,
    bleu_tokenize: str,
) -> dict:
    """Score the model as it is on `pairs`; `tokenized` is what tokenize_pairs makes of them.

    Returns:
        "loss" in nats per word piece, without label smoothing, "perplexity" per word piece, and translation_scores.
    """
    model = whole_model(accelerator, model).eval()
    rank, world = accelerator.process_index, accelerator.num_processes
    with accelerator.autocast(), torch.inference_mode():
        own = tokenized.select(range(rank, len(tokenized), world))
        sums = torch.tensor(negative_log_likelihood(model, own, tokenizer.pad_token_id, tokens_per_batch))
        translations = translate(model, tokenizer, pairs["source"][rank::world], tokens_per_batch)
    nll, tokens = accelerator.reduce(sums.to(accelerator.device), reduction="sum").tolist()
    rows = dict(zip(range(rank, len(pairs), world), translations, strict=True))
    everyone = {row: text for part in gather_object([rows]) for row, text in part.items()}
    predictions = [everyone[row] for row in range(len(pairs))]
    scores = translation_scores(predictions, list(pairs["target"]), tokenize=bleu_tokenize)
    return {"loss": nll / tokens, "perplexity": math.exp(min(nll / tokens, 700)), **scores}


def negative_log_likelihood(
    model: PreTrainedModel, tokenized: Dataset, pad_token_id: int, tokens_per_batch: int
) -> tuple[float, float]:
    """The sum of -ln p over all target tokens, and their number."""
    total, count = 0.0, 0
    lengths = pair_lengths(tokenized)
    longest = int(max((side.max(initial=1) for side in lengths), default=1))
    for rows in epoch_batches(*lengths, max(tokens_per_batch, longest), seed=0, epoch=0):
        batch = {
            name: value.to(model.device)
            for name, value in collate([tokenized[int(row)] for row in rows], pad_token_id).items()
        }
        labels = batch.pop("labels")
        inputs = model.prepare_decoder_input_ids_from_labels(labels)
        logits = model(**batch, decoder_input_ids=inputs, use_cache=False).logits
        total += float(
            torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        )
        count += int((labels != -100).sum())
    return total, float(count)
