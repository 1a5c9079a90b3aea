"""Catalogues of units, .po and .xliff, by translate-toolkit: the translated ones are read, the empty ones filled."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, unescape

from .tmx import inline_text

CATALOGUES = (".po", ".xliff", ".xlf")
# Of XLIFF: an element with the code of another program, whole, or a tag.
_TAG = re.compile(r"(<(?:bpt|ept|it|ph)\b[^>]*(?<!/)>.*?</(?:bpt|ept|it|ph)>|<[^>]*>)", re.DOTALL)


def open_catalogue(path: str) -> Any:
    """The catalogue as translate-toolkit has it; ValueError if that is missing or cannot read the file."""
    try:
        from translate.storage import factory  # an extra of this package
    except ImportError as error:
        raise ValueError(f"{path}: needs translate-toolkit: pip install translate-toolkit") from error
    try:
        return factory.getobject(path)
    except Exception as error:  # its parsers raise almost anything
        raise ValueError(f"{path}: not {Path(path).suffix}: {str(error) or type(error).__name__}") from error


def read_units(path: str, languages: tuple[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The pairs of each unit that is translated and not fuzzy, with its place; of a plural each form.

    Raises:
        ValueError: as `open_catalogue` does.
    """
    for number, unit in enumerate(open_catalogue(path).units, start=1):
        for pair in _forms(unit) if unit.istranslatable() else ():
            if all(pair):
                yield f"{path}, unit {number}", dict(zip(languages, pair, strict=True))


def _forms(unit) -> list[tuple[str, str]]:
    """The pairs of a unit, each text on one line; none if it needs work. Of several forms the first is singular."""
    if _is_xliff(unit):
        source, target = (unit.getlanguageNode(None, index) for index in range(2))
        if target is None or target.get("state", "").startswith(("new", "needs")):
            return []
        return [(inline_text(source), inline_text(target))]
    if unit.isfuzzy():
        return []
    sources, targets = (
        [" ".join(text.split()) for text in getattr(side, "strings", [side])] for side in (unit.source, unit.target)
    )
    return [(source_of(form, sources, targets), target) for form, target in enumerate(targets)]


class EmptyUnit(NamedTuple):
    """A unit to fill."""

    number: int  # in the catalogue, from 1
    unit: Any
    sources: list[str]  # of the forms that are empty
    targets: list[str]  # of all forms

    def fill(self, translations: Iterable[str]) -> bool:
        """Give each empty form its translation, and mark the unit for a person to review.

        Returns:
            Whether it is filled: a unit of XLIFF stays empty unless the translation has the source's inline elements.
        """
        rest, unit, elements = iter(translations), self.unit, None
        targets = [target or next(rest) for target in self.targets]
        if (parts := _inline(unit)) and (elements := _elements(_shown(parts), targets[0])) is None:
            return False
        unit.target = targets if hasattr(unit.source, "strings") else targets[0]
        for each in getattr(unit, "units", None) or [unit]:  # XLIFF has one for each form of a plural
            (each.markreviewneeded if _is_xliff(each) else each.markfuzzy)()
        if elements is not None:
            node = unit.getlanguageNode(None, 1)
            node.text, node[:] = elements.text, elements
            for each in node.iterdescendants("*"):
                each.tag = f"{{{unit.namespace}}}{each.tag}"
        return True


def empty_units(path: str, catalogue: Any) -> Iterator[EmptyUnit]:
    """The units of a catalogue without a translation, or with one that lacks a plural form.

    Raises:
        ValueError: the number of plural forms is not known.
    """
    forms = str(catalogue.getheaderplural()[0]) if hasattr(catalogue, "getheaderplural") else ""
    for number, unit in enumerate(catalogue.units, start=1):
        if not unit.istranslatable() or unit.isheader():
            continue
        sources, targets = ([*map(str, getattr(side, "strings", [side or ""]))] for side in (unit.source, unit.target))
        if len(sources) > 1 and not _is_xliff(unit):
            if not forms.isdecimal():
                raise ValueError(f"{path}: its header has no number of plural forms; msginit writes it")
            targets += [""] * (int(forms) - len(targets))
        if parts := _inline(unit):
            shown = [tag for tag, _ in _shown(parts)]
            sources = ["".join(shown[at // 2] if at % 2 else unescape(part) for at, part in enumerate(parts))]
        empty = [source_of(form, sources, targets) for form, target in enumerate(targets) if not target.strip()]
        if empty:
            yield EmptyUnit(number, unit, empty, [target if target.strip() else "" for target in targets])


def source_of(form: int, sources: list[str], targets: list[str]) -> str:
    """The source of a plural form: of several forms the first is singular."""
    return sources[0 if form == 0 < len(targets) - 1 else -1]


def _is_xliff(unit: Any) -> bool:
    return hasattr(unit, "getlanguageNode")


def _inline(unit: Any) -> list[str]:
    """The source of a unit of XLIFF with inline elements: XML's text, tag, text, ...; empty for any other unit."""
    node = unit.getlanguageNode(None, 0) if _is_xliff(unit) else None
    if node is None or not len(node):
        return []
    from lxml.etree import tostring  # which translate-toolkit requires

    xml = tostring(node, encoding="unicode", with_tail=False)
    return _TAG.split(re.sub(r' xmlns(:\w+)?="[^"]*"', "", xml))[2:-2]


def _shown(parts: list[str]) -> list[tuple[str, str]]:
    """Each tag of a source as it is translated, a tag without text for an element with code, and as it is in XML."""
    return [(part if part.count("<") == 1 else f"<code{at}/>", part) for at, part in enumerate(parts) if at % 2]


def _elements(tags: list[tuple[str, str]], translation: str) -> Any:
    """A translation as XML; None if its tags are not these, or not well formed."""
    from lxml.etree import XMLSyntaxError, fromstring

    elements, shown = dict(tags), sorted(tag for tag, _ in tags)
    parts = re.split(f"({'|'.join(map(re.escape, shown))})", translation)
    xml = "".join(elements[part] if at % 2 else escape(part) for at, part in enumerate(parts))
    try:
        return fromstring(f"<target>{xml}</target>") if sorted(parts[1::2]) == shown else None
    except XMLSyntaxError:
        return None
