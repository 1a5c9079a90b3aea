"""Prefixes: given beginnings of translations."""

import copy
from collections.abc import Sequence

import torch
from torch import nn
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from ..decoding_vanilla import DecodingOptions, Translation
from ..errors import RowError
from ..protect import replace_by
from ..splitting_vanilla import Piece, check_texts, encode, is_blank


def target_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], what: str) -> list[list[int]]:
    """The tokens of parts of translations, each a `what`, "term" or "prefix".

    RowError for one that contains EOS, or what is unknown to the tokenizer.

    Blanks at the end are left out, as the tokenizer has them at the beginning of the next word.
    """
    stripped = [text.rstrip() for text in check_texts(texts, what)]
    found = list(encode(tokenizer, stripped, "text_target", add_special_tokens=False))
    eos = tokenizer.eos_token
    for row, (text, ids) in enumerate(zip(texts, found, strict=True)):
        # Some tokenizers, those of this package among them, read the name of EOS in a text as letters.
        if eos and (eos in text or tokenizer.eos_token_id in ids):
            raise RowError(what, row, f"the {what} {text!r:.60} contains the end-of-sentence token {eos}")
        if tokenizer.unk_token_id in ids:
            raise RowError(what, row, f"the {what} {text!r:.60} has what the tokenizer cannot write")
    return found


def prefix_ids(
    prefix: str | Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[list[Piece]],
    options: DecodingOptions,
) -> list[list[int]]:
    """The tokens of the prefix of each text, with those that stand for its spans; the text's layout is no part of it.

    Args:
        prefix: one string for all texts, or a list of one for each. texts: the pieces of each.

    Raises:
        ValueError: for another number, or a prefix that contains EOS.
    """
    each = check_texts([prefix] * len(texts) if isinstance(prefix, str) else prefix, "prefix")
    if len(each) != len(texts):
        raise ValueError(f"there are {len(texts)} sentences but {len(each)} prefixes")
    if not any(each):
        return [[] for _ in texts]
    for row, pieces in enumerate(texts):
        if (first := _first(pieces)) is not None:
            text = each[row].removeprefix("".join(piece.separator or "" for piece in pieces[:first]))
            each[row] = text if options.spans is None else replace_by(text, options.spans, pieces[first].spans or {})
    language = options.generation_config.forced_bos_token_id
    before = [] if language is None else [language]
    return [ids and [*before, *ids] for ids in target_ids(tokenizer, each, "prefix")]


def _first(pieces: Sequence[Piece]) -> int | None:
    """The number of the first piece that is not blank."""
    return next((number for number, piece in enumerate(pieces) if not is_blank(piece.text)), None)


def begin_with(prefix: Sequence[int], pieces: list[Piece]) -> list[Piece]:
    """The pieces of a text, of which the first that is not blank begins with the prefix."""
    if not prefix:
        return pieces
    first = _first(pieces)
    return [piece._replace(prefix=prefix if number == first else ()) for number, piece in enumerate(pieces)]


def check_prefix(row: int, prefix: Sequence[int], translation: Translation) -> None:
    """Raise RowError if the translation of the text `row` does not begin with the prefix."""
    found = translation.hypotheses[0].ids[1 : len(prefix) + 1]
    if found and [*found] != [*prefix]:
        message = f"a prefix of {len(prefix)} tokens cannot begin its output, by its limit or another rule"
        raise RowError("prefix", row, message)


class ForcedPrefix(LogitsProcessor):
    """Makes the output of each sentence begin with given tokens, in any search; their probabilities do not change.

    Args:
        prefixes: of each sentence of the batch, the tokens after the start token; empty for none.
    """

    row_by_row = never_raises = True

    def __init__(self, prefixes: Sequence[Sequence[int]]):
        rows = [torch.tensor(prefix, dtype=torch.long) for prefix in prefixes]
        self.prefixes = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)  # (B, longest)

    def select(self, sentences: torch.Tensor) -> "ForcedPrefix":
        """The processor of some sentences of the batch, given as a mask (B,) or as indices."""
        remaining = copy.copy(self)
        remaining.prefixes = self.prefixes[sentences.cpu()]
        return remaining

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """input_ids (rows, length), with as many rows for each sentence; scores (rows, V)."""
        step = input_ids.shape[1] - 1
        if step >= self.prefixes.shape[1]:
            return scores
        rows = len(input_ids) // len(self.prefixes)  # of each sentence
        token = self.prefixes[:, step].to(scores.device).repeat_interleave(rows)[:, None]
        given = token.clamp(min=0)
        forced = torch.full_like(scores, -torch.inf).scatter(1, given, scores.gather(1, given))
        return torch.where(token >= 0, forced, scores)
