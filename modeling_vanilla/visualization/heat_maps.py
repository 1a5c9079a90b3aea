"""Attention as pictures: heat maps, and an interactive page with lines between words, as in the paper's appendix.

In a notebook:

    maps = attention_maps(Translator.from_pretrained("runs/mine/model"), "A dog runs.", "Ein Hund rennt.")
    maps                                                 # as a cell's last line: the page itself
    draw_heat_map(maps["encoder"], layer=4)              # a matplotlib figure
    save_figure(draw_heat_map(maps["cross"], layer=5), Path("cross.png"))
"""

import html
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from transformers import PreTrainedTokenizerBase

from ..decoding_vanilla import evaluating
from ..files import whole_file
from ..inference import Translator
from ..splitting_vanilla import check_texts

# Weights below draw no line: where every word attends to every other a little, they would cover the rest.
MIN_WEIGHT = 0.05
# Words of more tokens cannot be read in a picture, and the page grows with their square.
MAX_TOKENS = 128
# HTML, CSS and JavaScript in one file, which needs no network; DATA and TITLE are replaced by the page's own.
PAGE = Path(__file__).with_suffix(".html")

# The three uses of attention (3.2.3): name, tokens that attend (rows), tokens attended to (columns).
KINDS = {
    "encoder": ("Encoder self-attention", "source tokens", "source tokens"),
    "decoder": ("Decoder self-attention", "target tokens produced", "target tokens read"),
    "cross": ("Encoder-decoder attention", "target tokens produced", "source tokens"),
}


@dataclass(frozen=True)
class AttentionMap:
    """One use of attention: weights (layers, H, rows, columns), the tokens of rows and columns, and what these are."""

    name: str
    weights: torch.Tensor
    rows: list[str]
    columns: list[str]
    row_axis: str = "tokens that attend"
    column_axis: str = "tokens attended to"


class AttentionMaps(dict[str, AttentionMap]):
    """An AttentionMap for each of KINDS. A notebook shows it as `page`."""

    def page(self, title: str = "Attention") -> str:
        """One HTML page that needs nothing else: every kind, layer and head, as lines and as heat map."""
        # In thousandths: a third of the size, and no difference that could be seen.
        weights = [(1000 * attention.weights).round().int().tolist() for attention in self.values()]
        maps = [{**vars(attention), "weights": each} for attention, each in zip(self.values(), weights, strict=True)]
        heads = max(attention.weights.shape[1] for attention in self.values())
        data = {"colours": head_colours(heads), "least": MIN_WEIGHT, "maps": maps}
        # In JSON, "<" stands in strings alone; written as an escape it can end no script and begin no comment.
        text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
        before, behind = PAGE.read_text(encoding="utf-8").split("DATA")
        return before.replace("TITLE", html.escape(title)) + text + behind

    def _repr_html_(self) -> str:
        # In a frame, so that neither the page nor the notebook styles the other.
        return f'<iframe srcdoc="{html.escape(self.page())}" style="width:100%;height:700px;border:0"></iframe>'


def attention_maps(translator: Translator, source: str, target: str) -> AttentionMaps:
    """The attention of every head of every layer as the model reads `source` and produces `target`.

    The rows of both uses in the decoder are the tokens of the target as each is produced, EOS at the end. The columns
    of its self-attention are the tokens it has read by then: the start token, and the target shifted right.

    Raises:
        ValueError: if the engine is another than torch, or a text is too long.
    """
    model, tokenizer = translator.model, translator.tokenizer
    if model is None:
        raise ValueError("attention: the engine ctranslate2 does not tell what each head looks at; torch does")
    check_texts([source, target])
    batch = tokenizer(source, text_target=target, return_token_type_ids=False, return_tensors="pt").to(model.device)
    for name, ids in (("source", batch["input_ids"][0]), ("target", batch["labels"][0])):
        if len(ids) > MAX_TOKENS:
            raise ValueError(f"{name}: {len(ids)} tokens are too many for a picture, at most {MAX_TOKENS}")
    with evaluating(model):
        outputs = model(**batch, output_attentions=True)
    sources, produced = (_pieces(tokenizer, batch[name][0]) for name in ("input_ids", "labels"))
    start = _pieces(tokenizer, torch.tensor([model.config.decoder_start_token_id]))
    sides = {
        "encoder": (outputs.encoder_attentions, sources, sources),
        "decoder": (outputs.decoder_attentions, produced, start + produced[:-1]),
        "cross": (outputs.cross_attentions, produced, sources),
    }
    maps = AttentionMaps()
    for kind, (weights, rows, columns) in sides.items():
        name, *axes = KINDS[kind]
        maps[kind] = AttentionMap(name, torch.cat(weights).float().cpu(), rows, columns, *axes)
    return maps


def draw_heat_map(attention: AttentionMap, layer: int) -> Figure:
    """The mean of all heads of one layer, counted from 0, as a heat map."""
    rows, columns = attention.rows, attention.columns
    figure = Figure(figsize=(2 + 0.4 * max(8, len(columns)), 2 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(attention.weights[layer].mean(dim=0), cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, label="attention weight", shrink=0.7)
    # No formulas, whatever dollar signs are in them.
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.set(xlabel=attention.column_axis, ylabel=attention.row_axis)
    axes.set_title(f"{attention.name}, layer {layer}, mean of all heads", fontsize=10)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a PNG file, whole or not at all."""
    with whole_file(path) as part:
        figure.savefig(part, dpi=120, format="png")


def head_colours(count: int) -> list[str]:
    """A colour for each of so many heads, "#rrggbb"."""
    return [to_hex(f"C{head}" if count <= 10 else colormaps["hsv"](head / count)) for head in range(count)]


def _pieces(tokenizer: PreTrainedTokenizerBase, ids: torch.Tensor) -> list[str]:
    # A piece that is a blank alone would not be seen.
    return [tokenizer.decode([token]).strip() or "\N{OPEN BOX}" for token in ids.tolist()]
