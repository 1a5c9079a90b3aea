"""pipeline("translation"), a task that transformers 5 removed, for any sequence-to-sequence model."""

import re
from collections.abc import Sequence

import torch
from transformers import AutoModelForSeq2SeqLM, pipelines
from transformers.pipelines.base import Pipeline

from .decoding_vanilla import DecodingOptions, cut_texts, join_hypotheses, make_batches, search_batches
from .generation_vanilla import generation_config_of
from .splitting_vanilla import check_texts


class TranslationPipeline(Pipeline):
    """Translates text: `pipeline("translation", model=...)("A sentence.") -> [{"translation_text": "Ein Satz."}]`.

    The input is a string, a list or column of strings, or a torch Dataset or generator of them for an iterator.
    With `num_return_sequences` above 1, the result of an input is a list of so many, best first. The best has
    "differing", too, if spans that are copied or numbers are not the source's, or a phrase is repeated without end: a
    list of these.

    Args:
        return_tensors: whether a result is {"translation_token_ids": ids}, those that generate() returns.
        truncation: truncate a text that is too long for the model, instead of splitting it.
        src_lang, tgt_lang: the languages, for a tokenizer of many; by default those in the name of the task. Where tags
            such as ">>de<<" name them, tgt_lang is that of lines without a tag.
        **others: those of `DecodingOptions` and of generate().
    """

    _load_tokenizer = True

    def _sanitize_parameters(self, return_tensors=None, **arguments):
        return {}, arguments, {} if return_tensors is None else {"return_tensors": return_tensors}

    def __call__(self, inputs, *args, **kwargs):
        """A list of one result for each input; an iterator of lists for a torch Dataset or a generator."""
        if hasattr(inputs, "tolist"):  # an array of numpy or a column of pandas
            inputs = inputs.tolist()
        if isinstance(inputs, Sequence) and not isinstance(inputs, str):
            inputs = list(inputs)
            if not inputs:
                return []
        results = super().__call__(inputs, *args, **kwargs)
        if isinstance(inputs, list) and all(len(result) == 1 for result in results):
            return [result[0] for result in results]
        return results

    def preprocess(self, text) -> dict:
        check_texts([text])
        return {"text": text}

    def _forward(
        self, model_inputs, truncation=None, src_lang=None, tgt_lang=None, num_return_sequences=None, **arguments
    ) -> dict:
        texts = model_inputs["text"]
        # Tokenizers of many languages have this method: it sets the source's, and returns the target's token.
        languages = getattr(self.tokenizer, "_build_translation_inputs", None)
        if languages is not None:
            named = self.task.split("_")[1::2] if self.task.count("_") == 3 else (None, None)
            pair = {"src_lang": src_lang or named[0], "tgt_lang": tgt_lang or named[1], "return_tensors": None}
            built = languages("", **pair)
            if self.tokenizer.unk_token_id in (*built["input_ids"], built["forced_bos_token_id"]):
                raise ValueError(f"{pair['src_lang']} or {pair['tgt_lang']} is no language of the tokenizer")
            arguments["forced_bos_token_id"] = built["forced_bos_token_id"]
        elif tgt_lang is not None:
            arguments["tgt_lang"] = tgt_lang
        # A model such as T5 reads its task at the beginning of the source, and has options of its search for it.
        of_task = dict((getattr(self.model.config, "task_specific_params", None) or {}).get(self.task, {}))
        arguments = {"source_prefix": of_task.pop("prefix", ""), **of_task, **arguments}
        configured = generation_config_of(self.model, arguments.get("generation_config")).num_return_sequences
        arguments |= {"nbest": num_return_sequences or configured or 1, "encoding": {"truncation": truncation}}
        options = DecodingOptions(self.model, self.tokenizer, **arguments)
        pieces = cut_texts(self.tokenizer, [texts] if isinstance(texts, str) else texts, options)
        found = search_batches(self.model, self.tokenizer, make_batches(pieces, options), options)
        every: list[list[dict]] = [[]] * len(pieces)
        for rows, translations in join_hypotheses(pieces, found, options):
            for row, translation in zip(rows, translations, strict=True):
                best = [{"text": one.text, "token_ids": torch.tensor(one.ids)} for one in translation.hypotheses]
                if differing := translation.differing:
                    best[0]["differing"] = differing
                # A text with fewer translations, such as a blank one, repeats the last.
                every[row] = best + best[-1:] * (options.nbest - len(best))
        return {"translations": every[0] if isinstance(texts, str) else every}

    def postprocess(self, output, return_tensors=False) -> list[dict]:
        name = "token_ids" if return_tensors else "text"
        names = {name: f"translation_{name}", "differing": "differing"}
        return [{names[key]: one[key] for key in names.keys() & one.keys()} for one in output["translations"]]


def register_translation() -> None:
    """Give transformers the tasks "translation" and "translation_XX_to_YY", any XX and YY, with this pipeline."""
    registry = pipelines.PIPELINE_REGISTRY
    # Versions before 5.19 have a task of this name, and warn when it is replaced.
    registry.supported_tasks.pop("translation", None)
    registry.register_pipeline("translation", TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
    getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)

    def check_task(task: str):
        of_a_pair = re.fullmatch("translation_[^_]+_to_[^_]+", task)
        return type(registry).check_task(registry, "translation" if of_a_pair else task)

    registry.check_task = check_task


if __name__.startswith("transformers_modules"):
    register_translation()  # loaded from a model's folder, where there is no package whose __init__ does it
