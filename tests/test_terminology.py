"""Terms: where they apply, and that translations have them, from functions, the pipeline and the command."""

import re

import pytest
from helpers import as_lines, call, make_marian
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from modeling_vanilla import Translator
from modeling_vanilla.cli import translate as command
from modeling_vanilla.inference.terms import Terminology

SENTENCES = ["the old man has a dog", "", "a big dog and a dog", "the man sees a red apple", "cats"]
# Case counts; Chinese and Japanese put no blanks between words; a sign written on a letter belongs to the word.
FOUND = {"dogs and hotdog": [], "Dog": [], "dog-tired dog": ["dog"], "a guide dog, a dog": ["guide dog", "dog"]}
FOUND |= {"a guide dog show": ["guide dog show"], "a guide dog shows": ["guide dog"], "on .NET (C++)": [".NET", "C++"]}
FOUND |= {"小さな猫は": ["猫"], "कमल किताब": [], "राम की किताब": ["की"], "ein Ma\u0308dchen": ["M\u00e4dchen"]}
FOUND |= {"a guide\u00a0dog": ["guide dog"], "guide  dog": ["guide dog"], "guide dog\u2009\tshow": ["guide dog show"]}
FOUND |= {"guide\ndog": ["dog"]}


def test_terms_are_whole_words_the_longest_first(tokenizer):
    sources = ("dog", "show", "guide\u00a0 dog", "guide dog show", ".NET", "C++", "猫", "क", "की", "Mädchen")
    terms = Terminology([(source, "Hund") for source in sources], tokenizer)
    assert {text: terms.find(text) for text in FOUND} == FOUND


@pytest.mark.parametrize("options", ((), ("--lines_per_block", 1)))
def test_a_term_that_cannot_be_met_gives_a_warning_and_the_best_without_it(folder, model, tokenizer, tmp_path, options):
    (tmp_path / "terms.tsv").write_text(f"dog\t{'Hund ' * 40}\nman\tMann\n")
    done = call(command.main, folder, "--terms", tmp_path / "terms.tsv", *options, stdin=as_lines(SENTENCES))
    warned = "warning: stdin, line {}: the term 'dog' could not be met in the translation of {!r}".format
    assert sorted(re.findall("warning: .*", done.errors)) == [warned(row + 1, SENTENCES[row]) for row in (0, 2)]
    assert done.output == as_lines(Translator(model, tokenizer).translate(SENTENCES, terms=[("man", "Mann")])).decode()


def test_a_term_in_which_a_text_is_cut_gives_a_warning(model, tokenizer, caplog):
    sources = ["the old man sees a dog! and a cat"]
    Translator(model, tokenizer).translate(sources, terms=[("dog! and", "Hund")], max_source_tokens=8)
    assert "the term 'dog! and' could not be met in the translation of 'the old man" in caplog.text


BAD_FILES = [
    ("dog\tHund\n\t \n", "line 2: a term must be a source and a target term, not ('', ' ')"),
    ("dog\tHund\ndog\tKatze\n", "line 2: the term 'dog' has two translations"),
    ("cat\tKatze\ndog\tHund </s>\n", "line 2: the term 'Hund </s>' contains the end-of-sentence token </s>"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_a_bad_file_of_terms_is_one_line(folder, tmp_path, content, message):
    (tmp_path / "terms.tsv").write_text(content)
    options = ("--terms", tmp_path / "terms.tsv", "--output", tmp_path / "out")
    assert call(command.main, folder, *options, stdin=b"a dog\n").error == f"{tmp_path}/terms.tsv, {message}"
    assert not (tmp_path / "out").exists()


def test_a_term_that_the_tokenizer_cannot_write_is_named():
    model = Tokenizer(WordLevel({"<unk>": 0, "Hund": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, unk_token="<unk>")
    with pytest.raises(ValueError, match="the term 'Łapa' has what the tokenizer cannot write"):
        Terminology([("dog", "Hund"), ("paw", "Łapa")], tokenizer)


def test_another_search_has_no_terms(tokenizer):
    with pytest.raises(ValueError, match="terms need a model of this package"):
        Translator(make_marian(len(tokenizer)), tokenizer).translate(SENTENCES, terms=[("dog", "Hund")])
