"""Cut text into the pieces that are translated separately: lines, and the sentences of a line that is too long."""

import itertools
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from .spans_vanilla import RESERVED_TOKEN

try:
    from sentencex import segment
except ImportError:  # where a model is loaded by its own code, without what this package requires
    segment = None

logger = logging.get_logger(__name__)

TAG = re.compile(r">>[^\s<>]+<<\s*")

# The languages of sentencex's rules: their names of three letters, which NLLB has, and of two, which sentencex has.
_LANGUAGES = """amh=am ara=ar arb=ar ben=bn bul=bg cat=ca dan=da deu=de ell=el fin=fi fra=fr guj=gu hin=hi hye=hy
ita=it jpn=ja kan=kn kaz=kk mal=ml mar=mr mya=my nld=nl pan=pa pol=pl por=pt rus=ru slk=sk spa=es tam=ta tel=te
ukr=uk zho=zh"""
_TWO_LETTERS = dict(re.findall("(...)=(..)", _LANGUAGES))
_WINDOW = 4000  # characters that sentencex gets at once, as its time is quadratic in repeated quotation marks
# sentencex knows the danda, but not the marks of Khmer and Tibetan.
_KNOWN_MARKS = str.maketrans(dict.fromkeys("\u17d4\u17d5\u0f0d\u0f0e", "\u0964"))
# Tokens of the pieces of a sentence that is too long for one: such a text may have no end of its translation, and a
# search takes as many steps as the limit of its output has.
_FRAGMENT_TOKENS = 128
_LINE_END = re.compile(r"(\r?\n)")
_BLANK = " "
# What a line has around and between its texts: blanks at both ends, marks of lists, rules of tables. "# 8" is a number.
_MARK = r"[-*>|\u2022\u2023\u25aa\u25e6\u00b7]|#{1,6}(?!\s+\d{1,9}\s)|\[[ xX]\]|\(?(?:\d{1,3}|[A-Za-z])\)"
_LAYOUT = rf"(^\s*(?:(?:{_MARK}%s)\s+)+|^\s+|(?<!\s)\s+(?:\Z|(?:\|(?:\s+|\Z))+)|[ \t]{{2,}}|\t)"
_WITHOUT_NUMBERS, _WITH_NUMBERS = re.compile(_LAYOUT % ""), re.compile(_LAYOUT % r"|(?:\d{1,3}\.)+")
# "1." is no mark in these, but may be "first".
_ORDINALS = {*re.findall("[a-z]+", "bs cs da de et eu fi hr hu is lt lv nb nn no pl sk sl sr tr")}
_INVISIBLE = {"Cc", "Cf", "Zl", "Zp", "Zs"}  # Unicode's categories of controls, formats and separators
HALF_PAIR = re.compile("[\ud800-\udfff]")


class Piece(NamedTuple):
    """A part of a text that is translated separately."""

    text: str
    ids: array  # its tokens, with EOS
    separator: str | None  # the layout that follows its translation; None is a blank, where a sentence was cut off
    prefix: Sequence[int] = ()  # the tokens with which its translation must begin
    phrases: Sequence[Sequence[int]] = ()  # sequences of tokens that its translation must contain
    spans: Mapping[str, str] | None = None  # what each reserved token stands for, None if the tokenizer has none
    targets: Mapping[str, str] | None = None  # and in the translation

    @property
    def is_copied(self) -> bool:
        """Whether it is its own translation, as it has no letters."""
        return not (self.prefix or self.phrases or has_letters(self.text))


class Limits(NamedTuple):
    """The largest line that is translated whole, and how a larger one is cut. EOS counts as a token."""

    tokens: int  # of a whole line
    sentences: int | None  # of a whole line; None: any number
    piece_tokens: int  # of a piece
    by_sentence: bool  # cut at every sentence, as in training; else into as few pieces as possible
    language: str = "en"  # of the source


def source_limits(
    config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, max_source_tokens: int | None = None
) -> Limits:
    """The limits of a source: max_source_tokens if it is given, else those of the training sources, else 512 tokens.

    Learned positions limit all of these. ValueError if max_source_tokens is below 8.
    """
    # A character may take four tokens, one for each byte; the blank before it and EOS take two more.
    if max_source_tokens is not None and max_source_tokens < 8:
        raise ValueError(f"max_source_tokens must be at least 8, not {max_source_tokens}")
    seen = None, None
    if max_source_tokens is None:
        seen = getattr(config, "max_source_tokens", None), getattr(config, "max_source_sentences", None)
    longest = max_source_tokens or max(512, seen[0] or 0)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and getattr(config, "position_embedding_type", None) != "sinusoidal":
        longest = min(longest, positions)
    language = source_language(config, tokenizer)
    return Limits(min(longest, seen[0] or longest), seen[1], longest, seen != (None, None), language)


