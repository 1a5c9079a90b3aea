"""Pictures of what a model attends to in a sentence, as in the paper's appendix: heat maps and lines between words.

    python examples/visualize_attention.py runs/mine/model --sentence "A dog runs." --output_dir runs/attention
    echo "A dog runs." | python examples/visualize_attention.py runs/mine/model --target "Ein Hund rennt." --layer 3

MODEL is a folder with a model and its tokenizer. Without --target the model translates the sentence first. The words
are the tokenizer's pieces. Leaves in --output_dir: attention.html, one page that needs no network, to choose every kind
of attention, layer and head on; and of one layer, for each --kind, KIND-heat.png (the mean of the chosen heads) and
KIND-lines.png (a colour for each head, thickness by weight).

Exit code: 0; 2 for bad input, with one line that says what is wrong.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers.utils import logging

from ..inference import load_translator, translate
from ..io import one_line_errors
from ..visualization.attention import KINDS, AttentionMaps, attention_maps, draw_heat_map, draw_lines, save_figure

# Beyond, no picture is of use, and the page grows with the square.
MAX_TOKENS = 128


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a model")
    parser.add_argument("--sentence", metavar="TEXT", help="the source (default: the line on stdin)")
    parser.add_argument("--target", metavar="TEXT", help="its translation (default: the model's own)")
    parser.add_argument("--kind", choices=tuple(KINDS), nargs="+", default=list(KINDS), help="default: all three")
    parser.add_argument("--layer", type=int, metavar="N", help="from 0 (default: the last)")
    parser.add_argument("--head", type=int, nargs="+", metavar="N", help="from 0, one or several (default: all)")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/attention"), help="default: %(default)s")
    options = parser.parse_args(arguments)
    logging.disable_progress_bar()
    with one_line_errors():
        visualize(options)


def visualize(options: argparse.Namespace) -> None:
    """Write the page and the pictures that the options ask for.

    Raises:
        ValueError: for a blank or too long sentence or target, a folder without a model, or no such layer or head.
    """
    sentence = one_sentence("sentence", sys.stdin.read() if options.sentence is None else options.sentence)
    target = None if options.target is None else one_sentence("target", options.target)
    model, tokenizer = load_translator([options.model])
    check_length("sentence", tokenizer(sentence).input_ids)
    if target is None:
        (target,) = translate(model, tokenizer, [sentence])
        print(f"translation: {target}")
    check_length("target", tokenizer(text_target=target).input_ids)
    maps = attention_maps(model, tokenizer, sentence, target)
    # Every picture before the first file: a layer that one kind has and another lacks leaves nothing half done.
    figures = {}
    for kind in options.kind:
        layer = len(maps[kind].weights) - 1 if options.layer is None else options.layer
        figures[f"{kind}-heat.png"] = draw_heat_map(maps[kind], layer, options.head)
        figures[f"{kind}-lines.png"] = draw_lines(maps[kind], layer, options.head)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        save_figure(figure, options.output_dir / name)
    write_page(maps, sentence, options.output_dir / "attention.html")
    print(f"written to {options.output_dir}: attention.html, {', '.join(figures)}")


def one_sentence(name: str, text: str) -> str:
    """The text without the white space around it.

    Raises:
        ValueError: if nothing is left, or more than one line.
    """
    text = text.strip()
    if not text:
        raise ValueError(f"{name}: is empty")
    if len(lines := text.splitlines()) > 1:
        raise ValueError(f"{name}: one line is shown at a time, not {len(lines)}")
    return text


def check_length(name: str, ids: list[int]) -> None:
    if len(ids) > MAX_TOKENS:
        raise ValueError(f"{name}: {len(ids)} tokens are too many for a picture, at most {MAX_TOKENS}")


def write_page(maps: AttentionMaps, title: str, path: Path) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(maps.page(title), encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    main()
