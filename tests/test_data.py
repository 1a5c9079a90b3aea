"""Reading pairs: each form of the data, what the cache finds again, and every kind of broken input."""

import gzip
import json
import re
import time

import pandas as pd
import pytest

from modeling_vanilla.corpus.data import load_pairs
from modeling_vanilla.training import DataOptions

PAIRS = [("a cat", "eine Katze"), ('"yes"', '"ja"')]

pytestmark = pytest.mark.usefixtures("own_cache")


def json_lines(pairs):
    lines = [json.dumps({"translation": {"en": en, "de": de}}, ensure_ascii=False) for en, de in pairs]
    return "".join(line + "\n" for line in lines)


def rows(dataset):
    return list(zip(dataset["source"], dataset["target"], strict=True))


@pytest.fixture
def write(tmp_path):
    """Write a file of the test's folder. Returns its path."""

    def write_file(name, content):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write_file


FORMS = [
    ("a.json", json_lines(PAIRS)),
    ("a.jsonl.gz", '{"en": "a cat", "de": "eine Katze", "id": 7}\n\n{"de": "\\"ja\\"", "en": "\\"yes\\""}\r\n\n'),
    ("a.TSV.gz", 'a cat\teine Katze\n"yes"\t"ja"\n\n'),
    ("a.tsv", 'target\tsource\neine Katze\ta cat\n"ja"\t"yes"\n'),
    ("a.tsv", 'id\tDE\tEn\n7\teine Katze\ta cat\n8\t"ja"\t"yes"'),
    ("a.csv", 'de;en;n\neine Katze;a cat;1,5\n"""ja""";"""yes""";2\n'),
    ("a.csv.GZ", '\r\nen,id,de\r\na cat,7,eine Katze\r\n"""yes""",8,"""ja"""\r\n\r\n'),
]


