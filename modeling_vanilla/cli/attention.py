"""Pictures of what a model attends to in a sentence: heat maps, and a page with lines as in the paper's appendix.

    vanilla attention runs/mine/model --sentence "A dog runs." --output_dir runs/attention
    vanilla attention runs/mine/model --sentence "A dog runs." --target "Ein Hund rennt."

MODEL is a folder with a model and its tokenizer, or their name on the Hub. Without --target the model translates the
sentence first. The words are the tokenizer's pieces. --output_dir then holds attention.html, a page for every use of
attention, layer and head that needs no network; and for each use USE.png, a heat map of the last layer, the mean of its
heads.

Exit code: 0; 2 for bad input, with one line that says what is wrong.
"""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from ..files import write_text
from ..inference import Translator
from ..visualization.heat_maps import attention_maps, draw_heat_map, save_figure
from .parser import CommandParser, add_loading, loading_of, run_command


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("model", metavar="MODEL", help="folder of a model, or its name on the Hub")
    parser.add_argument("--sentence", metavar="TEXT", required=True, help="the source")
    parser.add_argument("--target", metavar="TEXT", help="its translation (default: the model's own)")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/attention"), help="folder to write to")
    add_loading(parser, has_engines=False)
    run_command(parser, visualize, arguments)


def visualize(options: Namespace) -> None:
    translator = Translator.from_pretrained(options.model, **loading_of(options))
    sentence, target = options.sentence, options.target
    if target is None:
        (target,) = translator.translate([sentence])
        print(f"translation: {target}")
    maps = attention_maps(translator, sentence, target)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    write_text(options.output_dir / "attention.html", maps.page(sentence))
    for kind, attention in maps.items():
        save_figure(draw_heat_map(attention, len(attention.weights) - 1), options.output_dir / f"{kind}.png")
    print(f"written to {options.output_dir}: attention.html, {', '.join(f'{kind}.png' for kind in maps)}")
