"""The page of `vanilla demo`: text in, its n best translations out, and what the model attended to."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import one_line
from ..inference import translate_nbest
from ..inference.translation import Hypothesis
from ..visualization.attention import attention_maps, check_length

MAX_BEAMS, MAX_LENGTH_PENALTY = 8, 2.0
MAX_BATCH = 64  # texts
QUEUE = 256  # requests that wait; those that come later are told that there are too many
COLUMNS = ["score", "translation"]
# A page that only this machine can reach answers to these names alone: another name may be that of a foreign page,
# whose owner has let it point to this machine (DNS rebinding).
LOCAL_HOSTS = ["localhost", "127.0.0.1", "[::1]"]


@dataclass
class Translator:
    """What the page calls: a model with its tokenizer, and the longest text that is translated."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_characters: int

    def search(self, texts: list[str], beams: int, length_penalty: float) -> list[list[Hypothesis] | str]:
        """The n best translations of each text, n being the number of beams, or what is wrong with it."""
        settings: dict[str, Any] = {"num_beams": beams, "length_penalty": length_penalty}
        try:
            for text in texts:
                check_text(text, self.max_characters)
            return [*translate_nbest(self.model, self.tokenizer, texts, beams, **settings)]
        except ValueError as error:
            if len(texts) == 1:
                return [one_line(error)]
            return [result for text in texts for result in self.search([text], beams, length_penalty)]

    def translate(self, texts: list[str], beams: list[int], length_penalties: list[float]) -> tuple[list, list, list]:
        """Translate the texts of many people: the best translation of each, all with their scores, and what is wrong.

        The score is log P / length penalty.
        """
        settings = [*zip(beams, length_penalties, strict=True)]
        found: dict[int, list[Hypothesis] | str] = {}
        for each in dict.fromkeys(settings):
            rows = [row for row, other in enumerate(settings) if other == each]
            found |= zip(rows, self.search([texts[row] for row in rows], *each), strict=True)
        answers: list[tuple] = []
        for row in range(len(texts)):
            match found[row]:
                case str(fault):
                    answers.append(("", [], fault))
                case nbest:
                    answers.append((nbest[0].text, [[round(best.score, 4), best.text] for best in nbest], ""))
        best, tables, faults = map(list, zip(*answers, strict=True))
        return best, tables, faults

    def attention(self, text: str, translation: str) -> str:
        """Show what every head of every layer attends to as the model reads a text and produces a translation."""
        if not translation:
            return ""
        try:
            check_text(text, self.max_characters)
            check_text(translation, 10 * self.max_characters)  # the model writes none that is longer
            check_length("text", self.tokenizer(text).input_ids)
            check_length("translation", self.tokenizer(text_target=translation).input_ids)
            return attention_maps(self.model, self.tokenizer, text, translation)._repr_html_()
        except ValueError as error:
            return html.escape(one_line(error))

    def attention_of_row(self, text: str, event: gr.SelectData) -> str:
        """Show the attention of the translation that is chosen in the table."""
        return self.attention(text, str(event.row_value[1]))


def build_page(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: Sequence[str], max_characters: int
) -> gr.Blocks:
    """Build the page of a model, which `launch` serves.

    Args:
        examples: texts to choose from.
        max_characters: the longest text that is translated.
    """
    translator = Translator(model, tokenizer, max_characters)
    beams = model.generation_config.num_beams or 1
    alpha = 1.0 if model.generation_config.length_penalty is None else model.generation_config.length_penalty
    with gr.Blocks(title="Translate", analytics_enabled=False) as page:
        gr.Markdown(f"# Translate\n\nA Transformer of {model.num_parameters():,} parameters.")
        with gr.Row():
            text = gr.Textbox(label="Text", max_lines=12, max_length=max_characters, elem_id="text")
            best = gr.Textbox(label="Translation", interactive=False, buttons=["copy"], elem_id="best")
        button = gr.Button("Translate", variant="primary")
        fault = gr.Markdown()
        with gr.Row():  # at first the model's own search, which is always within the bounds
            num_beams = gr.Slider(1, max(MAX_BEAMS, beams), beams, step=1, precision=0, label="Beams")
            penalty = gr.Slider(
                min(0.0, alpha), max(MAX_LENGTH_PENALTY, alpha), alpha, step=0.1, label="Length penalty"
            )
        if examples:
            gr.Examples([[example] for example in examples], text, elem_id="examples")
        nbest = gr.Dataframe(headers=COLUMNS, label="Best of each beam", interactive=False, wrap=True, elem_id="nbest")
        gr.Markdown("Choose a translation to see what the model attended to as it produced it.")
        picture = gr.HTML(label="Attention", elem_id="attention")
        # One call at a time uses the model; the texts that wait meanwhile are its next batch.
        alone: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
        gr.on(
            [button.click, text.submit],
            translator.translate,
            [text, num_beams, penalty],
            [best, nbest, fault],
            api_name="translate",
            batch=True,
            max_batch_size=MAX_BATCH,
            **alone,
        ).success(translator.attention, [text, best], picture, api_name="attention", **alone)
        nbest.select(translator.attention_of_row, text, picture, api_visibility="private", **alone)
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


def check_text(text: str | None, max_characters: int) -> None:
    """Raise ValueError if a text is blank or too long, or has half of a surrogate pair, which JSON may hold."""
    if not text or not text.strip():
        raise ValueError("Type a text first.")
    if len(text) > max_characters:
        raise ValueError(f"The text has {len(text)} characters, and at most {max_characters} are translated at once.")
    if re.search("[\ud800-\udfff]", text):
        raise ValueError("The text has half of a surrogate pair, which is no character.")