TMX = """<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "file:///missing.dtd">
<tmx version="1.4"><header srclang="*all*"><note>a dog</note></header><body>
<tu><tuv xml:lang="EN-us"><seg>a <hi>c<hi>a</hi>t</hi></seg></tuv><tuv xml:lang="de"><prop>x</prop><seg>eine

  Katze<bpt i="1">{1<sub>x</sub>\\b </bpt></seg></tuv><tuv xml:lang="de-AT"><seg>a Kotz</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>no German</seg></tuv><tuv xml:lang="den"><seg>none</seg></tuv></tu>
<tu><tuv lang="de_DE"><seg>&quot;ja&#34;</seg></tuv><tuv lang="de_DE"><seg>"nein"</seg></tuv>
<tuv lang="en"><seg><![CDATA["yes"]]></seg></tuv></tu>
</body></tmx>"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_tmx(write, encoding):
    path = write("a.tmx", TMX.replace("\n  ", " " * 70_000 + "\n  ").encode(encoding))
    assert rows(load_pairs(DataOptions(train_file=path))["train"]) == PAIRS
    packed = write("b.TMX.gz", gzip.compress(TMX.encode(encoding)))
    regions = DataOptions(train_file=packed, source_lang="de_AT", target_lang="en_US")
    assert rows(load_pairs(regions)["train"]) == [("a Kotz", "a cat")]


def memory(*segments):
    """A memory of units whose German is "x"."""
    variants = (f'<tuv xml:lang="en"><seg>{text}</seg></tuv>' for text in segments)
    units = (f'<tu>{variant}<tuv xml:lang="de"><seg>x</seg></tuv></tu>' for variant in variants)
    return f'<tmx version="1.4"><!-- <tu> --><body><tu/>{"".join(units)}</body></tmx>'


SEGMENTS = {
    'Press <g id="1">the red <mrk mtype="x"><b>button</b></mrk></g> to stop.': "Press the red button to stop.",
    'Copied <ph x="1">{0}</ph>files to <ph x="2">%1$s</ph>.': "Copied {0}files to %1$s.",
    '<bpt i="1">&lt;b&gt;</bpt>Stop<ept i="1">&lt;/b&gt;</ept><ph>\\n</ph>': "<b>Stop</b>\\n",
    '<ph>&lt;img alt="<sub>cat</sub>"/&gt;</ph> <ph>${a.b}</ph><ph>{}</ph>': '<img alt="cat"/> ${a.b}{}',
    # Codes of RTF, memoQ and Trados Studio, which are no text.
    'a <bpt i="1">{\\b </bpt> <ept i="1">}</ept> dog<ut>{\\cs6 }</ut>': "a dog",
    '<it pos="begin">{}</it>A <bpt i="2" x="1"/>un<x:hi>der</x:hi><ept i="2"/>dog': "A underdog",
    'one<ph type="lb"/>two<br/>three<ph>{\\footnote <sub>x</sub>}</ph>.': "one two three.",
}


def test_text_and_codes_of_a_memory(write, capsys):
    path = write("a.tmx", memory(*SEGMENTS))
    for _ in range(2):  # the second time from the cache
        assert [source for source, _ in rows(load_pairs(DataOptions(train_file=path))["train"])] == [*SEGMENTS.values()]
    said = "7 units: 6 have inline codes, of which those such as {0}, %s and <b> stay; 0 lack one of "
    assert capsys.readouterr().err.count(f"{path}: {said}") == 1


BROKEN_TEXTS = ["a&#x1F;b", "a&nbsp;b", "a\xffb", "<hi>", "R&D"]
FAULTS = [*((text, "0 lack .*; 1 are broken; unit 2: ") for text in BROKEN_TEXTS), ("", "1 lack .*; 0 are broken$")]


@pytest.mark.parametrize(("text", "said"), FAULTS)
def test_a_broken_unit_costs_no_other(write, capsys, text, said):
    path = write("a.tmx", memory("a dog", text, "a cat").replace("<seg></seg>", "").encode("latin-1"))
    assert rows(load_pairs(DataOptions(train_file=path))["train"]) == [("a dog", "x"), ("a cat", "x")]
    assert re.search(f"{path}: 3 units: .*; {said}", capsys.readouterr().err, re.MULTILINE)


def test_a_long_attribute_of_a_memory_takes_no_longer_than_its_length(write):
    path = write("a.tmx", memory("a dog").replace("<tu>", f'<tu x="{"a" * 20_000_000}/>">'))
    start = time.monotonic()
    assert rows(load_pairs(DataOptions(train_file=path))["train"]) == [("a dog", "x")]
    assert time.monotonic() - start < 10


UNITS = """msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\nPlural-Forms: nplurals=2; plural=n!=1;\\n"
msgctxt "menu"
msgid "a "
"cat\\n"
msgstr "eine Katze\\n"
#, fuzzy
msgid "a dog"
msgstr "ein Pferd"
msgid "a house"
msgstr ""
msgid "%d dog"
msgid_plural "%d dogs"
msgstr[0] "%d Hund"
msgstr[1] "%d Hunde"
#~ msgid "old"
#~ msgstr "alt"
"""
XLIFF = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="x" source-language="en"
target-language="de" datatype="plaintext"><body>
<trans-unit id="1"><source>a <g id="1">cat</g></source><target>eine <g id="1">Katze</g></target></trans-unit>
<trans-unit id="2"><source>a dog</source><target state="needs-review-translation">ein Pferd</target></trans-unit>
<trans-unit id="3"><source>a house</source></trans-unit>
<trans-unit id="4"><source>in <ph id="1">{0}</ph></source><target>in <ph id="1">{0}</ph></target></trans-unit>
</body></file></xliff>"""
CATALOGUES = {
    "a.po": (UNITS, [PAIRS[0], ("%d dog", "%d Hund"), ("%d dogs", "%d Hunde")]),
    "a.xliff": (XLIFF, [PAIRS[0], ("in {0}", "in {0}")]),
}


