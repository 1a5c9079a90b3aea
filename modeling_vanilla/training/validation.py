"""The scores of a model on validation or test data, computed by all processes together."""

from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset

from ..inference import Translator
from ..inference.scoring import PairScore
from ..metrics import translation_scores

# A batch of the search has so many times the tokens of one of training, which keeps activations for its gradient.
_SEARCH_TOKENS = 4


def validation_scores(translator: Translator, pairs: Dataset, tokens_per_batch: int, tokenize: str) -> dict:
    """Score a model on pairs with the string columns "source" and "target".

    Every process must call this, with all the model's weights.

    Returns:
        "loss" in nats per word piece, without label smoothing, "perplexity" per word piece, and translation_scores.
    """
    texts = {"sources": pairs["source"][:], "targets": pairs["target"][:]}
    with PartialState().split_between_processes(texts) as own:
        scores = gather_object(translator.score(**own, tokens_per_batch=tokens_per_batch))
    total = PairScore(sum(score.log_prob for score in scores), sum(score.tokens for score in scores))
    losses = {"loss": -total.log_prob / total.tokens, "perplexity": total.perplexity}
    return {**losses, **translate_and_score(translator, pairs, tokens_per_batch, tokenize)}


def translate_and_score(
    translator: Translator, pairs: Dataset, tokens_per_batch: int, tokenize: str, show_progress: bool = False
) -> dict:
    """Translate the sources, a share on each process, and give their translation_scores. Every process must call this.

    Args:
        tokens_per_batch: of training; the batches of the search are larger.
        show_progress: a progress bar on the main process.
    """
    state = PartialState()
    shown = show_progress and state.is_main_process
    with state.split_between_processes(pairs["source"][:]) as own:
        translated = translator.translate(own, tokens_per_batch=_SEARCH_TOKENS * tokens_per_batch, show_progress=shown)
        translations = gather_object(translated)
    return translation_scores(translations, pairs["target"][:], tokenize)