def source_language(config: PreTrainedConfig | None, tokenizer: PreTrainedTokenizerBase) -> str:
    """The source's language as sentencex names it: "de" for "de", "de_DE" or "deu_Latn"; "en" if it is unknown."""
    # This package and Marian have source_lang, others src_lang.
    tags = [getattr(one, name, None) for one in (tokenizer, config) for name in ("src_lang", "source_lang")]
    language = re.split("[_-]", next((tag for tag in tags if isinstance(tag, str)), "en"))[0].lower()
    return _TWO_LETTERS.get(language, language)


def split_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    limits: Limits | None,
    tgt_lang: str | None = None,
    source_prefix: str = "",
    replace: Callable[[str], tuple] = lambda line: (line, None, None),
    spans: re.Pattern | None = None,
    **kwargs,
) -> list[list[Piece]]:
    """The pieces of each text; without limits its lines. `kwargs` are the tokenizer's.

    `replace` returns for a line, without its tag, the text, the spans and the targets of its pieces; `spans` are whole
    in one of them.
    The tokens of a piece are the tag of its line, such as ">>de<<", or of tgt_lang for a line without one, and those of
    source_prefix and its text, which has no tag.
    """

    def encoded_pieces(pieces: Sequence[str]) -> Iterator[list[int]]:
        return encode(tokenizer, [source_prefix + piece for piece in pieces], **kwargs)

    length_of_prefix = len(next(encode(tokenizer, [source_prefix]))) - 1 if source_prefix else 0
    default = [] if tgt_lang is None else _tag_ids(tokenizer, f">>{tgt_lang}<<", needed=True)
    language = limits.language if limits else source_language(None, tokenizer)
    split = [[*_parts(tokenizer, text, language, spans)] for text in texts]
    lines = [replace(line) for parts in split for _, line, _ in parts]
    encoded = zip(lines, encoded_pieces([line[0] for line in lines]), strict=True)
    found = []
    for parts in split:
        pieces: list[Piece] = []
        for own, _, layout in parts:
            (line, copied, targets), ids = next(encoded)
            tag = own or default
            cut = [(line, ids)]
            if limits is not None and (
                len(tag) + len(ids) > limits.tokens
                or (limits.sentences is not None and count_sentences(line, limits.language) > limits.sentences)
            ):
                cut_texts = _cut(tokenizer, line, limits, limits.piece_tokens - len(tag) - length_of_prefix)
                cut = [*zip(cut_texts, encoded_pieces(cut_texts), strict=True)]
            for number, (text, ids) in enumerate(cut, start=1):
                separator = layout if number == len(cut) else None
                # All pieces are in memory at once; an array takes 4 bytes a token, a list 8 to 40.
                more = {"spans": copied, "targets": targets}
                pieces.append(Piece(text, array("i", [*tag, *ids]), separator, **more))
        found.append(pieces)
    return found


def _parts(
    tokenizer: PreTrainedTokenizerBase, text: str, language: str, spans: re.Pattern | None
) -> Iterator[tuple[list[int], str, str]]:
    """What a text is made of: the token of the tag of a line, what is translated, and the layout that follows it."""
    pattern = _WITHOUT_NUMBERS if language in _ORDINALS else _WITH_NUMBERS
    lines = _LINE_END.split(text)  # line, line end, line, ...
    for line, line_end in zip(lines[::2], [*lines[1::2], ""], strict=True):
        tag, line = _untagged(tokenizer, line)
        within = {place for span in spans.finditer(line) for place in range(*span.span())} if spans else {*()}
        start = 0
        for layout in pattern.finditer(line):
            if layout.start() not in within:
                yield tag, line[start : layout.start()], layout[0]
                start = layout.end()
        yield tag, line[start:], line_end


