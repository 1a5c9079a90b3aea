"""`vanilla translate` of .po and .xliff: the empty units are filled, and nothing else changes."""

import os
import shutil
import subprocess
from difflib import ndiff

import pytest
from helpers import call

from modeling_vanilla import Translator
from modeling_vanilla.cli import translate as command
from modeling_vanilla.corpus.units import empty_units, open_catalogue

pytest.importorskip("translate.storage")

PO = r"""msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=n==1 ? 0 : n==2 ? 1 : 2;\n"

#, c-format
msgctxt "menu"
msgid ""
"a dog %s\n"
"  * the cat\n"
msgstr ""

msgid "the old man"
msgstr "der alte Mann"

#, fuzzy
msgid "a small house"
msgstr "ein Haus"

msgid "a big dog"
msgid_plural "big dogs"
msgstr[0] ""
msgstr[1] "große Hunde"
msgstr[2] ""

#~ msgid "gone"
#~ msgstr ""
"""
XLIFF = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="x" source-language="en"
target-language="de" datatype="plaintext"><body>
<trans-unit id="1"><source>a <g id="1">small <x id="2"/>dog</g> &amp; &lt;b&gt;</source></trans-unit>
<trans-unit id="2"><source>a dog</source><target state="new"/></trans-unit>
<trans-unit id="3" translate="no"><source>a dog</source></trans-unit>
</body></file></xliff>"""


def test_a_po_file(folder, tmp_path):
    polib = pytest.importorskip("polib")
    source, target = tmp_path / "a.po", tmp_path / "b.po"
    source.write_text(PO)
    done = call(command.main, folder, "--input", source, "--output", target).succeeded
    assert "2 units filled, to be reviewed" in done.errors
    texts = ["a dog %s\n  * the cat\n", "a big dog", "big dogs"]
    text, singular, plural = Translator.from_pretrained(folder).translate(texts)
    names = "msgctxt", "msgstr", "msgstr_plural", "fuzzy", "obsolete"
    found = [tuple(getattr(each, name) for name in names) for each in polib.pofile(target)]
    assert found == [
        ("menu", text, {}, True, False),
        (None, "der alte Mann", {}, False, False),
        (None, "ein Haus", {}, True, False),
        (None, "", {0: singular, 1: "große Hunde", 2: plural}, True, False),
        (None, "", {}, False, True),
    ]
    removed = [line for line in ndiff(PO.splitlines(), target.read_text().splitlines()) if line[0] == "-"]
    assert removed == ["- #, c-format", '- msgstr[0] ""', '- msgstr[2] ""']
    if shutil.which("msgfmt"):
        subprocess.run(["msgfmt", "--check-format", "-o", os.devnull, target], check=True)


def test_inline_elements_of_xliff_are_kept_or_the_unit_stays_empty(tmp_path):
    (tmp_path / "a.xliff").write_text(XLIFF)
    for tags, is_filled in (('<x id="2"/><g id="1">{}</g>', True), ('<g id="1">{}<x id="2"/>', False), ("{}", False)):
        catalogue = open_catalogue(str(tmp_path / "a.xliff"))
        first, second = empty_units("", catalogue)
        assert (first.sources, second.sources) == (['a <g id="1">small <x id="2"/>dog</g> & <b>'], ["a dog"])
        assert first.fill([f"{tags.format('Hund')} & <b>"]) == is_filled and second.fill(["ein <Hund>"])
        text = bytes(catalogue).decode()
        targets = [part.split("</target>")[0] for part in text.split("<target")[1:]]
        filled = [f"{tags.format('Hund')} &amp; &lt;b&gt;"] * is_filled + ["ein &lt;Hund&gt;"]
        assert targets == [f' state="needs-review-translation">{target}' for target in filled]


def test_code_within_elements_of_xliff_is_not_translated(tmp_path):
    codes = [
        '<bpt id="1">[link url=home]</bpt>',
        '<ept id="1">[/link]</ept>',
        '<ph id="2">USER</ph>',
        "<!--a-->",
    ]
    source = "{}a dog{} of {}{}".format(*codes)
    (tmp_path / "a.xliff").write_text(XLIFF.replace('a <g id="1">small <x id="2"/>dog</g>', source))
    catalogue = open_catalogue(str(tmp_path / "a.xliff"))
    first, _ = empty_units("", catalogue)
    assert not [word for word in ("link", "USER") if word in first.sources[0]]
    assert first.fill([first.sources[0].replace("a dog", "ein Hund")])
    assert f">{source.replace('a dog', 'ein Hund')} &amp; " in bytes(catalogue).decode()


def test_what_makes_no_sense_is_named(folder, tmp_path):
    path = tmp_path / "a.po"
    for content, options, said in (
        (PO, ("--nbest", 2), f"--nbest has no meaning for a catalogue, as {path} is one"),
        (PO.replace("3;", "INTEGER;"), (), f"{path}: its header has no number of plural forms; msginit writes it"),
    ):
        path.write_text(content)
        assert call(command.main, folder, "--input", path, *options).error == said
