"""Spans that are copied: found, replaced and put back, by functions, in training, by both engines and from commands."""

import json
import re
from collections import Counter
from random import Random

import pytest
import torch
from accelerate import PartialState
from datasets import Dataset, DatasetDict
from helpers import TEXTS, TINY, as_lines, as_options, call, read_json, run_elsewhere, save_folder
from transformers import AutoTokenizer

from modeling_vanilla import Translator
from modeling_vanilla.cli import export, train
from modeling_vanilla.cli import translate as command
from modeling_vanilla.corpus.tokenized import tokenize_pairs
from modeling_vanilla.corpus.tokenizer import train_tokenizer, vocabulary_texts
from modeling_vanilla.decoding_vanilla import DecodingOptions, Hypothesis, Translation, cut_texts, join_hypotheses
from modeling_vanilla.spans_vanilla import DEFAULT, RESERVED, differing, find_spans, put_back, replace_spans
from modeling_vanilla.splitting_vanilla import Limits, Piece, split_texts
from modeling_vanilla.training.options import ModelOptions
from modeling_vanilla.training.recipe import choose_recipe

# The spans of texts, separated by blanks.
FOUND = {
    "Error %d: %5.2f%% of %(name)s, %1$s, 50 % der": "%d %5.2f %% %(name)s %1$s",
    "%1 of %2 (%n), 5% or 100 %": "%1 %2 %n",
    "{0} ${name} {} #{a.b} { x }": "{0} ${name} {} #{a.b}",
    "<b>it</b>, <br/> <file>, 1 < 2 > 0, <no name>": "<b> </b> <br/> <file>",
    "&amp; &#8217; R&D": "&amp; &#8217;",
    "a.b@c.org, see https://x.org/a?b=1. (www.d.de)": "a.b@c.org https://x.org/a?b=1 www.d.de",
    "--force-all, -x, a--b, well--known": "--force-all",
    "%PRODUCTNAME in $HOME or $(ARG)": "%PRODUCTNAME $HOME $(ARG)",
    "a ｟3｠ of the text": "｟3｠",
}
KINDS = {"directive": "%[ds]", "name": "[A-Z]{3}"}
PARTS = [["a dog ", "%d", " sees ", "ABC", "."], ["ABC", " has a cat"], ["the old man"], ["%s", "%d", " a house"]]
PARTS += [["a dog ", "%s"], ["%s", " ", "%s", " apple"], ["the dog runs ", "ABC", " ", "XYZ", " ", "%d"]]
SOURCES = ["".join(parts) for parts in PARTS]
IN_TOKENS = re.compile("｟[0-9]+｠|%[ds]|[A-Z]{3}")


def test_spans_of_every_kind_are_found():
    assert {text: " ".join(find_spans(text, DEFAULT)) for text in FOUND} == FOUND


def test_spans_come_back_in_whatever_order():
    random = Random(0)
    known = [span for spans in FOUND.values() for span in spans.split()] + ['<a href="x y">'] * 3
    for _ in range(200):
        parts = random.choices([*known, *"abcdefgh"], k=random.randint(0, 30))
        text, spans = replace_spans("\n".join(parts), DEFAULT)
        assert len(spans) == min(16, sum(part in known for part in parts))
        if sum(part in known for part in parts) <= 16:
            assert not {*known} & {*text.split("\n")} - {*RESERVED}
            replaced = text.split("\n")
            order = random.sample(range(len(parts)), len(parts))
            assert put_back("\n".join(replaced[at] for at in order), spans) == "\n".join(parts[at] for at in order)
    used = Counter(token for length in range(160) for token in replace_spans("a" * length + "%d", DEFAULT)[1])
    assert used == dict.fromkeys(RESERVED, 10)  # all equally often


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 5, vocab_size=400, tags=RESERVED)


