"""The page: text in, its n best translations out, and what the model attended to."""

import os
import re
import threading
from collections.abc import Sequence

# Gradio reads it as it is imported. Nothing is sent anywhere.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr
import pandas as pd
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..visualization.attention import attention_maps, check_length
from .batcher import Batcher
from .callers import Callers, Page

MAX_BEAMS, MAX_LENGTH_PENALTY = 8, 2.0
# Requests that may wait. Whoever comes later is told that there are too many.
QUEUE = 256
BOX = 320  # pixels: of less room for each, as on a phone, one box stands above the other
COLUMNS = ["score", "translation"]
# The picture is a page of its own, which then follows the theme of this one.
CSS = """
iframe { color-scheme: light } .dark iframe { color-scheme: dark }
#text textarea { min-height: 6em }
#examples .selected { outline: 2px solid var(--color-accent) }
"""
# A page that only this machine can reach answers to these names alone: another one may be that of a foreign page, whose
# owner has let it point to this machine (DNS rebinding).
LOCAL_HOSTS = ["localhost", "127.0.0.1", "[::1]"]


def build_page(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[str],
    max_characters: int,
    max_seconds: float,
) -> Page:
    """The page of a model, which `launch` serves.

    Args:
        examples: texts to choose from.
        max_characters: of a text. max_seconds: how long one may wait for its translation.
    """
    beams = model.generation_config.num_beams or 1
    alpha = 1.0 if model.generation_config.length_penalty is None else model.generation_config.length_penalty
    lock = threading.Lock()
    batcher = Batcher(model, tokenizer, lock)

    async def translate(text: str, beams: int, length_penalty: float, request: gr.Request) -> tuple[str, pd.DataFrame]:
        """The best translation, and the best of each beam with their scores, log P / length penalty."""
        hypotheses = await batcher.translate(
            _checked(text, max_characters),
            beams,
            length_penalty,
            max_seconds,
            lambda: request.session_hash in page.sessions,
        )
        rows = [(round(hypothesis.score, 4), hypothesis.text) for hypothesis in hypotheses]
        return hypotheses[0].text, pd.DataFrame(rows, columns=COLUMNS)

    def attention(text: str, translation: str) -> str:
        """A page in a frame: what every head of every layer attends to as the model reads and produces these."""
        text = _checked(text, max_characters)
        translation = _checked(translation, 10 * max_characters) if translation else ""  # none of ours is so long
        with lock:  # of the tokenizer, too: MarianTokenizer switches itself from one language to the other
            check_length("text", tokenizer(text).input_ids)
            check_length("translation", tokenizer(text_target=translation).input_ids)
            return attention_maps(model, tokenizer, text, translation)._repr_html_()

    def attention_of_row(text: str, event: gr.SelectData) -> tuple[str, str]:
        return attention(text, str(event.row_value[1])), _mark(event.index[0])

    with Page(title="Translate", analytics_enabled=False, fill_width=False) as page:
        gr.Markdown(f"# Translate\n\nA Transformer of {model.num_parameters():,} parameters.")
        with gr.Row():
            # With lines=1 Enter translates, and Shift+Enter begins a line.
            text = gr.Textbox(label="Text", max_lines=12, min_width=BOX, max_length=max_characters, elem_id="text")
            best = gr.Textbox(
                label="Translation", lines=4, min_width=BOX, interactive=False, buttons=["copy"], elem_id="best"
            )
        button = gr.Button("Translate", variant="primary", elem_id="translate")
        # At first those of the model's own search, which is always within their bounds.
        with gr.Row():
            num_beams = gr.Slider(1, max(MAX_BEAMS, beams), value=beams, step=1, precision=0, label="Beams")
            penalty = gr.Slider(
                min(0.0, alpha), max(MAX_LENGTH_PENALTY, alpha), alpha, step=0.1, label="Length penalty"
            )
        if examples:
            chosen = gr.Radio(examples, label="Examples", elem_id="examples")
            chosen.input(None, chosen, text, js="(example) => example", api_visibility="private")
        nbest = gr.Dataframe(headers=COLUMNS, label="Best of each beam", interactive=False, wrap=True, elem_id="nbest")
        gr.Markdown("Choose a translation to see what the model attended to as it produced it.")
        picture, mark = gr.HTML(label="Attention", elem_id="attention"), gr.HTML()
        gr.on(
            [button.click, text.submit],
            translate,
            [text, num_beams, penalty],
            [best, nbest],
            api_name="translate",
            concurrency_limit=None,  # the batcher has a queue of its own
        ).success(attention, [text, best], picture, api_name="attention", show_progress="minimal").success(
            lambda: _mark(0), None, mark, api_visibility="private"
        )
        nbest.select(attention_of_row, text, [picture, mark], api_visibility="private", show_progress="minimal")
    return page.queue(max_size=QUEUE)


def _mark(row: int) -> str:
    """What marks a row of the table, the one of the picture."""
    return f"<style>#nbest [data-row='{row}'] {{ background: var(--color-accent-soft) }}</style>"


def launch(page: Page, host: str, port: int) -> str:
    """Serve a page in a thread of its own; its address.

    Raises:
        OSError: if the port is taken.
    """
    hosts = LOCAL_HOSTS if host in (*LOCAL_HOSTS, "::1") else ["*"]
    middleware = [Middleware(TrustedHostMiddleware, hosts), Middleware(Callers, page.sessions)]
    _, address, _ = page.launch(
        app_kwargs={"middleware": middleware},
        server_name=host,
        server_port=port,
        prevent_thread_lock=True,
        quiet=True,
        share=False,
        ssr_mode=False,
        max_file_size=1,  # byte: there is nothing to upload
        max_threads=QUEUE,  # or others than the first 40 would wait in Gradio, where no time is counted
        footer_links=["api", "gradio", "settings"],
        css=CSS,
    )
    return address


def _checked(text: str | None, most: int) -> str:
    """A text without the white space around it.

    Raises:
        ValueError: if nothing is left, or more characters than `most`, or some that are none.
    """
    text = (text or "").strip()
    if not text:
        raise ValueError("Type a text first.")
    if len(text) > most:
        raise ValueError(f"The text has {len(text)} characters, and at most {most} are translated at once.")
    if re.search("[\ud800-\udfff]", text):  # which JSON may hold, and a tokenizer may not
        raise ValueError("The text has half of a surrogate pair, which is no character.")
    return text
