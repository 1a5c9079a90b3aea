"""Sentence pairs of Debian packages: the strings and messages of free software, as GNU gettext keeps them.

    python examples/debian_corpus.py corpus $(cat examples/debian_packages.txt)

Needs Debian's apt-get and dpkg-deb, and `pip install polib`. apt-get downloads the packages and compares them with the
signed list; none is installed. Leaves in the folder raw.en and raw.de, for `vanilla check`, and packages.json with the
SHA-256 of each package and of both files. A text of several lines gives a pair for each if its translation has as many;
one blank stands between words; what is translated by itself, and a pair that is there already, is left out. The texts
keep the licence of their package.

The 40 packages of the list, of Debian 12, have 165,117 pairs. The SHA-256 of raw.en begins with b6f57b40, of raw.de
with 02ff08d4. The mirrors keep one version of a package: `sed s/=.*//` takes today's.
"""

import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import polib

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.corpus.units import source_of
from modeling_vanilla.files import check_unused, digest_of, whole_folder, write_json, write_text


def package_pairs(package: Path, language: str) -> Iterator[tuple[str, str]]:
    """The pairs of lines in a package's catalogues of a language, in the order of their names."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
        for path in sorted(Path(folder).rglob(f"{language}/LC_MESSAGES/*.mo")):
            for entry in polib.mofile(str(path)):
                sources = [entry.msgid, entry.msgid_plural or entry.msgid]
                targets = [*entry.msgstr_plural.values()] or [entry.msgstr]
                for form, translation in enumerate(targets):
                    yield from line_pairs(source_of(form, sources, targets), translation)


def line_pairs(text: str, translation: str) -> Iterator[tuple[str, str]]:
    """The pairs of lines of a text and its translation, if they have as many."""
    lines, translated = ([" ".join(line.split()) for line in each.strip().split("\n")] for each in (text, translation))
    if len(lines) == len(translated):
        yield from (pair for pair in zip(lines, translated, strict=True) if all(pair) and len({*pair}) == 2)


def write_corpus(options: Namespace) -> None:
    check_unused("folder", options.folder)
    with tempfile.TemporaryDirectory() as downloaded:
        if subprocess.run(["apt-get", "download", "--", *options.packages], cwd=downloaded).returncode:
            raise ValueError(f"packages: apt-get cannot download all of {' '.join(options.packages)}")
        packages = sorted(Path(downloaded).glob("*.deb"))
        digests = {path.name: digest_of(path) for path in packages}  # a name has package, version and architecture
        pairs = dict.fromkeys(pair for path in packages for pair in package_pairs(path, options.language))
    if not pairs:
        raise ValueError(f"language {options.language}: no package has translations into it")
    with whole_folder(options.folder) as part:
        for name, lines in zip(("en", options.language), zip(*pairs, strict=True), strict=True):
            write_text(part / f"raw.{name}", "".join(f"{line}\n" for line in lines))
            digests[f"raw.{name}"] = digest_of(part / f"raw.{name}")
        write_json(part / "packages.json", {"pairs": len(pairs), "sha256": digests})


def main() -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("folder", type=Path, help="of the corpus, a new one")
    parser.add_argument("packages", nargs="+", metavar="PACKAGE", help="a name, or name=version")
    parser.add_argument("--language", default="de", metavar="CODE", help="of the translations, as in their paths")
    run_command(parser, write_corpus)


if __name__ == "__main__":
    main()