@pytest.mark.parametrize("name", CATALOGUES)
def test_catalogues(write, name):
    pytest.importorskip("translate.storage")
    content, expected = CATALOGUES[name]
    assert rows(load_pairs(DataOptions(train_file=write(name, content)))["train"]) == expected
    with pytest.raises(ValueError, match=rf"b{name[1:]}: not \{name[1:]}: "):
        load_pairs(DataOptions(train_file=write(f"b{name[1:]}", content[:-40])))


@pytest.mark.parametrize(("name", "content"), FORMS)
def test_columns_and_json_lines(write, name, content):
    compress = gzip.compress if name.lower().endswith(".gz") else bytes
    path = write(name, compress(b"\xef\xbb\xbf" + content.encode()))
    assert rows(load_pairs(DataOptions(train_file=path))["train"]) == PAIRS
    reverse = load_pairs(DataOptions(train_file=path, source_lang="de", target_lang="en"))["train"]
    # Columns without the names of languages are source and target, whatever the languages are.
    assert rows(reverse) == (PAIRS if "en" not in content.lower() else [pair[::-1] for pair in PAIRS])


def test_parquet(tmp_path):
    records = pd.DataFrame(PAIRS, columns=["en", "de"]).to_dict("records")
    pd.DataFrame({"translation": records}).to_parquet(tmp_path / "a.parquet")
    assert rows(load_pairs(DataOptions(train_file=str(tmp_path / "a.parquet")))["train"]) == PAIRS


def test_text(write):
    """A line ends at a line feed alone."""
    source = write("a.en", "a\rb\u2028c\r\n\nthe dog\n")
    target = write("a.de.gz", gzip.compress("\ufeffeins\n\x85\nder Hund".encode()))
    pairs = load_pairs(DataOptions(train_source=source, train_target=target))["train"]
    assert rows(pairs) == [("a\rb\u2028c", "eins"), ("", "\x85"), ("the dog", "der Hund")]
    assert rows(load_pairs(DataOptions(train_file=write("a.tsv", "a\rb\teins")))["train"]) == [("a\rb", "eins")]


def test_a_field_of_csv_may_be_long_and_hold_line_ends_and_a_fault_is_named_where_its_row_starts(write):
    good, long = 'en,de\n"two\nlines",', "lang " * 100_000
    pairs = load_pairs(DataOptions(train_file=write("a.csv", good + long)))
    assert rows(pairs["train"]) == [("two\nlines", long)]
    with pytest.raises(ValueError, match=r"b\.csv, line 4: not \.csv: unexpected end of data"):
        load_pairs(DataOptions(train_file=write("b.csv", good + 'zwei\n"a,b\nc,d\n')))


@pytest.mark.parametrize("limit", [None, 2])
def test_a_dataset_is_read_once_and_no_further_than_asked(write, tmp_path, limit):
    pairs = [*PAIRS, ("yes", "ja")]
    write("corpus/train.jsonl", json_lines(pairs))
    write("corpus/validation.jsonl", json_lines(pairs[:2]))
    test = write("test.json", json_lines(pairs[2:]))
    options = DataOptions(dataset_name=str(tmp_path / "corpus"), max_train_pairs=limit, test_file=test)
    first, again = load_pairs(options), load_pairs(options)  # the second as a resumed run would
    expected = {"train": pairs[:limit], "validation": pairs[:2], "test": pairs[2:]}
    assert {split: rows(first[split]) for split in first} == expected
    assert {split: again[split].cache_files for split in again} == {split: first[split].cache_files for split in first}
    write("test.json", json_lines(pairs[:1]))
    assert rows(load_pairs(options)["test"]) == pairs[:1]


def test_no_script_of_a_dataset_is_run(write, tmp_path):
    write("corpus/script.py", "raise SystemExit('run')")
    with pytest.raises(ValueError, match=r"^dataset_name: .*/corpus cannot be loaded.*\Z"):
        load_pairs(DataOptions(dataset_name=str(tmp_path / "corpus")))


