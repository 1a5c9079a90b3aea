"""Words as the parser reads them: known words, and for any other word its signature.

A treebank is small, so one word in ten of a new text is in no training sentence. What such a word looks like, its
capitals, digits and ending, mostly tells its part of speech.
"""

import random
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence

from modeling_vanilla.corpus.tokenizer import SPECIAL_TOKENS

UNKNOWN = "UNK"  # begins every signature
# A word counts as known if it occurs at least so often: the others are all that teaches what signatures stand for.
MIN_COUNT = 2
# A known word is read as its signature with probability DROP / (DROP + count) in training (Stern et al. 2017, 5).
DROP = 0.8375
_ENDINGS = ("ed", "ing", "ion", "er", "est", "ly", "ity", "y", "al")


class Lexicon:
    """The known words of sentences with their counts, and the signatures of all their words.

    Known words occur at least MIN_COUNT times. They are the most frequent ones, as many as `size` leaves beside the
    signatures.
    """

    def __init__(self, sentences: Iterable[Sequence[str]], size: int):
        counts = Counter(_normalise(word) for sentence in sentences for word in sentence)
        for token in SPECIAL_TOKENS:
            del counts[token]  # as a word, </s> would end the sentence
        seen = {signature(word, first, known) for word in counts for first in (True, False) for known in (counts, ())}
        self.signatures = seen | {UNKNOWN}
        most = counts.most_common(max(0, size - len(self.signatures)))
        self.counts = {word: count for word, count in most if count >= MIN_COUNT}

    def read(self, sentence: Sequence[str], rng: random.Random | None = None) -> list[str]:
        """For each word of a sentence the one token that the model reads.

        Digits are all the same, 1,234.5 is 0,000.0. The first word is in lower case if it is known so. A word that is
        not known then is its signature.

        Args:
            rng: draws known words that are signatures, too, the rarer the more often.
        """
        tokens = []
        for index, word in enumerate(map(_normalise, sentence)):
            if not index and word.lower() in self.counts:
                word = word.lower()
            count = self.counts.get(word, 0)
            dropped = count and rng is not None and rng.random() < DROP / (DROP + count)
            if dropped or not count:
                word = signature(word, not index, self.counts)
                word = word if word in self.signatures else UNKNOWN
            tokens.append(word)
        return tokens


def signature(word: str, first: bool, known: Container[str]) -> str:
    """The class of a word by its form, as the Berkeley parser has it (Petrov et al. 2006, their code's level 5).

    UNK, then what there is of: capitals (-INITC for the first word of a sentence, -KNOWNLC if it is known in lower
    case, otherwise -CAPS) or lower case -LC; -NUM for a digit; -DASH for a hyphen; one of a few endings.
    """
    lower, capitals = word.lower(), sum(letter.isupper() for letter in word)
    number, dash = any(letter.isdigit() for letter in word), "-" in word
    parts = [UNKNOWN]
    if word[0].isupper() and first and capitals == 1:
        parts += ["INITC", "KNOWNLC"] if lower in known else ["INITC"]
    elif capitals:
        parts.append("CAPS")
    elif any(letter.islower() for letter in word):
        parts.append("LC")
    parts += ["NUM"] * number + ["DASH"] * dash
    if lower.endswith("s") and len(lower) > 2:
        parts += ["s"] * (lower[-2] not in "siu")
    elif len(lower) > 4 and not dash and not (number and capitals):
        parts += next(([ending] for ending in _ENDINGS if lower.endswith(ending)), [])
    return "-".join(parts)


def _normalise(word: str) -> str:
    return re.sub(r"\d", "0", word)
