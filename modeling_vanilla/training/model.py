"""The tokenizer and the model that a training starts from, saved or new, and what the data set in its configuration."""

import re
from pathlib import Path

import numpy as np
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset, DatasetDict
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..configuration_vanilla import token_ids
from ..corpus.tokenized import TokenizedPairs, pair_lengths, tokenize_pairs
from ..corpus.tokenizer import language_tags, train_tokenizer, vocabulary_texts
from ..loading import check_vocabulary, load_config, load_model, load_tokenizer, load_vocabulary, model_folder
from ..modeling_vanilla import VanillaForConditionalGeneration
from ..presets import preset_config
from ..spans_vanilla import RESERVED, has_reserved, span_pattern
from ..splitting_vanilla import count_sentences, source_language, tags_of
from .options import REGULARISATION, ModelOptions
from .recipe import PAPER_SEARCH


def saved_model(options: ModelOptions, overrides: dict) -> Path | None:
    """The folder of the model to fine-tune, if there is one.

    Args:
        overrides: fields of VanillaConfig that replace the preset's, or the saved model's.

    Raises:
        ValueError: a field is unknown, or may not be changed in a saved model; or there is no such model.
    """
    if options.model is None:
        if options.preset is not None:
            preset_config(options.preset, **overrides)
        return None
    if fixed := [name for name in overrides if name not in REGULARISATION]:
        raise ValueError(f"model {options.model}: its {fixed[0]} cannot be changed")
    folder = model_folder(options.model, options.revision)
    load_config(folder)
    return folder


def spans_of(folder: Path | None, options: ModelOptions) -> re.Pattern | None:
    """What the saved model copies, or a new one by the options."""
    return span_pattern(options.spans() if folder is None else load_config(folder).protected_spans)


def make_tokenizer(
    folder: Path | None, options: ModelOptions, overrides: dict, pairs: Dataset
) -> PreTrainedTokenizerBase:
    """The tokenizer of the model folder, if there is one, or else that of options.tokenizer, or else a new one.

    The main process trains a new one on the pairs and gives it to the others.

    Raises:
        ValueError: the tokenizer cannot be loaded, or no vocabulary of this size can be trained.
    """
    if folder is not None:
        return load_tokenizer(folder)
    if options.tokenizer is not None:
        return load_vocabulary(Path(options.tokenizer))
    size = preset_config(str(options.preset), **overrides).vocab_size
    shared: list[PreTrainedTokenizerBase | None] = [None]
    if PartialState().is_main_process:
        spans = spans_of(None, options)
        tags = [*language_tags(pairs), *(RESERVED if spans else ())]
        given: dict = {"vocab_size": size, "tags": tags, "algorithm": options.tokenizer_algorithm}
        shared = [train_tokenizer(vocabulary_texts(pairs, spans), **given)]
    return broadcast_object_list(shared)[0]


def make_model(
    folder: Path | None, options: ModelOptions, overrides: dict, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    """The model saved in the folder, or a new one of the preset and the overrides, with the tokenizer's special tokens.

    Raises:
        ValueError: the model does not fit the tokenizer, or cannot be loaded.
    """
    if folder is None:
        special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
        size = 1 + max(tokenizer.get_vocab().values())
        # T5 and MarianMT, whose tokenizers have no BOS, start the decoder from PAD.
        start = tokenizer.pad_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        special |= {"vocab_size": size, "decoder_start_token_id": start, "protected_spans": options.spans()}
        if options.spans() and not has_reserved(tokenizer):
            raise ValueError(f"protect: the tokenizer {options.tokenizer} lacks the tokens {RESERVED[0]} ...")
        if options.tokenizer:  # a multiple of 64, say
            special["vocab_size"] = overrides.get("vocab_size", size)
        config = preset_config(str(options.preset), **{**overrides, **special})
        check_vocabulary(tokenizer, config, str(options.tokenizer))
        new = VanillaForConditionalGeneration(config)
        new.generation_config.update(**PAPER_SEARCH.get(str(options.preset), {}))
        return new
    config = load_config(folder)
    for name in REGULARISATION & overrides.keys():
        setattr(config, name, overrides[name])
    config.check()
    model = load_model(folder, config=config)
    # The weights are mapped from the file, where they start at any byte. A CPU's matrix products round by the addresses
    # of their factors, so that a resumed run would differ in the last bit: copy them.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


def check_trainable(
    config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, corpus: TokenizedPairs, pairs: DatasetDict
) -> None:
    """Raise ValueError for what would end a training late.

    That is a model without a token that training needs, or with fewer learned positions than a pair to train or
    validate on; or a tag in the data that is no token.
    """
    for owner, name in ((tokenizer, "pad_token_id"), (config, "decoder_start_token_id")):
        if not token_ids(getattr(owner, name)):
            raise ValueError(f"{name} is {getattr(owner, name)} in {type(owner).__name__}; training needs one")
    if config.position_embedding_type == "learned":
        lengths = [*corpus.lengths]
        if "validation" in pairs:
            lengths += pair_lengths(
                tokenize_pairs(pairs["validation"], tokenizer, span_pattern(config.protected_spans))
            )
        longest = max(int(each.max()) for each in lengths)
        if longest > (limit := config.max_position_embeddings):
            raise ValueError(f"max_position_embeddings {limit}: a text to train or validate on has {longest} tokens")
    if tags := tags_of(tokenizer):
        for name in pairs:
            if unknown := [tag for tag in language_tags(pairs[name]) if tag not in tags]:
                raise ValueError(f"{name} data: {unknown[0]} is no token; the tags are {' '.join(tags)}")


def fit_to_data(
    config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, corpus: TokenizedPairs, source_lang: str | None
) -> None:
    """Set source_lang, which a saved model keeps unless it is given, max_source_tokens and max_source_sentences.

    The last two are the sources' 99.9th percentiles, or the saved model's if these are higher.
    """
    config.source_lang = source_lang or config.source_lang
    language = source_language(config, tokenizer)
    sentences = [count_sentences(text, language) for text in corpus.sources]
    for name, counts in (("tokens", corpus.lengths[0]), ("sentences", sentences)):
        percentile, saved = int(np.percentile(counts, 99.9, method="higher")), getattr(config, f"max_source_{name}")
        setattr(config, f"max_source_{name}", max(1, percentile, saved or 0))
