"""Terms and prefixes: given translations of words of the source, and given beginnings of translations."""

import copy
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from unicodedata import normalize

import regex as re  # whose \w includes the signs that are written on letters
import torch
from torch import nn
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from ..errors import RowError
from ..files import read_lines
from ..spans_vanilla import put_back, replace_by, span_pattern
from ..splitting_vanilla import Piece, check_texts, encode, is_blank, join_pieces
from ..translation_vanilla import SearchSettings, Translation
from .constraints import constrained

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


def target_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], what: str) -> list[list[int]]:
    """The tokens of parts of translations, each a `what`, "term" or "prefix"; RowError for one that contains EOS.

    Blanks at the end are left out, as the tokenizer has them at the beginning of the next word.
    """
    stripped = [text.rstrip() for text in check_texts(texts, what)]
    found = list(encode(tokenizer, stripped, "text_target", add_special_tokens=False))
    eos = tokenizer.eos_token
    for row, (text, ids) in enumerate(zip(texts, found, strict=True)):
        # Some tokenizers, those of this package among them, read the name of EOS in a text as letters.
        if eos and (eos in text or tokenizer.eos_token_id in ids):
            raise RowError(what, row, f"the {what} {text!r:.60} contains the end-of-sentence token {eos}")
    return found


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

    def protect_in(self, settings: SearchSettings) -> None:
        """Let reserved tokens stand for the source terms, and the target terms be put in their place.

        ValueError if the tokenizer has none.
        """
        if not settings.has_reserved:
            raise ValueError("terms: the engine ctranslate2 needs a model trained with --protect, torch does not")
        spans = settings.spans.pattern if settings.spans else span_pattern({"none": "(?!)"}).pattern
        settings.spans = re.compile(f"{_TERMS}|{spans}", terms=self.targets)
        settings.terms = {term: target for term, (target, _) in self.targets.items()}
        settings.prepare = plain

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


def prefix_with_spans(prefix: str | Sequence[str], pieces: Sequence[list[Piece]], settings: SearchSettings):
    """The prefixes of texts, with the tokens that stand for the spans of the first pieces."""
    if settings.spans is None or not any(prefix):
        return prefix
    each = [prefix] * len(pieces) if isinstance(prefix, str) else prefix
    return [replace_by(text, settings.spans, first.spans or {}) for text, (first, *_) in zip(each, pieces, strict=True)]


def prefix_ids(
    prefix: str | Sequence[str], tokenizer: PreTrainedTokenizerBase, texts: int, language: int | None
) -> list[list[int]]:
    """The tokens of the prefix of each of so many texts.

    Args:
        prefix: one string for all texts, or a list of one for each. language: forced_bos_token_id, which comes first.

    Raises:
        ValueError: for another number, or a prefix that contains EOS.
    """
    if not isinstance(prefix, str) and len(prefix) != texts:
        raise ValueError(f"there are {texts} sentences but {len(prefix)} prefixes")
    if not any(prefix):
        return [[] for _ in range(texts)]
    different, number = ([prefix], texts) if isinstance(prefix, str) else (prefix, 1)  # one is encoded once
    before = [] if language is None else [language]
    return [ids and [*before, *ids] for ids in target_ids(tokenizer, different, "prefix")] * number


def begin_with(prefix: Sequence[int], pieces: list[Piece]) -> list[Piece]:
    """The pieces of a text, of which the first that is not blank begins with the prefix."""
    if not prefix:
        return pieces
    first = next((number for number, piece in enumerate(pieces) if not is_blank(piece.text)), None)
    return [piece._replace(prefix=prefix if number == first else ()) for number, piece in enumerate(pieces)]


def check_prefix(row: int, prefix: Sequence[int], translation: Translation) -> None:
    """Raise RowError if the translation of the text `row` does not begin with the prefix."""
    found = translation.hypotheses[0].ids[1 : len(prefix) + 1]
    if found and [*found] != [*prefix]:
        message = f"a prefix of {len(prefix)} tokens cannot begin its output, by its limit or another rule"
        raise RowError("prefix", row, message)


def generate_arguments(pieces: Sequence[Piece]) -> dict:
    """The arguments of generate() by which translations have the prefixes and the phrases of their pieces."""
    arguments: dict = {}
    if any(piece.phrases for piece in pieces):
        arguments["search"] = constrained([piece.phrases for piece in pieces])
    if any(piece.prefix for piece in pieces):
        arguments["logits_processor"] = [ForcedPrefix([piece.prefix for piece in pieces])]
    return arguments


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
