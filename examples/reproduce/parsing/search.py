"""The search of section 6.3, among all outputs or among trees alone."""

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling_vanilla.decoding_vanilla import batches_by_length
from modeling_vanilla.progress import progress_bar

from .constraint import TreeConstraint

POSITIONS = 4096  # source tokens of a batch, times the beams


def write_trees(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[Sequence[str]],
    constrained: bool,
) -> list[list[str]]:
    """The tokens that the model writes about each sentence, by the search that its generation_config sets.

    Args:
        sentences: tokens as `Lexicon.read` gives them.
        constrained: whether to search among trees over the sentence alone (`TreeConstraint`).
    """
    outputs: list[list[str]] = [[] for _ in sentences]
    search = model.generation_config
    lengths = [(len(sentence) + 1) * search.num_beams for sentence in sentences]
    for rows in progress_bar(list(batches_by_length(lengths, POSITIONS)), unit=" batches"):
        texts = [" ".join(sentences[row]) for row in rows]
        inputs = tokenizer(texts, padding=True, return_tensors="pt").to(model.device)
        constraint = [TreeConstraint(inputs.input_ids, tokenizer, search.max_extra_tokens)] if constrained else None
        written = model.generate(**inputs, logits_processor=constraint)
        for row, text in zip(rows, tokenizer.batch_decode(written, skip_special_tokens=True), strict=True):
            outputs[row] = text.split()
    return outputs
