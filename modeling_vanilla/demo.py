"""The page of `vanilla demo`: text in, its n best translations out, and what the model attended to."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from .errors import one_line
from .generation_vanilla import generation_config_of
from .inference import Translator
from .splitting_vanilla import check_texts
from .visualization.heat_maps import attention_maps

MAX_BEAMS, MAX_LENGTH_PENALTY = 8, 2.0
MAX_CHARACTERS = 1000  # of a text
QUEUE = 256  # requests that wait; those that come later are told that there are too many
COLUMNS = ["score", "translation"]
# A page that only this machine can reach answers to these names alone: another name may be that of a foreign page,
# whose owner has let it point to this machine (DNS rebinding).
LOCAL_HOSTS = ["localhost", "127.0.0.1", "[::1]"]


@dataclass
class Answers:
    """What the page calls. A client may call it with anything."""

    translator: Translator
    bounds: dict[str, tuple[float, float]]  # of the sliders

    def translate(self, text: str, beams: float, length_penalty: float) -> tuple[str, list]:
        """The best translation of a text, and all with their scores, log P / length penalty."""
        options: dict[str, Any] = {"num_beams": beams, "length_penalty": length_penalty}
        try:
            check_text(text)
            for name, value in options.items():
                least, most = self.bounds[name]
                if type(value) not in (int, float) or not least <= value <= most:
                    raise ValueError(f"{name} must be a number from {least} to {most}, not {value!r:.60}")
            options["num_beams"] = round(beams)
            (nbest,) = self.translator.nbest([text], round(beams), **options)
        except ValueError as error:
            raise gr.Error(one_line(error), print_exception=False) from error
        return nbest[0].text, [[round(best.score, 4), best.text] for best in nbest]

    def attention(self, text: str, translation: str) -> str:
        """Show what every head of every layer attends to as the model reads a text and produces a translation."""
        if not translation:
            return ""
        try:
            check_text(text)
            check_text(translation)
            return attention_maps(self.translator, text, translation)._repr_html_()
        except ValueError as error:
            return html.escape(one_line(error))

    def attention_of_row(self, text: str, event: gr.SelectData) -> str:
        """Show the attention of the translation that is chosen in the table."""
        return self.attention(text, str(event.row_value[1]))


def check_text(text: str) -> None:
    """ValueError for what the page takes for no text."""
    check_texts([text])
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"A text has at most {MAX_CHARACTERS} characters.")


def build_page(translator: Translator, examples: Sequence[str]) -> gr.Blocks:
    """Build the page of a translator, which `launch` serves.

    Args:
        examples: texts to choose from.
    """
    search, model = generation_config_of(translator.engine.model), translator.model
    beams = search.num_beams or 1
    alpha = 1.0 if search.length_penalty is None else search.length_penalty
    # At first the model's own search, which is always within the bounds.
    bounds = {
        "num_beams": (1, max(MAX_BEAMS, beams)),
        "length_penalty": (min(0, alpha), max(MAX_LENGTH_PENALTY, alpha)),
    }
    answers = Answers(translator, bounds)
    with gr.Blocks(title="Translate", analytics_enabled=False) as page:
        what = "CTranslate2" if model is None else f"A Transformer of {model.num_parameters():,} parameters"
        gr.Markdown(f"# Translate\n\n{what}.")
        with gr.Row():
            text = gr.Textbox(label="Text", max_lines=12, max_length=MAX_CHARACTERS, elem_id="text")
            best = gr.Textbox(label="Translation", interactive=False, buttons=["copy"], elem_id="best")
        button = gr.Button("Translate", variant="primary")
        with gr.Row():
            num_beams = gr.Slider(*bounds["num_beams"], beams, step=1, precision=0, label="Beams")
            penalty = gr.Slider(*bounds["length_penalty"], alpha, step=0.1, label="Length penalty")
        if examples:
            gr.Examples([[example] for example in examples], text, elem_id="examples")
        nbest = gr.Dataframe(headers=COLUMNS, label="Best of each beam", interactive=False, wrap=True, elem_id="nbest")
        # One call at a time uses the model. Gradio would make a text of a list, and fail without a message at NaN.
        alone: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1, "preprocess": False}
        translated = gr.on(
            [button.click, text.submit],
            answers.translate,
            [text, num_beams, penalty],
            [best, nbest],
            api_name="translate",
            **alone,
        )
        if model is not None:  # which does not tell what its heads attend to
            gr.Markdown("Choose a translation to see what the model attended to as it produced it.")
            picture = gr.HTML(label="Attention", elem_id="attention")
            translated.success(answers.attention, [text, best], picture, api_name="attention", **alone)
            nbest.select(answers.attention_of_row, text, picture, api_visibility="private", **alone)
    return page.queue(max_size=QUEUE)


def launch(page: gr.Blocks, host: str, port: int) -> str:
    """Serve a page in a thread of its own; give its address.

    Raises:
        OSError: the port is taken.
    """
    hosts = LOCAL_HOSTS if host in (*LOCAL_HOSTS, "::1") else ["*"]
    _, address, _ = page.launch(
        app_kwargs={"middleware": [Middleware(TrustedHostMiddleware, hosts)]},
        server_name=host,
        server_port=port,
        prevent_thread_lock=True,
        quiet=True,
        ssr_mode=False,
        max_file_size=1,  # byte: there is nothing to upload
    )
    return address
