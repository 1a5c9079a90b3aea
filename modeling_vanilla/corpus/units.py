"""Catalogues of translated units, .po and .xliff, read by translate-toolkit."""

from collections.abc import Iterator
from pathlib import Path

from .tmx import inline_text


def read_units(path: str, languages: tuple[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The pairs of each unit that is translated and not fuzzy, with its place; of a plural each form.

    Raises:
        ValueError: translate-toolkit is missing or cannot read the file.
    """
    try:
        from translate.storage import factory  # an extra of this package
    except ImportError as error:
        raise ValueError(f"{path}: needs translate-toolkit: pip install translate-toolkit") from error
    try:
        units = factory.getobject(path).units
    except Exception as error:  # its parsers raise almost anything
        raise ValueError(f"{path}: not {Path(path).suffix}: {str(error) or type(error).__name__}") from error
    for number, unit in enumerate(units, start=1):
        for pair in _forms(unit) if unit.istranslatable() else ():
            if all(pair):
                yield f"{path}, unit {number}", dict(zip(languages, pair, strict=True))


def _forms(unit) -> list[tuple[str, str]]:
    """The pairs of a unit, each text on one line; none if it needs work. Of several forms the first is singular."""
    if hasattr(unit, "getlanguageNode"):  # XLIFF
        source, target = (unit.getlanguageNode(None, index) for index in range(2))
        if target is None or target.get("state", "").startswith(("new", "needs")):
            return []
        return [(inline_text(source), inline_text(target))]
    if unit.isfuzzy():
        return []
    sources, targets = (
        [" ".join(text.split()) for text in getattr(side, "strings", [side])] for side in (unit.source, unit.target)
    )
    return [(sources[0 if form == 0 < len(targets) - 1 else -1], target) for form, target in enumerate(targets)]