def test_training_pairs_have_the_tokens_if_both_sides_have_the_same_spans(tokenizer):
    pairs = {"%d files in <b>": "in <b> %d Dateien", "<file>: %s": "<Datei>: %s", "no span": "nichts", "%s-%s": "%s %s"}
    rows = Dataset.from_dict({"source": [*pairs], "target": [*pairs.values()]})
    ids = tokenize_pairs(rows, tokenizer, DEFAULT)
    sources, targets = (
        tokenizer.batch_decode(ids[side][:], skip_special_tokens=True) for side in ("input_ids", "labels")
    )
    assert sources == ["｟16｠ files in ｟1｠", "<file>: %s", "no span", "｟6｠-｟7｠"]
    assert targets == ["in ｟1｠ ｟16｠ Dateien", "<Datei>: %s", "nichts", "｟6｠ ｟7｠"]
    texts = [" files in ", "<file>: %s", "no span", "-", "in   Dateien", "<Datei>: %s", "nichts", " "]
    assert sorted(vocabulary_texts(rows, DEFAULT)) == sorted(texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_model, tokenizer):
    """An untrained model that likes reserved tokens."""
    model = make_model(vocab_size=len(tokenizer), output_bias=True, protected_spans=KINDS)
    with torch.no_grad():
        model.lm_head.bias[tokenizer.convert_tokens_to_ids([*RESERVED])] += 4
    model.generation_config.max_extra_tokens = 0
    return save_folder(tmp_path_factory.mktemp("spans") / "model", model, tokenizer)


def by_hand(translator: Translator, parts: list[str]) -> tuple[str, int, bool]:
    """The translation, what it misses, and whether it is another than that of the highest score."""
    text, spans = "", {}
    for part in parts:
        if IN_TOKENS.fullmatch(part):
            token = f"｟{(len(''.join(parts)) + len(spans)) % 16 + 1}｠"
            spans[token] = part
        text += token if IN_TOKENS.fullmatch(part) else part

    def missed(hypothesis) -> int:
        wrong = Counter(IN_TOKENS.findall(hypothesis.text))
        wrong.subtract(IN_TOKENS.findall(text))
        return sum(map(abs, wrong.values()))

    first, *more = translator.nbest([text], 4, protect={})[0]
    best = first
    for others in (() if translator.model else more, *translator.nbest([text], 16, protect={}, num_beams=16)):
        if missed(best):  # of CTranslate2 all hypotheses are there
            best = max(best, *others, key=lambda one: (one.finished, -missed(one), one.rank)) if others else best
    others = dict.fromkeys({*RESERVED} - spans.keys(), "")
    whole = IN_TOKENS.sub(lambda match: (spans | others).get(match[0], match[0]), best.text)
    return whole, missed(best), best.text != first.text


@pytest.mark.parametrize("engine", ("torch", "ctranslate2"))
def test_of_the_hypotheses_that_with_most_spans_is_taken_and_what_it_misses_is_named(folder, engine):
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    translator = Translator.from_pretrained(folder, engine=engine)
    expected = [by_hand(translator, parts) for parts in PARTS]
    assert any(is_another for *_, is_another in expected) and any("%d" in text for text, *_ in expected)
    found = dict(pair for rows, each in translator.translations(SOURCES) for pair in zip(rows, each, strict=True))
    assert [found[row].hypotheses[0].text for row in range(len(SOURCES))] == [text for text, *_ in expected]
    assert [found[row].hypotheses[0].missed for row in range(len(SOURCES))] == [missed for _, missed, _ in expected]
    assert translator.translate(SOURCES, protect={}) != translator.translate(SOURCES)
    (best,) = next(translator.translations(SOURCES[:1], prefix="ABC a"))[1]
    assert best.hypotheses[0].text.startswith("ABC a")  # the token of this span
    assert RESERVED[(len(SOURCES[0]) + 1) % 16] in best.best[0]


