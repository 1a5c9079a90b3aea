"""What of a translation is given: its beginning, and terms, words of the source and their translation."""

from collections.abc import Callable, Iterable, Sequence

import regex as re  # \w has the signs that are written on letters, too
from transformers import PreTrainedTokenizerBase

from .splitting_vanilla import encode

# A letter of a script that puts blanks between words; each one of Chinese, Japanese or Thai is a word of its own.
_LETTER = r"[^\W\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
_WORD = re.compile(rf"{_LETTER}+|\S")
_BOUNDARY = re.compile(rf"(?<!{_LETTER})|(?!{_LETTER})")

# How a message begins about texts, terms or prefixes, given which of the three and their numbers: where they stand.
Place = Callable[[str, Sequence[int]], str]


def nowhere(what: str, rows: Sequence[int]) -> str:
    return ""


def target_ids(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], what: str, place: Place = nowhere
) -> list[list[int]]:
    """The tokens of parts of translations: of `what`, "term" or "prefix"; ValueError for one that contains EOS.

    Blanks at the end are left out: they are the beginning of a word, which the search finds.
    """
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{place(what, [row])}the {what} must be a string, not {text!r:.60}")
    stripped = [text.rstrip() for text in texts]
    found = [ids for ids, _ in encode(tokenizer, stripped, "text_target", add_special_tokens=False)]
    eos = tokenizer.eos_token
    for row, (text, ids) in enumerate(zip(texts, found, strict=True)):
        # Some tokenizers, those of this package among them, read the name of EOS in a text as letters.
        if eos and (eos in text or tokenizer.eos_token_id in ids):
            raise ValueError(f"{place(what, [row])}the {what} {text!r:.60} contains the end-of-sentence token {eos}")
    return found


class Terminology:
    """Pairs (source term, target term), or None, and where they apply.

    Target terms of one source term are alternatives.

    Raises:
        ValueError: for what is no pair of strings, an empty term, or a target term that contains EOS.
    """

    def __init__(
        self, terms: Iterable[tuple[str, str]] | None, tokenizer: PreTrainedTokenizerBase, place: Place = nowhere
    ):
        self.targets: dict[str, list[tuple[list[int], str]]] = {}  # of each source term: tokens and text
        self.by_first_word: dict[str, list[str]] = {}  # source terms, the longest first
        terms = list(terms or ())
        for row, term in enumerate(terms):
            if not (isinstance(term, (tuple, list)) and len(term) == 2 and all(isinstance(one, str) for one in term)):
                raise ValueError(f"a term must be a pair (source term, target term), not {term!r:.60}")
            if not all(side.strip() for side in term):
                raise ValueError(f"{place('term', [row])}a term is empty: {term!r:.60}")
        targets = target_ids(tokenizer, [target.strip() for _, target in terms], "term", place)
        for (source, _), tokens in zip(terms, targets, strict=True):
            source = source.strip()
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
                if _stands_at(text, source, start):
                    found[source], end = True, start + len(source)
                    break
        return list(found)

    def phrases(self, text: str) -> list[list[list[int]]]:
        """What the translation of a text has to contain, as `force_words_ids` of one sentence."""
        return [[tokens for tokens, _ in self.targets[source]] for source in self.find(text)]

    def missing(self, text: str, translation: str) -> list[str]:
        """The source terms in a text of which the translation has no target term, as whole words."""
        return [
            source
            for source in self.find(text)
            if not any(_contains(translation, target) for _, target in self.targets[source])
        ]


def _stands_at(text: str, term: str, start: int) -> bool:
    """Whether a text has a term, as whole words, at a place."""
    ends = start, start + len(term)
    return text.startswith(term, start) and all(_BOUNDARY.match(text, end) for end in ends)


def _contains(text: str, term: str) -> bool:
    return any(_stands_at(text, term, match.start()) for match in re.finditer(f"(?={re.escape(term)})", text))


__all__ = ["Place", "Terminology", "nowhere", "target_ids"]
