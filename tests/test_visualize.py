"""Attention pictures: whose weights they show, what is drawn, a page that stands alone, and the script's answers."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
import torch
from helpers import as_lines, call, make_tokenizer, save_folder, tree

from modeling_vanilla.cli import attention as script
from modeling_vanilla.visualization.attention import (
    KINDS,
    MIN_WEIGHT,
    AttentionMap,
    AttentionMaps,
    as_png,
    attention_maps,
    draw_heat_map,
    draw_lines,
    head_colours,
    save_figure,
)

SOURCE, TARGET = "a dog sees a cat", "ein Hund sieht"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer([SOURCE, TARGET], vocab_size=320)


@pytest.fixture
def model(make_model, tokenizer):
    return make_model(vocab_size=len(tokenizer))


def test_each_kind_shows_the_weights_of_its_own_layers(model, tokenizer):
    """Against hooks on the modules that attend."""
    seen = {"encoder": [], "decoder": [], "cross": []}
    layers = [("encoder", layer.self_attn) for layer in model.model.encoder.layers]
    for layer in model.model.decoder.layers:
        layers += [("decoder", layer.self_attn), ("cross", layer.cross_attn)]
    hooks = [
        attention.register_forward_hook(lambda module, inputs, output, kind=kind: seen[kind].append(output[1]))
        for kind, attention in layers
    ]
    maps = attention_maps(model, tokenizer, SOURCE, TARGET)
    for hook in hooks:
        hook.remove()
    assert list(maps) == list(KINDS)
    for kind, one in maps.items():
        torch.testing.assert_close(one.weights, torch.cat(seen[kind]))
        assert one.weights.shape[2:] == (len(one.rows), len(one.columns))
        torch.testing.assert_close(one.weights.sum(dim=-1), torch.ones(one.weights.shape[:3]))
    assert [len(one.weights) for one in maps.values()] == [2, 3, 3]


def test_words_of_each_side(model, tokenizer):
    maps = attention_maps(model, tokenizer, SOURCE, TARGET)
    source, target = ([*text.split(), "</s>"] for text in (SOURCE, TARGET))
    assert (maps["encoder"].rows, maps["encoder"].columns) == (source, source)
    # A decoder's row is the token that is produced; it has read the start token and what was produced before.
    assert (maps["decoder"].rows, maps["decoder"].columns) == (target, ["<s>", *target[:-1]])
    assert (maps["cross"].rows, maps["cross"].columns) == (target, source)
    assert maps["decoder"].weights.triu(1).abs().max() == 0  # nothing later


def test_a_model_in_training_is_refused_and_left_in_training(model, tokenizer):
    with pytest.raises(ValueError, match=r"^model: is in training mode; call model.eval\(\) first$"):
        attention_maps(model.train(), tokenizer, SOURCE, TARGET)
    assert model.training


def test_a_blank_source_is_refused_and_a_blank_target_is_eos_alone(model, tokenizer):
    with pytest.raises(ValueError, match=r"^source: there is no word in ' '$"):
        attention_maps(model, tokenizer, " ", TARGET)
    assert attention_maps(model, tokenizer, SOURCE, "")["cross"].rows == ["</s>"]


@pytest.fixture
def small():
    """Two layers of two heads over two rows and three columns; layer 1, head 1 is the one with something in it."""
    weights = torch.zeros(2, 2, 2, 3)
    weights[1, 1] = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.6, 0.4]])
    return AttentionMap("Test", weights, ["$x$", "y"], ["a", "$b$", "c"])


@pytest.mark.parametrize("draw", [draw_heat_map, draw_lines])
@pytest.mark.parametrize(
    ("layer", "heads", "message"),
    [
        (2, None, "layer must be from 0 to 1, not 2"),
        (-1, None, "layer must be from 0 to 1, not -1"),
        (0, [0, 2], "head must be from 0 to 1, not 2"),
        (0, [], "heads must name at least one"),
    ],
)
def test_layers_and_heads_beyond_the_model_are_refused(small, draw, layer, heads, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        draw(small, layer, heads)


def test_lines_go_from_word_to_word_as_thick_as_the_weight(small):
    (axes,) = draw_lines(small, 1).axes
    empty, lines = axes.collections
    assert len(empty.get_segments()) == 0
    # Rows above, at height 1; columns below.
    expected = [[[0, 1], [0, 0]], [[1, 1], [1, 0]], [[1, 1], [2, 0]]]
    assert [segment.tolist() for segment in lines.get_segments()] == expected
    thick, *others = lines.get_linewidths()
    assert [width / thick for width in others] == pytest.approx([0.6, 0.4])
    assert [text.get_text() for text in axes.texts] == ["$x$", "y", "a", "$b$", "c"]


def test_lines_of_next_to_no_weight_are_left_out(small):
    small.weights[1, 1, 0, 1] = MIN_WEIGHT / 2
    (lines,) = draw_lines(small, 1, [1]).axes[0].collections
    assert len(lines.get_segments()) == 3


def test_the_heat_map_is_the_mean_of_the_heads(small):
    for heads, weights in ((None, small.weights[1].mean(dim=0)), ([1], small.weights[1, 1])):
        (axes,) = draw_heat_map(small, 1, heads).axes
        torch.testing.assert_close(torch.tensor(axes.images[0].get_array()), weights)
    assert axes.get_title() == "Test, layer 1, head 1"


def test_words_with_dollar_signs_are_no_formulas(tmp_path):
    # As formulas, the first would be another text and the second an error.
    words = AttentionMap("Test", torch.eye(2)[None, None], ["$x$", r"$\nonsense$"], [r"$\nonsense$", "b"])
    save_figure(draw_heat_map(words, 0), tmp_path / "a.png")
    assert [content.startswith(PNG) for content in tree(tmp_path).values()] == [True]


@pytest.mark.parametrize("draw", [draw_heat_map, draw_lines])
def test_another_font_writes_what_the_usual_one_lacks(draw, recwarn):
    """The sign is in STIXGeneral, which comes with matplotlib; it warns of what it cannot write."""
    words = AttentionMap("Test", torch.eye(2)[None, None], ["\N{CIRCLED WHITE BULLET}", "x"], ["a", "b"])
    assert as_png(draw(words, 0)).startswith(PNG)
    assert not [warning for warning in recwarn if "missing from font" in str(warning.message)]


@pytest.mark.parametrize("count", [1, 8, 16])
def test_every_head_has_a_colour_of_its_own(count):
    colours = head_colours(count)
    assert len(set(colours)) == count
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)


class _Page(HTMLParser):
    """The tags of a page with their attributes, and what stands in its first script, the data."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.data, self.headings = [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self.lasttag == "script" and self.tags[-1][1].get("id") == "data":
            self.data += data
        if self.lasttag == "h1":
            self.headings += data


