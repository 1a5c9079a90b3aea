"""Search among trees alone: every output is the linear form of a tree over exactly the words of its sentence."""

import torch
from transformers import LogitsProcessor, PreTrainedTokenizerBase
from trees import MAX_DEPTH

# The most opening brackets in a row, which bounds unary chains. The longest run in the sample of the treebank is 6.
MAX_OPENINGS = 10
_OTHER, _WORD, _TAG, _OPEN, _CLOSE = range(5)


class TreeConstraint(LogitsProcessor):
    """Leaves only tokens that some tree over the sentence goes on with, and renormalises their probabilities.

    What is allowed follows from a stack of open brackets and a pointer to the next word: after a word its tag;
    otherwise an opening bracket, at most MAX_OPENINGS in a row; the closing bracket of the stack's top, if it holds
    something; or the next word, whose probability is that of all words, as which of them comes is known. The first
    bracket opened is the root, which closes after the last word, and `</s>` follows it. No bracket is opened for which
    there are too few tokens left, so that every tree is finished.

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
        rows = torch.arange(len(written), device=written.device) // (
            len(written) // len(self.words)
        )  # the sentence of each row
        if not length:
            return renormalise(scores, self.kind.eq(_OPEN).expand_as(scores))
        kinds = self.kind[written]
        last = kinds[:, -1]
        depths = (kinds.eq(_OPEN).long() - kinds.eq(_CLOSE).long()).cumsum(dim=1)
        depth = depths[:, -1]
        place = torch.arange(1, length + 1, device=written.device)
        # The bracket on top is the last that was opened to the present depth: any later one inside it is closed.
        top = (place * (kinds.eq(_OPEN) & depths.eq(depth[:, None]))).amax(dim=1)
        openings = length - (place * kinds.ne(_OPEN)).amax(dim=1)
        pointer = kinds.eq(_TAG).sum(dim=1)
        words_left = self.words[rows] - pointer
        tokens_left = self.limits[rows] - length

        free = last.ne(_WORD) & depth.gt(0)
        opens = free & words_left.gt(0) & openings.lt(MAX_OPENINGS) & depth.lt(MAX_DEPTH - 1)
        opens &= tokens_left >= 2 * words_left + depth + 3  # the bracket and its end, words and tags, ends, </s>
        closes = free & last.ne(_OPEN) & (depth.gt(1) | words_left.eq(0))
        shifts = free & words_left.gt(0)
        allowed = opens[:, None] & self.kind.eq(_OPEN)
        allowed |= last.eq(_WORD)[:, None] & self.kind.eq(_TAG)
        closing = self.closing[written.gather(1, (top - 1).clamp(min=0)[:, None])]
        shifted = self.sources[rows].gather(1, pointer.clamp(max=self.sources.shape[1] - 1)[:, None])
        for index, where in ((closing, closes), (shifted, shifts)):
            allowed.scatter_(1, index, allowed.gather(1, index) | where[:, None])
        allowed[:, self.eos] = ~allowed.any(dim=1)
        any_word = scores.masked_fill(self.kind.ne(_WORD), -torch.inf).logsumexp(dim=1, keepdim=True)
        return renormalise(scores.where(self.kind.ne(_WORD), any_word), allowed)


def renormalise(scores: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Log-probabilities over the allowed tokens alone. Logits or log-probabilities (rows, V) -> (rows, V)"""
    return scores.masked_fill(~allowed, -torch.inf).log_softmax(dim=-1)
