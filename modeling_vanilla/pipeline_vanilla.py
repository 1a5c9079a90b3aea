"""pipeline("translation"): transformers removed the task in 5.19; importing this file gives it back.

The pipeline is generic: it serves any sequence-to-sequence model, as the removed one did.
"""

from collections.abc import Sequence

from transformers import AutoModelForSeq2SeqLM, Pipeline, pipelines

# How config.json names the class below, for people who load a model without this package (trust_remote_code=True).
PIPELINE_ENTRY = {"impl": "pipeline_vanilla.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}


class TranslationPipeline(Pipeline):
    """Translates text: `pipeline("translation", model=...)("A sentence.") -> [{"translation_text": "Ein Satz."}]`.

    Call it with a string, a list of strings, a column of a dataset, or a torch Dataset or generator of strings (an
    iterator of results then). Arguments of `generate()` are given to the constructor or the call; with
    `num_return_sequences` above 1 each input gives a list of that many results. Nothing is ever cut off silently:
    pass `truncation=True` and the tokenizer's `max_length` through `tokenizer_kwargs` to cut.
    """

    _load_tokenizer = True

    def _sanitize_parameters(self, tokenizer_kwargs=None, return_tensors=None, **generate_kwargs):
        preprocess = {} if tokenizer_kwargs is None else {"tokenizer_kwargs": tokenizer_kwargs}
        postprocess = {} if return_tensors is None else {"return_tensors": return_tensors}
        return preprocess, generate_kwargs, postprocess

    def __call__(self, inputs, *args, **kwargs):
        """Translate `inputs`; see the class.

        Returns:
            A list of {"translation_text": str}, one for each input; {"translation_token_ids": tensor} instead if
            `return_tensors=True`. An iterator of such lists for a torch Dataset or a generator.
        """
        if isinstance(inputs, Sequence) and not isinstance(inputs, str):
            inputs = list(inputs)
            if not inputs:
                return []
        results = super().__call__(inputs, *args, **kwargs)
        if isinstance(inputs, list) and all(len(result) == 1 for result in results):
            return [result[0] for result in results]
        return results

    def preprocess(self, text, tokenizer_kwargs=None):
        if not isinstance(text, str):
            raise ValueError(f"translation needs strings, not {type(text).__name__}: {text!r}")
        # token_type_ids would be an argument that sequence-to-sequence models do not take.
        return self.tokenizer(text, return_tensors="pt", return_token_type_ids=False, **(tokenizer_kwargs or {}))

    def _forward(self, model_inputs, **generate_kwargs):
        batch_size = model_inputs["input_ids"].shape[0]
        sequences = self.model.generate(**model_inputs, **generate_kwargs)
        # (batch x returned, length) -> (batch, returned, length), so that the base class can take the batch apart.
        return {"sequences": sequences.view(batch_size, -1, sequences.shape[-1])}

    def postprocess(self, model_outputs, return_tensors=False):
        sequences = model_outputs["sequences"][0]
        if return_tensors:
            return [{"translation_token_ids": sequence} for sequence in sequences]
        texts = self.tokenizer.batch_decode(sequences, skip_special_tokens=True)
        return [{"translation_text": text} for text in texts]


def _register() -> None:
    registry = pipelines.PIPELINE_REGISTRY
    # Versions before 5.19 have a translation task of their own or warn about an old entry.
    registry.supported_tasks.pop("translation", None)
    registry.register_pipeline("translation", TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
    getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)


_register()

__all__ = ["PIPELINE_ENTRY", "TranslationPipeline"]