EVIL = "</script><img src=x onerror=alert(1)><!-- & DATA TITLE"


@pytest.fixture
def evil():
    weights = torch.tensor([[[[0.25, 0.75]]], [[[1.0, 0.0]]]])
    return AttentionMaps(cross=AttentionMap("Encoder-decoder attention", weights, [EVIL], ["a", "\u2028'\""]))


def test_the_page_holds_the_weights_and_shows_words_as_words(evil):
    page = _Page(evil.page(title=EVIL))
    tags = [tag for tag, _ in page.tags]
    assert "img" not in tags and tags.count("script") == 2
    assert page.headings.strip() == EVIL
    weights = [[[[250, 750]]], [[[1000, 0]]]]  # thousandths
    one = {"name": KINDS["cross"], "rows": [EVIL], "columns": ["a", "\u2028'\""], "weights": weights}
    assert json.loads(page.data) == {"colours": head_colours(1), "least": MIN_WEIGHT, "maps": [one]}


def test_the_page_needs_no_network(evil):
    text = evil.page()
    assert "://" not in text
    assert not {"src", "href"} & {name for _, attributes in _Page(text).tags for name in attributes}
    assert "default-src 'none'" in text  # and would get none


def test_a_notebook_shows_the_page_in_a_frame(evil):
    ((tag, attributes),) = _Page(evil._repr_html_()).tags
    assert (tag, attributes["srcdoc"]) == ("iframe", evil.page())


