"""Translation memories (TMX), read unit by unit, and the text of a segment without the codes of other programs."""

import codecs
import gzip
import re
from collections.abc import Iterator
from typing import TextIO
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers.expat import ErrorString, ExpatError, ParserCreate

from ..progress import inform

_CHUNK = 2**20  # characters
# The start of a comment or a unit, under any prefix; an attribute may have ">".
_START = re.compile(r"""<!--|<(?:[\w.-]+:)?tu\b(?:[^>"']|"[^"]*"|'[^']*')*+>""")
_END = re.compile(r"</(?:[\w.-]+:)?tu\s*>")
_COMMENT_END = re.compile("-->")
_CODES = {"bpt", "ept", "it", "ph", "ut"}  # elements that hold codes of another program
# What a person sees in the file: tags, {0} and ${name}, %s and $name, entities, \n. Codes of RTF are none of these.
_VISIBLE = re.compile(r"\s*(<.+>|\$?\{[^\\]*\}|[%$]\S*|&\S+;|\\[nrt])\s*", re.DOTALL)
# Stand where a code was removed, one that may be within a word and one that may not; no XML has these characters.
_WITHIN, _BETWEEN = "\x01", "\x02"


def read_tmx(path: str, languages: tuple[str, str]) -> Iterator[tuple[str, dict[str, str | None]]]:
    """The texts of each unit that has both languages, with its place; a memory may have more, in some of its units.

    A line at the end says how many units are broken, lack a language or have inline codes. Each unit is parsed by
    itself, so that a broken one costs no other, and no document type is read, so that no entity is expanded.

    Raises:
        ValueError: no unit has both languages, or the file is cut or no TMX.
    """
    total, broken, lacking, coded = 0, 0, 0, 0
    seen: set[str] = set()
    fault = ""  # the first one
    for total, text in enumerate(_units(path), start=1):
        try:
            unit = _parse(text)
        except (ExpatError, UnicodeError) as error:
            broken += 1
            fault = fault or f"; unit {total}: {_reason(error, text)}"
            continue
        variants = _variants(unit)
        seen |= variants.keys()
        texts = {language: _variant(variants, language) for language in languages}
        if None in texts.values():
            lacking += 1
            continue
        coded += any(_name(element) in _CODES for element in unit.iter())
        yield f"{path}, unit {total}", texts
    names = " and ".join(f'"{language}"' for language in languages)
    if total and broken + lacking == total:
        raise ValueError(f"{path}: no unit has both {names}, only {sorted(seen)!a:.60}{fault}")
    if broken + lacking + coded:
        codes = f"{coded} have inline codes, of which those such as {{0}}, %s and <b> stay"
        inform(f"{path}: {total} units: {codes}; {lacking} lack one of {names}; {broken} are broken{fault}")


def _units(path: str) -> Iterator[str]:
    """The text of each unit, as the file has it; ValueError if the file does not end as a TMX does."""
    rest = ""
    with _open(path) as stream:
        # As much again as is left, so that a long unit is not searched from its start over and over.
        while more := stream.read(max(_CHUNK, len(rest))):
            rest, position = rest + more, 0
            while start := _START.search(rest, position):
                if start[0].endswith("/>"):  # a unit without anything
                    position = start.end()
                    continue
                end = (_COMMENT_END if start[0] == "<!--" else _END).search(rest, start.end())
                if end is None:
                    break
                if start[0] != "<!--":
                    yield rest[start.start() : end.end()]
                position = end.end()
            rest = rest[position:]
    if not re.search(r"</([\w.-]+:)?tmx\s*>", rest):
        raise ValueError(f"{path}: not TMX, or cut: it does not end with </tmx>")


def _open(path: str) -> TextIO:
    """The file in its encoding. A byte that is none becomes half a surrogate pair, which breaks its unit alone."""
    open_file = gzip.open if path.lower().endswith(".gz") else open
    with open_file(path, "rb") as stream:
        head = stream.read(1000)
    declared = re.match(rb"""\s*<\?xml[^>]*encoding\s*=\s*["']([\w.-]+)""", head)
    name = declared[1].decode() if declared else "utf-8"
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        name = "utf-16"
    try:
        encoding = codecs.lookup(name).name
    except LookupError as error:
        raise ValueError(f"{path}: not TMX: {error}") from error
    return open_file(path, "rt", encoding={"utf-8": "utf-8-sig"}.get(encoding, encoding), errors="surrogateescape")


def _parse(text: str) -> Element:
    """The element of a unit. Unlike ElementTree's parser this one asks for no declaration of a prefix."""
    parser, builder = ParserCreate(), TreeBuilder()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler = builder.data
    parser.Parse(text, True)
    return builder.close()


def _reason(error: ExpatError | UnicodeError, text: str) -> str:
    if isinstance(error, UnicodeError):
        return "bytes of another encoding than the file's"
    line = text.split("\n")[error.lineno - 1]
    return f"{ErrorString(error.code)} at {line[error.offset : error.offset + 30]!a}"


def _name(element: Element) -> str:
    return re.split("[:}]", element.tag)[-1]


def _variants(unit: Element) -> dict[str, str]:
    """The text of a unit in each language; of two in one language the first."""
    texts: dict[str, str] = {}
    for variant in unit:
        language = variant.get("xml:lang") or variant.get("lang") or ""
        for segment in variant:
            if _name(segment) == "seg":
                texts.setdefault(language.lower().replace("_", "-"), inline_text(segment))
    return texts


def _variant(texts: dict[str, str], language: str) -> str | None:
    """The text in a language: `de` is de, else the first of de-DE and the like; `de_DE` is de-DE, else de."""
    wanted = language.lower().replace("_", "-")
    near = (name for name in texts if f"{name}-".startswith(f"{wanted}-") or wanted.startswith(f"{name}-"))
    return texts.get(wanted if wanted in texts else next(near, ""))


def inline_text(segment: Element) -> str:
    """The text of a segment on one line, with the codes that a person sees in the file and without the others.

    Blanks on both sides of a code that is removed become one, and letters on both sides of a placeholder get one.
    """
    lines = filter(None, map(str.strip, _marked_text(segment).splitlines()))
    text = re.sub(r"(?<=\s)(?:[\x01\x02]+\s+)+", "", " ".join(lines))
    text = re.sub(r"(?<=\w)\x01*\x02[\x01\x02]*(?=\w)", " ", text)
    return re.sub(r"[\x01\x02]", "", text).strip()


def _marked_text(element: Element) -> str:
    parts = [element.text or ""]
    for part in element:
        name, held = _name(part), _marked_text(part)
        if name in _CODES:
            # {} is a placeholder, but of a pair it is what memoQ writes for a format.
            is_kept = _VISIBLE.fullmatch(held) and (name == "ph" or held != "{}")
            held = held if is_kept else _BETWEEN if name == "ph" else _WITHIN
        parts += (held or _BETWEEN, part.tail or "")
    return "".join(parts)