def tags_of(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The language tags among the tokens of a tokenizer, such as ">>de<<", as OPUS-MT has them."""
    return sorted(filter(TAG.fullmatch, tokenizer.get_vocab()))


def _untagged(tokenizer: PreTrainedTokenizerBase, line: str) -> tuple[list[int], str]:
    """The token of the tag that a line begins with, none if there is no tag, and the text behind it."""
    match = TAG.match(line)
    own = _tag_ids(tokenizer, match[0].rstrip()) if match else []
    return own, line[match.end() :] if match and own else line


def _tag_ids(tokenizer: PreTrainedTokenizerBase, tag: str, needed: bool = False) -> list[int]:
    """The token of a language tag; none if the tokenizer has no tags, as it is text then."""
    number = tokenizer.convert_tokens_to_ids(tag)
    if number is not None and tokenizer.convert_ids_to_tokens(number) == tag:
        return [number]  # type: ignore[list-item]
    tags = tags_of(tokenizer)
    if tags or needed:
        raise ValueError(f"{tag} is no token of the tokenizer; its tags are: {' '.join(tags) or 'none'}")
    return []


def check_texts(texts: Iterable[str], name: str = "texts") -> list[str]:
    """The texts as a list; ValueError unless all are strings without half a surrogate pair, which JSON allows."""
    if isinstance(texts, str):
        raise ValueError(f"{name} must be a list of texts, not one text: {texts!r:.60}")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{name} must be strings, not {type(text).__name__}: {text!r:.60}")
        if HALF_PAIR.search(text):
            raise ValueError(f"{name}: {text!r:.60} has half of a surrogate pair, which is no character")
    return texts


def is_blank(text: str) -> bool:
    """Whether a text has no visible character: only white space, controls, zero-width spaces, soft hyphens and such."""
    return all(unicodedata.category(character) in _INVISIBLE for character in text)


def has_letters(text: str) -> bool:
    return any(map(str.isalpha, text))


def join_pieces(pieces: Sequence[Piece], translations: Iterable[str]) -> str:
    """Join the translations of a text's pieces."""
    joined: list[str] = []
    line: list[str] = []
    for piece, translation in zip(pieces, translations, strict=True):
        line.append(translation)
        if piece.separator is not None:
            joined += [_BLANK.join(filter(None, line)), piece.separator]
            line = []
    return "".join(joined)


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Cut a line behind each sentence, by sentencex's rules and abbreviations of a language.

    A full stop before a small letter belongs to an abbreviation, unless the line itself begins with a small letter.
    """
    if segment is None:
        logger.warning_once("text is split at line ends alone, as sentencex is missing: pip install sentencex")
        return [text]
    plain = re.sub(r"\s", _BLANK, text).translate(_KNOWN_MARKS)  # sentencex fails at some white space
    tag = TAG.match(plain)
    has_capitals = not plain[tag.end() if tag else 0 :].lstrip()[:1].islower()
    ends, start = [], 0
    while start < len(plain):
        window = plain[start : start + _WINDOW]
        sentences = segment(language, window)
        if start + len(window) < len(plain):  # the last sentence may continue
            sentences = sentences[:-1]
        for sentence in sentences:
            start += len(sentence)
            if not (has_capitals and sentence.rstrip().endswith(".") and plain[start : start + 1].islower()):
                ends.append(start)
        if not sentences:
            start += len(window)
    return _cut_at(text, ends)


def count_sentences(text: str, language: str = "en") -> int:
    return sum(not is_blank(sentence) for sentence in split_sentences(text, language))


def _cut_at(text: str, ends: Iterable[int]) -> list[str]:
    return [text[start:end] for start, end in itertools.pairwise([0, *ends, len(text)]) if end > start]


def _cut(tokenizer: PreTrainedTokenizerBase, line: str, limits: Limits, room: int) -> list[str]:
    """Cut a line into pieces of at most `room` tokens: at sentences, else blanks, else anywhere, into smaller ones."""
    most = max(1, min(room, _FRAGMENT_TOKENS) // 8)
    ways = [re.compile(r"\s+"), re.compile(f"(?s)(?:{RESERVED_TOKEN}|.){{1,{most}}}")]
    sentences = split_sentences(line, limits.language)
    if limits.by_sentence:
        pieces = [piece for sentence in sentences for piece in _fit(tokenizer, [sentence], ways, room)]
    else:
        pieces = _fit(tokenizer, sentences, ways, room)
    return [piece.strip() for piece in pieces]


def _fit(tokenizer: PreTrainedTokenizerBase, parts: list[str], ways: Sequence[re.Pattern], room: int) -> list[str]:
    """Join neighbouring parts while they fit in `room` tokens; cut a part that does not, by the first of `ways`."""

    def fits(text: str) -> bool:
        return len(next(encode(tokenizer, [text.strip()]))) <= room

    sizes = [*map(len, encode(tokenizer, [part.removesuffix(_BLANK) for part in parts]))]
    pieces, start = [], 0
    while start < len(parts):
        end, size = start + 1, sizes[start]
        # Each part has an EOS, the whole has one. A blank at the end of a part is encoded with the next word.
        while end < len(parts) and size + sizes[end] - 1 <= room:
            size += sizes[end] - 1
            end += 1
        while end > start + 1 and not fits("".join(parts[start:end])):  # the sum was wrong, as with other white space
            end -= 1 + (end - start - 1) // 4
        whole = "".join(parts[start:end])
        if ways and not fits(whole):
            ends = (match.end() for match in ways[0].finditer(whole))
            pieces += _fit(tokenizer, _cut_at(whole, ends), ways[1:], min(room, _FRAGMENT_TOKENS))
        else:
            pieces.append(whole)
        start = end
    return pieces


def encode(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], name: str = "text", field: str = "input_ids", **kwargs
) -> Iterator[list]:
    """A field of the tokenizer's output for each text. name: "text" for sources, "text_target" for translations."""
    # A thousand texts at a time, as the tokenizer takes 9 kB for each.
    for start in range(0, len(texts), 1000):
        batch = {name: list(texts[start : start + 1000])}
        yield from getattr(tokenizer(**batch, verbose=False, **kwargs), field)
