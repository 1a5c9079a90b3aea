"""Terms: where they apply, and that translations have them, from functions, the pipeline and the command."""

import re

import pytest
from helpers import as_lines, call, make_tiny, make_tokenizer, save_folder

from modeling_vanilla.cli import translate as command
from modeling_vanilla.inference import read_terms, translate, translate_nbest
from modeling_vanilla.terminology_vanilla import Terminology

SENTENCES = ["the old man has a dog", "", "a big dog and a dog", "the man sees a red apple", "cats"]
TERMS = [("dog", "Hund"), ("dog", "Hunde"), ("big dog", "Dogge"), ("man", "Mann"), ("cat", "Katze")]
FOUND = [{"Mann", "Hund"}, set(), {"Dogge", "Hund"}, {"Mann"}, set()]


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer([*SENTENCES, *(target for _, target in TERMS)], vocab_size=320)


@pytest.fixture(scope="module")
def model(tokenizer):
    model = make_tiny(len(tokenizer))
    model.generation_config.max_extra_tokens = 8
    return model


@pytest.fixture(scope="module")
def terms_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("terms") / "terms.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in TERMS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory):
    return save_folder(tmp_path_factory.mktemp("terms") / "model", model, tokenizer)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the dog", ["dog"]),
        ("dogs and hotdog", []),
        ("Dog", []),  # case counts
        ("dog-tired dog", ["dog"]),
        ("a guide dog, a dog", ["guide dog", "dog"]),
        ("a guide dog show", ["guide dog show"]),
        ("a guide dog shows", ["guide dog"]),
        ("on .NET (C++)", [".NET", "C++"]),
        ("dog", ["dog"]),
        ("", []),
    ],
)
def test_terms_are_whole_words_the_longest_first(tokenizer, text, found):
    sources = ["dog", "show", "guide dog", "guide dog show", ".NET", "C++"]
    assert Terminology([(source, "Hund") for source in sources], tokenizer).find(text) == found


def test_every_translation_has_its_terms(model, tokenizer, terms_file, caplog):
    assert read_terms(terms_file) == TERMS
    plain = translate(model, tokenizer, SENTENCES)
    translated = translate(model, tokenizer, SENTENCES, terms=TERMS)
    for text, free, found in zip(translated, plain, FOUND, strict=True):
        assert all(one in text for one in found) and (text == free) == (not found)
    nbest = translate_nbest(model, tokenizer, SENTENCES, 2, terms=TERMS)
    assert [hypotheses[0].text for hypotheses in nbest] == translated
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("translation", "missing"),
    [
        ("der Hund.", []),
        ("Hundehütte, Hund", []),
        ("ein Hundehaus", ["dog"]),
        ("Schosshund", ["dog"]),
        ("犬は", ["dog"]),
    ],
)
def test_a_term_is_met_by_whole_words(tokenizer, translation, missing):
    assert Terminology([("dog", "Hund")], tokenizer).missing("a dog", translation) == missing


def test_chinese_and_japanese_put_no_blanks_between_words(tokenizer):
    terms = Terminology([("dog", "犬"), ("猫", "cat")], tokenizer)
    assert terms.missing("a dog", "小さな犬は") == [] and terms.find("小さな猫は") == ["猫"]


@pytest.mark.parametrize("how", ("file", "interactive"))
def test_a_term_that_cannot_be_met_gives_a_warning_and_the_best_without_it(model, tokenizer, folder, tmp_path, how):
    long = " ".join(["Hund"] * 40)
    (tmp_path / "terms.tsv").write_text(f"dog\t{long}\nman\tMann\n")
    options = ["--interactive"] * (how == "interactive")
    done = call(command.main, folder, "--terms", tmp_path / "terms.tsv", *options, stdin=as_lines(SENTENCES))
    assert re.findall("warning: .*", done.errors) == [
        f"warning: stdin, line {row + 1}: the term 'dog' could not be met in the translation of {SENTENCES[row]!r}"
        for row in (0, 2)
    ]
    assert done.output == as_lines(translate(model, tokenizer, SENTENCES, terms=[("man", "Mann")])).decode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dog\tHund\ncat\tKatze\tn\n", "terms.tsv, line 2: 2 columns, source term and target term, are needed, not 3"),
        ("dog\n", "terms.tsv, line 1: 2 columns, source term and target term, are needed, not 1"),
        ("dog\tHund\n\t \n", "terms.tsv, line 2: a term is empty: ('', ' ')"),
        (
            "cat\tKatze\ndog\tHund </s>\n",
            "terms.tsv, line 2: the term 'Hund </s>' contains the end-of-sentence token </s>",
        ),
        (b"dog\t\xff\n", "terms.tsv, line 1: not UTF-8: byte 0xff at position 4"),
        (None, "terms.tsv: cannot be read: No such file or directory"),
    ],
)
def test_a_bad_file_of_terms_is_one_line(model, tokenizer, tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "terms.tsv").write_bytes(content if isinstance(content, bytes) else content.encode())
    tokenizer = make_tokenizer(SENTENCES, vocab_size=len(tokenizer))
    tokenizer.split_special_tokens = False  # "</s>" in a text is EOS then
    save_folder(tmp_path / "model", model, tokenizer)
    options = ("--terms", "terms.tsv", "--output", "out")
    assert call(command.main, "model", *options, stdin=as_lines(SENTENCES)).error == message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (["dog"], "a term must be a pair (source term, target term), not 'dog'"),
        ([("dog", "Hund", "n")], "a term must be a pair (source term, target term), not ('dog', 'Hund', 'n')"),
        ([("dog", None)], "a term must be a pair (source term, target term), not ('dog', None)"),
        ([(" ", "Hund")], "a term is empty: (' ', 'Hund')"),
        ([("dog", "")], "a term is empty: ('dog', '')"),
        ([("dog", "Hund</s>")], "the term 'Hund</s>' contains the end-of-sentence token </s>"),
    ],
)
def test_what_is_no_term_is_refused(model, tokenizer, terms, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        translate(model, tokenizer, SENTENCES, terms=terms)
