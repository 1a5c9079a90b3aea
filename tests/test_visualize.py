"""Attention pictures: whose weights they show, what is drawn, a page that stands alone, and the script's answers."""

import html
import json
import re
from html.parser import HTMLParser

import pytest
import torch
from helpers import call, tree

from modeling_vanilla import Translator
from modeling_vanilla.cli import attention as script
from modeling_vanilla.visualization import heat_maps as pictures

SOURCE, TARGET = "a dog sees a cat", "ein Hund sieht"


def test_each_kind_shows_the_weights_of_its_own_layers(model, tokenizer):
    """Against hooks on the modules that attend."""
    seen = {"encoder": [], "decoder": [], "cross": []}
    layers = [("encoder", layer.self_attn) for layer in model.model.encoder.layers]
    for layer in model.model.decoder.layers:
        layers += [("decoder", layer.self_attn), ("cross", layer.cross_attn)]
    for kind, attention in layers:
        attention.register_forward_hook(lambda module, inputs, output, kind=kind: seen[kind].append(output[1]))
    maps = pictures.attention_maps(Translator(model, tokenizer), SOURCE, TARGET)
    assert list(maps) == list(pictures.KINDS)
    for kind, one in maps.items():
        torch.testing.assert_close(one.weights, torch.cat(seen[kind]))
        assert one.weights.shape[2:] == (len(one.rows), len(one.columns))
        torch.testing.assert_close(one.weights.sum(dim=-1), torch.ones(one.weights.shape[:3]))
    source, target = ([*text.split(), "</s>"] for text in (SOURCE, TARGET))
    assert (maps["encoder"].rows, maps["encoder"].columns) == (source, source)
    # A decoder's row is the token that is produced; it has read the start token and what was produced before.
    assert (maps["decoder"].rows, maps["decoder"].columns) == (target, ["<s>", *target[:-1]])
    assert (maps["cross"].rows, maps["cross"].columns) == (target, source)
    assert pictures.attention_maps(Translator(model, tokenizer), SOURCE, "")["cross"].rows == ["</s>"]
    with pytest.raises(ValueError, match="has half of a surrogate pair"):
        pictures.attention_maps(Translator(model, tokenizer), SOURCE, "caf\udce9")


def test_the_heat_map_is_the_mean_of_the_heads():
    weights = torch.rand(2, 2, 2, 3)
    small = pictures.AttentionMap("Test", weights, ["$x$", "y"], ["a", "$b$", "c"])
    axes, scale = pictures.draw_heat_map(small, 1).axes
    assert scale.get_ylim() == (0, 1)
    torch.testing.assert_close(torch.tensor(axes.images[0].get_array()), weights[1].mean(dim=0))


def tags_of(page: str) -> list[tuple[str, dict]]:
    """The tags of a page with their attributes."""
    tags, parser = [], HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))
    parser.feed(page)
    return tags


EVIL = "</script><img src=x onerror=alert(1)><!-- & DATA TITLE"


def test_the_page_holds_the_weights_shows_words_as_words_and_needs_no_network():
    weights = torch.tensor([[[[0.25, 0.75]]], [[[1.0, 0.0]]]])
    evil = pictures.AttentionMaps(cross=pictures.AttentionMap("Cross", weights, [EVIL], ["a", "\u2028'\""]))
    page = evil.page(title=EVIL)
    tags = [tag for tag, _ in tags_of(page)]
    assert "img" not in tags and tags.count("script") == 2
    assert f"<h1>{html.escape(EVIL)}</h1>" in page
    (data,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    (cross,) = json.loads(data)["maps"]
    assert cross["weights"] == [[[[250, 750]]], [[[1000, 0]]]]  # thousandths
    assert (cross["rows"], cross["columns"]) == ([EVIL], ["a", "\u2028'\""])
    assert "://" not in page and "default-src 'none'" in page
    assert not {"src", "href"} & {name for _, attributes in tags_of(page) for name in attributes}
    assert tags_of(evil._repr_html_())[0][1]["srcdoc"] == evil.page()  # as a notebook shows it


def test_all_pictures_of_a_sentence_with_the_model_s_own_translation(folder, tmp_path):
    done = call(script.main, folder, "--sentence", SOURCE, "--output_dir", tmp_path / "out\udcff")
    assert done.succeeded.output.startswith("translation: ")
    files = tree(tmp_path / "out\udcff")
    assert SOURCE.encode() in files.pop("attention.html")
    assert {*files} == {f"{kind}.png" for kind in pictures.KINDS}
    assert all(content.startswith(b"\x89PNG\r\n\x1a\n") for content in files.values())
    options = ("--sentence", "a " * 140, "--target", TARGET, "--output_dir", tmp_path / "one")
    assert call(script.main, folder, *options).error.endswith("are too many for a picture, at most 128")
    assert not (tmp_path / "one").exists()
