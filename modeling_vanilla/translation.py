"""Translating many sentences: sorted by length, batched by tokens, given back in their order."""

from collections.abc import Sequence

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
        ValueError: if tokens_per_batch is below 1.
    """
    if tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch must be at least 1, not {tokens_per_batch}")
    translations = [""] * len(sentences)
    rows = [row for row, sentence in enumerate(sentences) if sentence.strip()]
    if not rows:
        return translations
    ids = dict(zip(rows, tokenizer([sentences[row] for row in rows]).input_ids, strict=True))
    beams = generate_kwargs.get("num_beams") or model.generation_config.num_beams or 1
    # The longest first: what does not fit in memory fails at once, and the estimate of the time left errs high.
    rows.sort(key=lambda row: -len(ids[row]))
    with tqdm(total=len(rows), unit=" sentences", disable=not show_progress) as bar:
        while rows:
            count = max(1, tokens_per_batch // (len(ids[rows[0]]) * beams))
            batch, rows = rows[:count], rows[count:]
            inputs = tokenizer.pad({"input_ids": [ids[row] for row in batch]}, return_tensors="pt").to(model.device)
            with torch.inference_mode():
                output = model.generate(
                    input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, **generate_kwargs
                )
            for row, text in zip(batch, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
                translations[row] = text
            bar.update(len(batch))
    return translations
