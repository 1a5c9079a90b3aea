"""The score of a given translation: log P(target | source)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..splitting_vanilla import check_texts


class PairScore(NamedTuple):
    """log P(target | source), natural logarithm, and the number of target tokens, EOS counted in both."""

    log_prob: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """Per token: exp(-log_prob / tokens), infinite beyond the largest number."""
        try:
            return math.exp(-self.log_prob / self.tokens)
        except OverflowError:
            return math.inf


def check_pairs(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Raise ValueError unless these are two lists of texts of the same length."""
    if len(check_texts(sources, "sources")) != len(check_texts(targets, "targets")):
        raise ValueError(f"there are {len(sources)} sources but {len(targets)} targets")