GOOD = json_lines(PAIRS)
ENTITY = '<!DOCTYPE tmx [<!ENTITY e SYSTEM "/etc/hosts">]>'
BROKEN = [
    ({"train_file": GOOD + '{"translation": {"en": "a"'}, "{train_file}, line 3: not JSON: Expecting .*: .*trans"),
    ({"train_file": '{"en": "a", "de": null}'}, 'line 1: "de" is None, not text'),
    ({"train_file": '{"en": "\\ud800", "de": "b"}'}, """line 1: "en" is '.ud800', which has half of a surrogate """),
    ({"train_file": "\n"}, "train data: {train_file} is empty"),
    ({"train_file.parquet": "PAR1"}, "train data: {train_file} cannot be read: .*Parquet"),
    ({"train_source": "x\nx", "train_target": "x\n"}, "unequal .*: {train_target} has 1 lines, {train_source} has"),
    ({"train_file.csv": "en,de\na,b\na,b,c\n"}, r"""line 3: 3 columns, not 2: \['a', 'b', 'c'\]$"""),
    ({"train_file.tmx": TMX.replace("de", "fr")}, """{train_file}: no unit has both "en" and "de", only .*'fr-at'"""),
    ({"train_file.tmx": TMX[:-9]}, "{train_file}: not TMX, or cut: it does not end with </tmx>"),
    ({"train_file.tmx": '<?xml version="1.0" encoding="x-y"?><tmx/>'}, "{train_file}: not TMX: unknown encoding: x-y"),
    ({"train_file.tmx": ENTITY + memory("&e;")}, r"""only \[\]; unit 1: undefined entity at '&e;</seg>"""),
    ({"train_file.tsv": "en\tfr\na\tb\n"}, r"""line 1: no column "de" in \['en', 'fr'\]: the first line"""),
    ({"train_file.csv": "id,EN,de,en\n1,a,b,c\n"}, r"""line 1: more than one column "en" in \['id', 'en',"""),
    ({"train_file.xlsx": "PK"}, "{train_file}: a spreadsheet: save it as CSV in UTF-8"),
]


@pytest.mark.parametrize(("files", "message"), BROKEN)
def test_broken_files(write, tmp_path, files, message):
    paths = {name.split(".")[0]: write(name, content) for name, content in files.items()}
    with pytest.raises(ValueError, match=message.format(**paths)):
        load_pairs(DataOptions(**paths))
    assert not list((tmp_path / "cache").rglob("*.arrow"))  # of what was read before the fault


def test_an_unwritable_cache_is_named(write, tmp_path, monkeypatch):
    """It is below a file."""
    good = write("good", GOOD)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", f"{good}/cache")
    with pytest.raises(OSError, match=f"^{good}/cache: the cache of datasets cannot be written: Not a directory; HF_D"):
        load_pairs(DataOptions(train_file=good))


WRONG_OPTIONS = [
    ({"train_file": "a", "source_lang": "de"}, "^source_lang and target_lang are both de, one column: give both"),
    ({"train_file": "a\0b"}, r"^'a.x00b': no path, as it has a NUL in it"),
    ({"train_source": "{good}", "train_target": "a\0b"}, r"^'a.x00b': no path, as it has a NUL in it"),
    ({"test_file": "{good}"}, "no training data: give train_file"),
    ({"test_target": "{good}"}, "^give test_file, or test_source with test_target, not test_target {good}"),
    ({"dataset_name": "{good}-", "train_file": "{good}"}, "dataset_name {good}- and by {good}"),
    ({"train_file": "{good}", "max_train_pairs": 5}, "max_train_pairs 5: needs dataset_name"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS)
def test_wrong_options(write, options, message):
    good = write("good", GOOD)
    write("good-/train.jsonl", GOOD)
    options = {name: value.format(good=good) if isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(ValueError, match=rf"{message.format(good=good)}.*\Z"):
        load_pairs(DataOptions(**options))
