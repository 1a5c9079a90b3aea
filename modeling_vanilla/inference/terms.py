"""Terms: given translations of words of the source."""

import logging
from collections.abc import Iterable
from pathlib import Path
from unicodedata import normalize

import regex as re  # whose \w includes the signs that are written on letters
from transformers import PreTrainedTokenizerBase

from ..decoding_vanilla import DecodingOptions, Translation
from ..errors import RowError
from ..files import read_lines
from ..spans_vanilla import put_back, span_pattern
from ..splitting_vanilla import Piece, check_texts, join_pieces
from .prefixes import target_ids

logger = logging.getLogger(__name__)

# A letter of a script that puts blanks between words; a letter of Chinese, Japanese or Thai is a word by itself.
_LETTER = r"[^\W\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
_BLANKS = re.compile(r"[^\S\r\n]+")  # between the words of a term: also a tab, one without a break, several
_BOUNDARY = rf"(?:(?<!{_LETTER})|(?!{_LETTER}))"
_TERMS = rf"{_BOUNDARY}\L<terms>{_BOUNDARY}"  # the longest that fits


def read_terms(path: Path) -> list[tuple[str, ...]]:
    """The terms of a file of lines "SOURCE TERM<tab>TARGET TERM"."""
    return [tuple(line.split("\t")) for line in read_lines(path)]


def plain(text: str) -> str:
    """A source as terms are looked for in it: composed letters, and one blank between words."""
    return _BLANKS.sub(" ", normalize("NFC", text))


class Terminology:
    """Pairs (source term, target term).

    Raises:
        ValueError: for what is no pair of strings, a term that is empty or has half of a surrogate pair, a target term
            that contains EOS, or two target terms of one source term.
    """

    def __init__(self, terms: Iterable[tuple[str, ...]], tokenizer: PreTrainedTokenizerBase):
        self.targets: dict[str, tuple[str, list[int]]] = {}  # of each source term: text and tokens
        pairs = []
        for row, term in enumerate(terms):
            pair = [side.strip() for side in check_texts(term, "term")]
            if len(pair) != 2 or not all(pair):
                raise RowError("term", row, f"a term must be a source and a target term, not {term!r:.60}")
            pairs.append(pair)
        tokens = target_ids(tokenizer, [target for _, target in pairs], "term")
        for row, ((source, _), ids) in enumerate(zip(pairs, tokens, strict=True)):
            source = plain(source)
            if source in self.targets and self.targets[source][1] != ids:
                raise RowError("term", row, f"the term {source!r:.60} has two translations")
            # As text that the tokenizer may have changed.
            self.targets[source] = str(tokenizer.decode(ids, skip_special_tokens=True)).strip(), ids
        self.pattern = re.compile(_TERMS, terms=self.targets)

    def find(self, text: str) -> list[str]:
        """The source terms that a text has as whole words, each once; of overlapping ones the first, then longest."""
        return list(dict.fromkeys(self.pattern.findall(plain(text)))) if self.targets else []

    def add_to(self, pieces: Iterable[Piece]) -> list[Piece]:
        """The pieces with the phrases that their translations must contain."""
        if not self.targets:
            return [*pieces]
        return [piece._replace(phrases=[self.targets[term][1] for term in self.find(piece.text)]) for piece in pieces]

    def protect_in(self, options: DecodingOptions) -> None:
        """Let reserved tokens stand for the source terms, and the target terms be put in their place.

        ValueError if the tokenizer has none.
        """
        if not options.has_reserved:
            raise ValueError("terms: the engine ctranslate2 needs a model trained with --protect, torch does not")
        spans = options.spans.pattern if options.spans else span_pattern({"none": "(?!)"}).pattern
        options.spans = re.compile(f"{_TERMS}|{spans}", terms=self.targets)
        options.terms = {term: target for term, (target, _) in self.targets.items()}
        options.prepare = plain

    def keep_in(self, options: DecodingOptions) -> None:
        """Let a source term stay text, though it has or is a span."""
        if self.targets and options.spans:
            options.spans = re.compile(f"{_TERMS}(*SKIP)(*FAIL)|{options.spans.pattern}", terms=self.targets)

    def warn_of_missing(self, row: int, translation: Translation) -> None:
        """Log each term of the text `row` that its translation lacks, as where the text is cut within the term."""
        pieces, best = translation.pieces, translation.best
        sources = [piece.text for piece in pieces]
        whole = join_pieces(pieces, sources), join_pieces(pieces, best)
        missing = {
            term: source
            for source, target in [whole, *zip(sources, best, strict=True)]
            for term in self.find(source)
            if self.targets[term][0] not in target
        }
        for piece, target in zip(pieces, best, strict=True):
            lost = [span for token, span in (piece.spans or {}).items() if token in piece.text and token not in target]
            missing |= {span: put_back(piece.text, piece.spans) for span in lost if span in self.targets}
        for term, source in missing.items():
            missed = f"the term {term!r} could not be met in the translation of {source[:60]!r}"
            logger.warning(missed, extra={"what": "text", "rows": [row]})
