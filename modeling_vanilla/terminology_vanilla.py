"""What of a translation is given: its beginning, and terms, words of the source and their translation."""

import re
from collections.abc import Iterable

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

logger = logging.get_logger(__name__)

_WORD = re.compile(r"\w+|[^\w\s]")
_BOUNDARY = re.compile(r"(?<!\w)|(?!\w)")


def target_ids(tokenizer: PreTrainedTokenizerBase, text: str, name: str) -> list[int]:
    """The tokens of a part of a translation; ValueError, with the `name` of the part, if it contains EOS."""
    if not isinstance(text, str):
        raise ValueError(f"the {name} must be a string, not {text!r:.60}")
    tokens = tokenizer(text_target=text, add_special_tokens=False, verbose=False).input_ids
    # Some tokenizers, those of this package among them, read the name of EOS in a text as letters.
    if tokenizer.eos_token and (tokenizer.eos_token in text or tokenizer.eos_token_id in tokens):
        raise ValueError(f"the {name} {text!r:.60} contains the end-of-sentence token {tokenizer.eos_token}")
    return tokens


class Terminology:
    """Pairs (source term, target term) and where they apply. Target terms of one source term are alternatives.

    Raises:
        ValueError: for what is no pair of strings, an empty term, or a target term that contains EOS.
    """

    def __init__(self, terms: Iterable[tuple[str, str]], tokenizer: PreTrainedTokenizerBase):
        self.targets: dict[str, list[tuple[list[int], str]]] = {}  # of each source term: tokens and text
        self.by_first_word: dict[str, list[str]] = {}  # source terms, the longest first
        for term in terms:
            if not (isinstance(term, (tuple, list)) and len(term) == 2 and all(isinstance(one, str) for one in term)):
                raise ValueError(f"a term must be a pair (source term, target term), not {term!r:.60}")
            source, target = (one.strip() for one in term)
            tokens = target_ids(tokenizer, target, "term")
            if not source or not tokens:
                raise ValueError(f"a term is empty: {term!r:.60}")
            if source not in self.targets:
                self.by_first_word.setdefault(_WORD.match(source).group(), []).append(source)  # type: ignore[union-attr]
            text = str(tokenizer.decode(tokens, skip_special_tokens=True)).strip()
            self.targets.setdefault(source, []).append((tokens, text))
        for sources in self.by_first_word.values():
            sources.sort(key=len, reverse=True)

    def find(self, text: str) -> list[str]:
        """The source terms in a text, each once: whole words, of overlapping terms the first, then the longest."""
        found, end = {}, 0
        for word in _WORD.finditer(text) if self.targets else ():
            start = word.start()
            for source in self.by_first_word.get(word.group(), []) if start >= end else []:
                stop = start + len(source)
                if text.startswith(source, start) and _BOUNDARY.match(text, stop):
                    found[source], end = True, stop
                    break
        return list(found)

    def phrases(self, text: str) -> list[list[list[int]]]:
        """What the translation of a text has to contain, as `force_words_ids` of one sentence."""
        return [[tokens for tokens, _ in self.targets[source]] for source in self.find(text)]

    def missing(self, text: str, translation: str) -> list[str]:
        """The source terms in a text of which the translation has no target term."""
        return [one for one in self.find(text) if not any(target in translation for _, target in self.targets[one])]

    def warn_of_missing(self, text: str, translation: str) -> None:
        """A warning in the log for each term that is `missing`."""
        for source in self.missing(text, translation):
            logger.warning(f"the term {source!r} could not be met in the translation of {text[:60]!r}")


__all__ = ["Terminology", "target_ids"]
