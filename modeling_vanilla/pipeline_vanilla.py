"""pipeline("translation"), a task that transformers 5 removed.

The pipeline is generic: it serves any sequence-to-sequence model, as the removed one did.
"""

import re
from collections.abc import Iterator, Sequence

import torch
from transformers import AutoModelForSeq2SeqLM, pipelines
from transformers.pipelines.base import ChunkPipeline

from .constraints_vanilla import ForcedPrefix
from .splitting_vanilla import MAX_SOURCE_TOKENS, join_pieces, source_limit, split_with_warning
from .terminology_vanilla import Terminology, target_ids


class TranslationPipeline(ChunkPipeline):
    """Translates text: `pipeline("translation", model=...)("A sentence.") -> [{"translation_text": "Ein Satz."}]`.

    Call it with a string, a list of strings, a column of a dataset, or a torch Dataset or generator of strings (an
    iterator of results then). A blank text gives an empty translation; one that is too long for the model is
    translated in pieces, with a warning. With `num_return_sequences` above 1 each input gives a list of that many
    results, the n-th of which joins the n-th of each piece.

    The task may also be named "translation_XX_to_YY" where this file has been imported. The constructor takes the
    arguments below, and so does a call, for itself alone.

    Args:
        truncation: cut a text that is too long instead, to `max_length` of tokenizer_kwargs or to what the model takes.
        max_source_tokens: the most tokens of a piece of a text, fewer where the model's positions end earlier. A model
            trained on single sentences translates shorter pieces better.
        terms: pairs (source term, target term): where the source term is in a text, as whole words, the longest first,
            the translation contains the target term; pairs of one source term are alternatives. A warning names a term
            that cannot be met within the limit, which is then left out.
        prefix: what the translation of each text begins with.
        src_lang, tgt_lang: the languages, for a tokenizer of many languages; by default those of the task's name. They
            have no effect on a model of one pair.
        return_tensors: give {"translation_token_ids": tensor}.
        return_text: give {"translation_text": str}; by default unless return_tensors is set.
        clean_up_tokenization_spaces: of the tokenizer's decode().
        tokenizer_kwargs: further arguments of the tokenizer.
        **others: arguments of generate().
    """

    _load_tokenizer = True

    def _sanitize_parameters(self, **arguments):
        if "terms" in arguments:
            arguments["terms"] = Terminology(arguments["terms"], self.tokenizer)
        if "prefix" in arguments:
            arguments["prefix"] = target_ids(self.tokenizer, arguments["prefix"], "prefix")
        preprocess, postprocess = (
            {name: arguments[name] for name in names if name in arguments}
            for names in (
                ("truncation", "max_source_tokens", "terms", "prefix", "src_lang", "tgt_lang", "tokenizer_kwargs"),
                ("return_tensors", "return_text", "clean_up_tokenization_spaces", "terms"),
            )
        )
        forward = {name: value for name, value in arguments.items() if name not in preprocess | postprocess}
        return preprocess, forward, postprocess

    def __call__(self, inputs, *args, **kwargs):
        """Translate `inputs`; see the class.

        Returns:
            A list of one result for each input; an iterator of such lists for a torch Dataset or a generator.
        """
        if isinstance(inputs, Sequence) and not isinstance(inputs, str):
            inputs = list(inputs)
            if not inputs:
                return []
        results = super().__call__(inputs, *args, **kwargs)
        if isinstance(inputs, list) and all(len(result) == 1 for result in results):
            return [result[0] for result in results]
        return results

    def preprocess(
        self,
        text,
        truncation=None,
        max_source_tokens=MAX_SOURCE_TOKENS,
        terms=None,
        prefix=(),
        src_lang=None,
        tgt_lang=None,
        tokenizer_kwargs=None,
    ) -> Iterator[dict]:
        """Tokenize the pieces of a text, one after the other."""
        if not isinstance(text, str):
            raise ValueError(f"translation needs strings, not {type(text).__name__}: {text!r}")
        pieces, arguments = [text], {"return_tensors": "pt", "truncation": truncation, **(tokenizer_kwargs or {})}
        if arguments["truncation"] in (None, False, "do_not_truncate"):
            (pieces,) = split_with_warning(self.model, self.tokenizer, [text], max_source_tokens)
        else:
            arguments.setdefault(
                "max_length", min(self.tokenizer.model_max_length, source_limit(self.model, max_source_tokens))
            )
        tokenize = getattr(self.tokenizer, "_build_translation_inputs", None)  # tokenizers of many languages have it
        if tokenize is None:
            # token_type_ids would be an argument that sequence-to-sequence models do not take.
            tokenize, languages = self.tokenizer, {"return_token_type_ids": False}
        else:
            named = self.task.split("_")[1::2] if self.task.count("_") == 3 else (None, None)
            languages = {"src_lang": src_lang or named[0], "tgt_lang": tgt_lang or named[1]}
        for number, piece in enumerate(pieces, start=1):
            about = {"is_last": number == len(pieces), "piece": piece}
            about["prefix"] = prefix if number == 1 and piece.strip() else ()
            about["phrases"] = terms.phrases(piece) if terms else []
            yield {**about, **tokenize(piece, **languages, **arguments)}

    def _forward(self, model_inputs, **generate_kwargs):
        about = {name: model_inputs.pop(name) for name in ("is_last", "piece", "prefix", "phrases")}
        is_batch = isinstance(about["piece"], list)
        prefixes, phrases = (about[name] if is_batch else [about[name]] for name in ("prefix", "phrases"))
        if any(phrases):
            generate_kwargs["force_words_ids"] = phrases
        first_token = model_inputs.pop("forced_bos_token_id", None)  # the target language, where there are many
        if first_token is not None:
            generate_kwargs["forced_bos_token_id"] = first_token[0] if isinstance(first_token, list) else first_token
            prefixes = [[generate_kwargs["forced_bos_token_id"], *prefix] if prefix else () for prefix in prefixes]
        forced = ForcedPrefix(prefixes) if any(prefixes) else None
        if forced is not None:
            generate_kwargs["logits_processor"] = [*(generate_kwargs.get("logits_processor") or ()), forced]
        output = self.model.generate(**model_inputs, **generate_kwargs)
        sequences = getattr(output, "sequences", output)
        if forced is not None:
            forced.check(sequences)
        # (batch x returned, length) -> (batch, returned, length), so that the base class can take the batch apart.
        return {**about, "sequences": sequences.reshape(len(model_inputs["input_ids"]), -1, sequences.shape[-1])}

    def postprocess(
        self, pieces, return_tensors=False, return_text=None, clean_up_tokenization_spaces=None, terms=None
    ) -> list[dict]:
        """Join the pieces of a text: a result for each sequence returned."""
        # (returned, length) of each piece
        sequences = [piece["sequences"][0][:, : None if piece["piece"].strip() else 0] for piece in pieces]
        settings = {"skip_special_tokens": True, "clean_up_tokenization_spaces": clean_up_tokenization_spaces}
        if terms:
            for piece, (best, *_) in zip(pieces, sequences, strict=True):
                terms.warn_of_missing(piece["piece"], self.tokenizer.decode(best, **settings))
        results = []
        for parts in zip(*sequences, strict=True):
            result = {"translation_token_ids": torch.cat(parts)} if return_tensors else {}
            if return_text or (return_text is None and not return_tensors):
                result["translation_text"] = join_pieces(self.tokenizer.decode(part, **settings) for part in parts)
            results.append(result)
        return results


def register_translation() -> None:
    """Give transformers the tasks "translation" and "translation_XX_to_YY", any XX and YY, with this pipeline."""
    registry = pipelines.PIPELINE_REGISTRY
    # Versions before 5.19 have a translation task of their own or warn about an old entry.
    registry.supported_tasks.pop("translation", None)
    registry.register_pipeline("translation", TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
    getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)

    def check_task(task: str):
        of_a_pair = re.fullmatch("translation_[^_]+_to_[^_]+", task)
        return type(registry).check_task(registry, "translation" if of_a_pair else task)

    registry.check_task = check_task


if __name__.startswith("transformers_modules"):
    register_translation()  # loaded from a model's folder, where there is no package whose __init__ does it

__all__ = ["TranslationPipeline", "register_translation"]