# What the page's script asks of a browser, and no more.
BROWSER = """
const elements = {};
class Node {
  constructor(name) { Object.assign(this, {name, children: [], attributes: {}, listeners: {}, style: {}}); }
  setAttribute(key, value) { this.attributes[key] = String(value); if (key === "value") this.value = String(value); }
  appendChild(child) {
    this.children.push(child);
    if (this.name === "select" && this.children.length === 1) this.value = child.value;
  }
  replaceChildren() { this.children = []; if (this.name === "select") this.value = ""; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  get classList() { return {toggle() {}}; }
  count(name) { return this.children.filter((child) => child.name === name).length; }
}
const frameElement = null;
const document = {
  createElementNS: (_, name) => new Node(name),
  getElementById: (id) => elements[id] ??= new Node(["kind", "layer"].includes(id) ? "select" : id),
};
document.getElementById("data").textContent = DATA;
"""
LOOK = """
const shown = () => [elements.lines.count("line"), elements.lines.count("text"), elements.heat.count("rect")];
const seen = [shown()];
elements.layer.value = "1"; elements.layer.listeners.change(); seen.push(shown());
const word = elements.lines.children.find((child) => child.textContent === "c");
word.listeners.pointerenter();
seen.push(elements.lines.children.filter((child) => child.name === "line" && child.style.display !== "none").length);
elements.none.listeners.click(); seen.push(shown());
console.log(JSON.stringify(seen));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's script")
def test_the_page_s_script_draws_lines_and_cells(small):
    text = AttentionMaps(cross=small).page()
    code = text.rsplit("<script>", 1)[1].split("</script>")[0].replace('"use strict";', "", 1)
    program = BROWSER.replace("DATA", json.dumps(_Page(text).data)) + code + LOOK
    done = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    # Layer 0 has no weights; layer 1 three lines, one of them to the word "c"; five words, six cells.
    assert json.loads(done.stdout) == [[0, 5, 6], [3, 5, 6], 1, [0, 5, 6]]


@pytest.fixture
def folder(model, tokenizer, tmp_path):
    model.generation_config.max_extra_tokens = 3  # an untrained model rarely ends a sentence by itself
    return save_folder(tmp_path / "model", model, tokenizer)


def test_all_pictures_of_a_sentence_from_stdin_with_the_model_s_own_translation(folder, tmp_path):
    done = call(script.main, folder, "--output_dir", tmp_path / "out", stdin=as_lines([SOURCE]))
    assert done.code == 0 and done.output.startswith("translation: ")
    files = tree(tmp_path / "out")
    assert SOURCE.encode() in files.pop("attention.html")
    assert {*files} == {f"{kind}-{how}.png" for kind in KINDS for how in ("heat", "lines")}
    assert all(content.startswith(PNG) for content in files.values())


def test_one_kind_layer_and_head_of_a_given_target(folder, tmp_path):
    options = ("--sentence", SOURCE, "--target", TARGET, "--kind", "cross", "--layer", 2, "--head", 1)
    assert call(script.main, folder, *options, "--output_dir", tmp_path / "out").code == 0
    files = tree(tmp_path / "out")
    assert {*files} == {"attention.html", "cross-heat.png", "cross-lines.png"}
    assert json.loads(_Page(files["attention.html"].decode()).data)["maps"][2]["rows"] == [*TARGET.split(), "</s>"]


@pytest.mark.parametrize(
    ("options", "stdin", "message"),
    [
        ((), "", "sentence: is empty"),
        ((), "a dog\na cat\n", "sentence: one line is shown at a time, not 2"),
        (("--target", " "), SOURCE, "target: is empty"),
        (("--layer", 2), SOURCE, "layer must be from 0 to 1, not 2"),  # the decoder's third, which the encoder lacks
        ((), "a " * 200, "sentence: 201 tokens are too many for a picture, at most 128"),
        (("--target", "a " * 200), SOURCE, "target: 201 tokens are too many for a picture, at most 128"),
    ],
)
def test_bad_input_is_one_line(folder, tmp_path, options, stdin, message):
    done = call(script.main, folder, "--output_dir", tmp_path / "out", *options, stdin=stdin.encode())
    assert done.error == message
    assert not (tmp_path / "out").exists()
