"""A page to try a model in the browser: its n best translations, and what it attends to.

    vanilla demo runs/mine/model
    vanilla demo runs/mine/model --examples test.en --port 8000

MODEL is a folder with a model and its tokenizer, or their name on the Hub. The page is at http://127.0.0.1:7860 until
Ctrl-C; it loads nothing from elsewhere and sends nothing. With --host 0.0.0.0 other machines reach it, without a
password and unencrypted. --engine ctranslate2 answers faster, without the picture of attention.

`vanilla push --space` publishes the same page on the Hugging Face Hub. It needs the package gradio.

Exit code: 2 for bad input, with one line that says what is wrong; 130 after Ctrl-C.
"""

import threading
from argparse import Namespace
from collections.abc import Sequence

from ..demo import build_page, launch
from ..inference import Translator
from .parser import CommandParser, add_examples, add_loading, loading_of, read_examples, run_command


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("model", metavar="MODEL", help="folder of a model, or its name on the Hub")
    add_examples(parser)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=7860, help="the port to listen on")
    add_loading(parser)
    run_command(parser, serve, arguments)


def serve(options: Namespace) -> None:
    if not 0 < options.port < 65536:
        raise ValueError(f"port: must be from 1 to 65535, not {options.port}")
    translator = Translator.from_pretrained(options.model, **loading_of(options))
    page = build_page(translator, read_examples(options.examples))
    print(f"{launch(page, options.host, options.port)} (Ctrl-C ends it)", flush=True)
    threading.Event().wait()
