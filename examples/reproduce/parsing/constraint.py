"""Search among trees alone: every output is the linear form of a tree over exactly the words of its sentence."""

import torch
from torch import nn
from transformers import LogitsProcessor, PreTrainedTokenizerBase

# The most opening brackets in a row, which bounds unary chains. The longest run in the sample of the treebank is 6.
MAX_OPENINGS = 10
_OTHER, _WORD, _TAG, _OPEN, _CLOSE = range(5)


class TreeConstraint(LogitsProcessor):
    """Allows only tokens with which a tree over the sentence can continue, and renormalises their probabilities.

    What is allowed follows from a stack of open brackets and a pointer into the sentence. At the start and after each
    tag the next word is forced, at no cost. Then comes its tag, or an opening bracket, at most MAX_OPENINGS in a row,
    or the closing bracket of the stack's top, if it holds something. The first bracket opened is the root, which closes
    after the last word, and `</s>` follows it. No bracket is opened for which there are too few tokens left, so that
    every tree is finished.

    Args:
        source_ids: (B, S), the words of each sentence, one token each, with padding and `</s>`.
        tokenizer: of `parsing_vocabulary`.
        max_extra_tokens: the search's limit, in tokens more than the sentence has.

    Raises:
        ValueError: if a sentence has no words, or the limit is too low for a tree over them.
    """

    def __init__(self, source_ids: torch.Tensor, tokenizer: PreTrainedTokenizerBase, max_extra_tokens: int):
        self.eos = tokenizer.eos_token_id
        self.sources = source_ids
        self.words = ((source_ids != tokenizer.pad_token_id) & (source_ids != self.eos)).sum(dim=1)
        self.limits = self.words + 1 + max_extra_tokens
        if not self.words.all():
            raise ValueError("a sentence without words has no tree")
        least = 2 * self.words + 3  # the root's brackets, each word with its tag, and </s>
        if (self.limits < least).any():
            raise ValueError(f"max_extra_tokens {max_extra_tokens}: a tree needs {int((least - self.words - 1).max())}")
        self.kind = torch.full((len(tokenizer),), _WORD, device=source_ids.device)
        self.closing = torch.zeros_like(self.kind)
        vocabulary = tokenizer.get_vocab()
        for token, number in vocabulary.items():
            if token.startswith("(") and token.endswith(")"):
                self.kind[number] = _TAG
            elif token.startswith("("):
                self.kind[number], self.closing[number] = _OPEN, vocabulary[")" + token[1:]]
            elif token.startswith(")"):
                self.kind[number] = _CLOSE
        self.kind[[tokenizer.pad_token_id, tokenizer.bos_token_id, self.eos]] = _OTHER

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores (rows, V) of the next token, with -inf for what is not allowed.

        Args:
            input_ids: (rows, 1 + T), the start token and what is written; rows of one sentence are neighbours.
        """
        written = input_ids[:, 1:]
        length = written.shape[1]
        beams = len(written) // len(self.words)
        rows = torch.arange(len(written), device=written.device) // beams  # the sentence of each row
        kinds = self.kind[written]
        last = kinds[:, -1] if length else kinds.new_full((len(written),), _TAG)  # a word follows either
        depths = (kinds.eq(_OPEN).long() - kinds.eq(_CLOSE).long()).cumsum(dim=1)
        depth = kinds.eq(_OPEN).sum(dim=1) - kinds.eq(_CLOSE).sum(dim=1)
        # The bracket on top is the last that was opened to the present depth: any later one inside it is closed.
        top = last_place(kinds.eq(_OPEN) & depths.eq(depth[:, None]))
        openings = length - last_place(kinds.ne(_OPEN))
        tagged = kinds.eq(_TAG).sum(dim=1)
        untagged, unwritten = self.words[rows] - tagged, self.words[rows] - kinds.eq(_WORD).sum(dim=1)
        tokens_left = self.limits[rows] - length

        shifts = last.eq(_TAG) & unwritten.gt(0)
        begins = depth.eq(0) & tagged.eq(0)
        opens = ~shifts & untagged.gt(0) & (depth.gt(0) | begins) & openings.lt(MAX_OPENINGS)
        opens &= tokens_left >= unwritten + untagged + depth + 3  # the bracket, its end, words, tags, ends and </s>
        closes = ~shifts & last.ne(_OPEN) & (depth.gt(1) | untagged.eq(0)) & depth.gt(0)
        tags = ~shifts & untagged.gt(0) & depth.gt(0)
        allowed = (opens[:, None] & self.kind.eq(_OPEN)) | (tags[:, None] & self.kind.eq(_TAG))
        if length:
            closing = self.closing[written.gather(1, (top - 1).clamp(min=0)[:, None])]
            allowed.scatter_(1, closing, allowed.gather(1, closing) | closes[:, None])
        word = self.sources[rows].gather(1, tagged.clamp(max=self.sources.shape[1] - 1)[:, None])
        allowed.scatter_(1, word, allowed.gather(1, word) | shifts[:, None])
        allowed[:, self.eos] |= ~allowed.any(dim=1)
        return scores.masked_fill(~allowed, -torch.inf).log_softmax(dim=-1)


def last_place(mask: torch.Tensor) -> torch.Tensor:
    """The number of columns up to the last True of each row, 0 if there is none. (rows, T) -> (rows,)"""
    places = mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return nn.functional.pad(places, (1, 0)).amax(dim=1)