def test_a_line_without_blanks_is_not_cut_within_a_token(tokenizer):
    for number in range(8):
        text = "犬" * (200 + number) + "｟12｠" + "犬" * 30
        (pieces,) = split_texts(tokenizer, [text], Limits(64, None, 64, by_sentence=False))
        assert "".join(piece.text for piece in pieces) == text
        assert sum("｟12｠" in piece.text for piece in pieces) == 1


def test_kinds_of_ones_own_count_without_reserved_tokens(make_model):
    tokenizer = train_tokenizer(TEXTS * 5, vocab_size=400)
    settings = DecodingOptions(make_model(vocab_size=400), tokenizer, protect={"brand": "ACME"})
    (piece,) = cut_texts(tokenizer, ["the ACME dog"], settings)[0]
    found = [Hypothesis("der Hund", rank=-1.0), Hypothesis("der ACME Hund", rank=-2.0)]
    chosen = settings.choose(piece, found)
    assert [one.text for one in chosen] == ["der ACME Hund", "der Hund"]
    ((_, (translation,)),) = join_hypotheses([[piece]], [([(0, 0)], [chosen[1:]])], settings)
    assert translation.differing == ["ACME"]


def test_a_token_that_stands_for_nothing_does_not_differ():
    assert Translation([], [Piece("a dog", [], "", spans={"｟1｠": "%d"})], ["ein ｟3｠ Hund"]).differing == []


def test_published_files_do_the_same_without_this_package(folder, tmp_path):
    script = "import json, sys; from transformers import pipeline; "
    script += "translate = pipeline('translation', model=sys.argv[1], trust_remote_code=True); "
    script += "print(json.dumps({'found': translate(json.loads(sys.argv[2]))}))"
    found = run_elsewhere(script, folder, str(SOURCES).replace("'", '"'), cwd=tmp_path)["found"]
    translator = Translator.from_pretrained(folder)
    assert [one["translation_text"] for one in found] == translator.translate(SOURCES)
    named = [one.differing for text in SOURCES for _, (one,) in translator.translations([text])]
    assert [one.get("differing", []) for one in found] == named != [[]] * len(SOURCES)


def test_the_command_names_the_lines_that_differ(folder, tmp_path):
    options = (folder, "--json", "--differing", tmp_path / "differing")
    done = call(command.main, *options, "--lines_per_block", "3", stdin=as_lines(SOURCES)).succeeded
    lines = (tmp_path / "differing").read_text().splitlines()
    differing = [json.loads(line)["differing"] for line in done.output.splitlines()]
    assert lines == [f"{row}\t{' '.join(spans)}" for row, spans in enumerate(differing, start=1) if spans] != []
    assert f"{len(lines)} lines differ from their sources in spans or numbers" in done.errors
    plain = Translator.from_pretrained(folder).translate(SOURCES, protect={})
    assert call(command.main, folder, "--protect", "none", stdin=as_lines(SOURCES)).output == as_lines(plain).decode()
    assert "protect: 'tags' must be none, all" in call(command.main, folder, "--protect", "tags", stdin=b"a\n").error
    assert "is no regular expression" in call(command.main, folder, "--protect", "a=(", stdin=b"a\n").error


def test_terms_by_the_fast_engine_stand_for_reserved_tokens(folder, caplog):
    pytest.importorskip("ctranslate2")
    translator = Translator.from_pretrained(folder, engine="ctranslate2")
    sources = [f"{'cat ' * number}a dog" for number in range(12)]
    found = translator.translate([*sources, "a hotdog ABC"], terms=[("dog", "Bernhardiner"), ("dog cat", "-")])
    assert found[-1:] == translator.translate(["a hotdog ABC"])
    lacking = [source for source, text in zip(sources, found, strict=False) if "Bernhardiner" not in text]
    assert 0 < len(lacking) < len(sources)
    for source in sources:
        warning = f"the term 'dog' could not be met in the translation of {source[:60]!r}"
        assert (warning in caplog.text) == (source in lacking)


