"""Reading pairs: each form of the data, what the cache finds again, and every kind of broken input."""

import gzip
import json

import pandas as pd
import pytest

from modeling_vanilla.training import DataOptions
from modeling_vanilla.training.data import load_pairs

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
    ("a.csv.GZ", '\r\nen,id,de\r\na cat,7,eine Katze\r\n"""yes""",8,"""ja"""\r\n\r\n'),
]


TMX = """<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "file:///missing.dtd">
<tmx version="1.4"><header srclang="*all*"><note>a dog</note></header><body>
<tu><tuv xml:lang="EN-us"><seg>a <hi>c<hi>a</hi>t</hi></seg></tuv><tuv xml:lang="de"><prop>x</prop><seg>eine

  Katze<ph>{1<sub>x</sub>}</ph></seg></tuv><tuv xml:lang="de-AT"><seg>a Kotz</seg></tuv></tu>
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
LAUGHS = '<!ENTITY e0 "ha">' + "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(9))
BROKEN = [
    ({"train_file": GOOD + '{"translation": {"en": "a"'}, "{train_file}, line 3: not JSON: Expecting .*: .*trans"),
    ({"train_file": '{"en": "a", "de": null}'}, 'line 1: "de" is None, not text'),
    ({"train_file": '{"en": "\\ud800", "de": "b"}'}, "train data: {train_file} cannot be read: .*surrogates"),
    ({"train_file": "\n"}, "train data: {train_file} is empty"),
    ({"train_file.parquet": "PAR1"}, "train data: {train_file} cannot be read: .*Parquet"),
    ({"train_source": "x\nx", "train_target": "x\n"}, "unequal .*: {train_target} has 1 lines, {train_source} has"),
    ({"train_file.csv": "en,de\na,b\na,b,c\n"}, r"""line 3: 3 columns, not 2: \['a', 'b', 'c'\]$"""),
    ({"train_file.tmx": TMX.replace("de", "fr")}, """{train_file}: no unit has both "en" and "de", only .*'fr-at'"""),
    ({"train_file.tmx": TMX.replace("</body>", "")}, "{train_file}: not TMX: mismatched tag: line 9,"),
    ({"train_file.tmx": '<?xml version="1.0" encoding="GBK"?><tmx/>'}, "{train_file}: not TMX: multi-byte encodings"),
    ({"train_file.tmx": TMX.replace("none", "&other;")}, "{train_file}: not TMX: undefined entity &other;: line 6"),
    ({"train_file.tmx": f"<!DOCTYPE tmx [{LAUGHS}]><tmx>&e9;</tmx>"}, "{train_file}: not TMX: limit on input amplific"),
    ({"train_file.tmx": '<!DOCTYPE tmx [<!ENTITY e SYSTEM "/etc/hosts">]><tmx>&e;</tmx>'}, "undefined entity &e;"),
    ({"train_file.tsv": "en\tfr\na\tb\n"}, r"""line 1: no column "de" in \['en', 'fr'\]: the first line"""),
    ({"train_file.csv": "id,EN,de,en\n1,a,b,c\n"}, r"""line 1: more than one column "en" in \['id', 'en',"""),
    ({"train_file.csv": "en;de\na;b\n"}, r"""line 1: no column "en" in \['en;de'\]: semicolons"""),
    ({"train_file.xlsx": "PK"}, "{train_file}: a spreadsheet: save it as CSV in UTF-8"),
]


@pytest.mark.parametrize(("files", "message"), BROKEN)
def test_broken_files(write, tmp_path, files, message):
    paths = {name.split(".")[0]: write(name, content) for name, content in files.items()}
    with pytest.raises(ValueError, match=message.format(**paths)):
        load_pairs(DataOptions(**paths))
    assert not list((tmp_path / "cache").rglob("*.arrow"))  # of what was read before the fault


WRONG_OPTIONS = [
    ({"train_file": "a", "source_lang": "de"}, "^source_lang and target_lang are both de, one column: give both"),
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
