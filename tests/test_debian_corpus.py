"""The corpus of Debian packages, from a package that dpkg-deb builds; a script stands for apt-get, which downloads."""

import hashlib
import json
import os
import shutil
import subprocess

import pytest
from helpers import call

polib = pytest.importorskip("polib")
pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs Debian's dpkg-deb")

MESSAGES = [
    polib.POEntry(msgid="Open  the\tfile", msgstr="Die Datei öffnen"),
    polib.POEntry(msgid="one\ntwo\n", msgstr="eins\nzwei\n"),
    polib.POEntry(msgid="one\nline", msgstr="eine Zeile"),  # not as many lines
    polib.POEntry(msgid="%d byte", msgid_plural="%d bytes", msgstr_plural={0: "ein Byte", 1: "%d Bytes"}),
    polib.POEntry(msgid="one file", msgid_plural="many files", msgstr_plural={0: "Dateien"}),  # as in Korean
    polib.POEntry(msgid="GNOME", msgstr="GNOME"),
    polib.POEntry(msgid="two", msgstr="zwei", msgctxt="a number"),  # there already
]
PAIRS = {"Open the file": "Die Datei öffnen", "one": "eins", "two": "zwei", "%d byte": "ein Byte"}
PAIRS |= {"%d bytes": "%d Bytes", "many files": "Dateien"}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with German messages, which `apt-get download` puts into its working directory."""
    tree = tmp_path / "tree"
    catalogue, folder = polib.POFile(), tree / "usr/share/locale/de/LC_MESSAGES"
    catalogue.metadata = {"Content-Type": "text/plain; charset=UTF-8", "POT-Creation-Date": "2022-11-29 12:00:00"}
    catalogue.extend(MESSAGES)
    for made in (folder, tree / "DEBIAN", tmp_path / "bin"):
        made.mkdir(parents=True)
    catalogue.save_as_mofile(str(folder / "toy.mo"))
    control = "Package: toy\nVersion: 1\nArchitecture: all\nMaintainer: A <a@b.c>\nDescription: toy\n"
    (tree / "DEBIAN/control").write_text(control)
    path = tmp_path / "toy_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", tree, path], check=True, capture_output=True)
    apt = tmp_path / "bin/apt-get"
    apt.write_text(f'#!/bin/sh\ntest "$*" = "download -- toy=1" && cp {path} .\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apt.parent}{os.pathsep}{os.environ['PATH']}")
    return path


def test_the_pairs_of_a_package(package, tmp_path):
    import debian_corpus

    folder = tmp_path / "corpus"
    assert call(debian_corpus.main, folder, "toy=1").succeeded
    texts = {name: (folder / name).read_bytes() for name in ("raw.en", "raw.de")}
    sides = [text.decode().split("\n")[:-1] for text in texts.values()]
    assert dict(zip(*sides, strict=True)) == PAIRS and len(sides[0]) == len(PAIRS)
    files = {**texts, package.name: package.read_bytes()}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert json.loads((folder / "packages.json").read_text()) == {"pairs": len(PAIRS), "sha256": digests}
    assert "no package has translations" in call(debian_corpus.main, tmp_path / "ko", "toy=1", "--language", "ko").error


def test_what_apt_cannot_download_is_told(package, tmp_path):
    import debian_corpus

    assert "packages" in call(debian_corpus.main, tmp_path / "corpus", "missing").error
    assert not (tmp_path / "corpus").exists()