@pytest.mark.parametrize("engine", ("torch", "ctranslate2"))
def test_texts_around_terms_stay_as_they_are(folder, engine):
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    translator = Translator.from_pretrained(folder, engine=engine)
    sources = ["10\u00a0000 %", "the\u00a0old man", "a dog ABC"]
    found = [one for text in sources for _, (one,) in translator.translations([text], terms=[("ABC", "Hund")])]
    texts = [one.hypotheses[0].text for one in found]
    assert texts[0] == sources[0]
    if engine == "torch":  # which makes sure of it
        assert "Hund" in texts[2] and "ABC" not in texts[2]
    assert translator.align_translations(sources, found) == translator.align(sources, texts)


def test_translations_with_spans_are_aligned_as_text(folder):
    translator = Translator.from_pretrained(folder)
    sources = [*SOURCES, "the\u00a0old\tman %d"]
    found = [one for text in sources for _, (one,) in translator.translations([text])]
    texts = [one.hypotheses[0].text for one in found]
    assert translator.align_translations(sources, found) == translator.align(sources, texts)


def test_spans_travel_from_the_options_to_the_model_and_its_exports(tmp_path, own_cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.en").write_text("a dog %d TICKET-1 sees\n" * 20)
    (tmp_path / "a.de").write_text("TICKET-1 ein Hund %d\n" * 20)
    options = {**TINY, "preset": "tiny", "train_source": "a.en", "train_target": "a.de", "output_dir": "run"}
    options |= {"max_steps": 1, "tokens_per_update": 200, "protect": r"directive ticket=TICKET-\d+"}
    assert call(train.main, *as_options(options)).succeeded
    spans = read_json(tmp_path / "run" / "model" / "config.json")["protected_spans"]
    assert (spans["ticket"], [*spans]) == (r"TICKET-\d+", ["directive", "ticket"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert tokenizer.decode(tokenizer("｟16｠ a").input_ids[:1]) == "｟16｠"
    done = call(export.main, "--to", "marian", "run/model", "marian").succeeded
    assert "｟1｠ to ｟16｠ stand for directive, ticket" in done.errors
    assert "｟1｠ to ｟16｠ stood for directive, ticket" in (tmp_path / "marian" / "README.md").read_text()
    options |= {"output_dir": "other", "protect": "all", "tokenizer": "none"}
    save_folder(tmp_path / "none", tokenizer, train_tokenizer(TEXTS, vocab_size=320))
    assert "protect: the tokenizer none lacks the tokens ｟1｠" in call(train.main, *as_options(options)).error


def test_the_recipe_protects_what_a_corpus_copies(own_precision):
    PartialState()

    def chosen(source: str, target: str, **given) -> str | None:
        rows = Dataset.from_dict({"source": ["a dog"] * 98 + [source] * 2, "target": ["ein Hund"] * 98 + [target] * 2})
        return choose_recipe(DatasetDict(train=rows), given)[0].get("protect")

    assert (chosen("%d a", "a %d"), chosen("&apos;s", "'s"), chosen("a", "b")) == ("all", None, None)
    assert chosen("%d a", "a %d", protect="none") is None
    assert ModelOptions(protect="none").spans() == {}


NUMBERS = [("1,000.5 of 231", "231 von 1.000,5", []), ("page 231 %d", "Seite 69 %s", ["%d", "%s", "231", "69"])]
NUMBERS += [("2 files {1}", "zwei Dateien {1}", []), ("<b>5</b>", "fünf</b>", ["<b>"]), ("a 25 b", "a b", ["25"])]
NUMBERS += [("a b", "das ist ist ist ist %", ["ist ..."]), ("ha ha ha ha", "ha ha ha ha", []), ("a", "hahaha", [])]


def test_spans_and_numbers_that_differ_and_loops_are_named():
    assert [differing(source, target) for source, target, _ in NUMBERS] == [named for *_, named in NUMBERS]
