"""BLEU, chrF and perplexity, as `evaluate.Metric` classes that need no download and as one plain function."""

import math
import re
from collections.abc import Sequence
from itertools import zip_longest

import datasets
import evaluate
import sacrebleu

TOKENIZE = "13a"  # sacreBLEU's own default

_CITATION = 'Post, M.: "A Call for Clarity in Reporting BLEU Scores", WMT 2018.'
_TEXT_INPUTS = """
Args:
    predictions: the translations, detokenised text, list of str.
    references: one reference of each, list of str, or several of each, list of lists of str.
"""
_TOKENIZE_INPUT = '    tokenize: "13a" (default), or "none" for text that is tokenised already.\n'

# Perl reads bytes here, so that of "a-ö-b" it splits both hyphens: the first match takes but half of the "ö".
_COMPOUND_HYPHEN = re.compile(rb"(\S)-(\S)")
# What the Moses tokenizer separates and 13a leaves: punctuation and symbols beyond ASCII, and the apostrophe.
_LEFT_BY_13A = re.compile(r"([^\w\s\x00-\x7f]|')")


def translation_scores(
    predictions: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]], tokenize: str = TOKENIZE
) -> dict[str, float | str]:
    """The scores of a set of translations, with the signatures to report beside them.

    Args:
        predictions: the translations.
        references: one reference of each translation, or a list of several of each.
        tokenize: how both BLEU scores cut words: "13a", or "none" for text that is tokenised already.

    Returns:
        bleu, bleu_compound_split (the paper's, see `CompoundSplitBleu`) and chrf, all from 0 to 100, and for each its
        signature: bleu_signature, bleu_compound_split_signature, chrf_signature.

    Raises:
        ValueError: if there is nothing to score, the numbers differ, a translation has no reference, or tokenize is
            neither of the two.
    """
    return {
        **_bleu(predictions, references, tokenize),
        **_compound_split_bleu(predictions, references, tokenize),
        **_chrf(predictions, references),
    }


def split_compounds(text: str) -> str:
    """Splits German compounds at hyphens: "Rot-Kreuz" becomes "Rot ##AT##-##AT## Kreuz".

    Does what the reference script's Perl does, s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g over bytes. Matches do not overlap:
    of "a-b-c" only the first hyphen is split, because its match has taken the "b", while "aa-bb-cc" is split at both.
    """
    return _COMPOUND_HYPHEN.sub(rb"\1 ##AT##-##AT## \2", text.encode()).decode()


class SacreBleu(evaluate.Metric):
    """Corpus BLEU of sacreBLEU (Post 2018), the one to compare across papers.

    `compute(predictions=..., references=..., tokenize="13a")` gives {"bleu": 0 to 100, "bleu_signature": ...}.
    """

    def _info(self) -> evaluate.MetricInfo:
        return _text_info("Corpus BLEU of sacreBLEU, with its signature.", _TEXT_INPUTS + _TOKENIZE_INPUT)

    def _compute(self, predictions, references, tokenize: str = TOKENIZE) -> dict[str, float | str]:
        return _bleu(predictions, references, tokenize)


class CompoundSplitBleu(evaluate.Metric):
    """The BLEU that the paper reports for English-German: tokenised, with compounds split at hyphens.

    The original is tensor2tensor's get_ende_bleu.sh: the Moses tokenizer for German, `split_compounds` on hypothesis
    and reference, then multi-bleu.perl: case kept, 4-grams, no smoothing (0 if any order has no match), the length of
    the closest reference. It reads 0.7 to 1 point above the same score without splitting and differs from sacreBLEU's:
    never compare the two.

    Here all is the same but for the tokenizer. Text that Moses has tokenised keeps its words with `tokenize="none"`,
    and the score is the original's. With `tokenize="13a"` punctuation and symbols beyond ASCII and apostrophes are
    set apart, as Moses does, and sacreBLEU's 13a does the rest. ("intl" would not do: it sets hyphens apart, which
    leaves none to split.) What still differs from Moses:
      - 13a sets apart every full stop that is not between digits. Moses keeps it on an abbreviation, an ordinal ("3.
        Oktober"), a word with another inside ("z.B.") and any word before a small letter, and keeps "..." whole.
      - 13a sets apart a hyphen after a digit as "-", where the original has "##AT##-##AT##": as many tokens in a
        compound ("10-jährig"), one more where nothing follows ("10- bis 12-jährig").
      - 13a sets "`" apart, Moses does not.
    Later versions of the script also replaced typographic quotes of the hypothesis by plain ones; this does not.

    `compute(predictions=..., references=..., tokenize="13a")` gives
    {"bleu_compound_split": 0 to 100, "bleu_compound_split_signature": ...}.
    """

    def _info(self) -> evaluate.MetricInfo:
        return _text_info("Tokenised BLEU, German compounds split at hyphens.", _TEXT_INPUTS + _TOKENIZE_INPUT)

    def _compute(self, predictions, references, tokenize: str = TOKENIZE) -> dict[str, float | str]:
        return _compound_split_bleu(predictions, references, tokenize)


class ChrF(evaluate.Metric):
    """chrF2, the F score of character 6-grams (Popović 2015), as sacreBLEU computes it.

    `compute(predictions=..., references=...)` gives {"chrf": 0 to 100, "chrf_signature": ...}.
    """

    def _info(self) -> evaluate.MetricInfo:
        return _text_info("chrF2 of sacreBLEU, with its signature.", _TEXT_INPUTS)

    def _compute(self, predictions, references) -> dict[str, float | str]:
        return _chrf(predictions, references)


class Perplexity(evaluate.Metric):
    """Perplexity per word piece, as in Table 3: exp of the mean negative log-likelihood of a target token.

    Fed batch by batch, `add_batch(nll=[...], tokens=[...])`, with for each sentence or batch the sum of -ln p over its
    target tokens, without label smoothing, and their number, the end-of-sentence token counted. `compute()` gives
    {"perplexity": ..., "nll": the mean in nats, "tokens": ...}. Perplexities compare only under one vocabulary.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Perplexity per word piece.",
            citation="Vaswani et al. 2017, arXiv:1706.03762, Table 3.",
            inputs_description="\nArgs:\n    nll: sums of -ln p, list of float.\n    tokens: how many each sums up.\n",
            features=datasets.Features({"nll": datasets.Value("float64"), "tokens": datasets.Value("int64")}),
        )

    def _compute(self, nll, tokens) -> dict[str, float | int]:
        total = sum(tokens)
        if total <= 0:
            raise ValueError(f"tokens: perplexity needs at least one token, not {total}")
        mean = math.fsum(nll) / total
        # exp overflows beyond 709 nats.
        return {"perplexity": math.exp(mean) if mean < 709 else math.inf, "nll": mean, "tokens": total}


def _text_info(description: str, inputs: str) -> evaluate.MetricInfo:
    text = datasets.Value("string")
    return evaluate.MetricInfo(
        description=description,
        citation=_CITATION,
        inputs_description=inputs,
        # evaluate takes the first that fits what it is given.
        features=[
            datasets.Features({"predictions": text, "references": datasets.List(text)}),
            datasets.Features({"predictions": text, "references": text}),
        ],
    )


def _bleu(predictions, references, tokenize: str) -> dict[str, float | str]:
    check_tokenize(tokenize)
    # force: no warning that the text looks tokenised where the caller says that it is.
    metric = sacrebleu.BLEU(tokenize=tokenize, force=tokenize == "none")
    score = metric.corpus_score(predictions, _streams(predictions, references))
    return {"bleu": score.score, "bleu_signature": str(metric.get_signature())}


def _compound_split_bleu(predictions, references, tokenize: str) -> dict[str, float | str]:
    check_tokenize(tokenize)
    metric = sacrebleu.BLEU(tokenize="none", force=True, smooth_method="none")
    words = sacrebleu.BLEU(tokenize=tokenize).tokenizer

    def prepare(text: str | None) -> str | None:
        if text is None:
            return None
        return split_compounds(words(text if tokenize == "none" else _LEFT_BY_13A.sub(r" \1 ", text)))

    streams = [[prepare(text) for text in stream] for stream in _streams(predictions, references)]
    score = metric.corpus_score([prepare(text) for text in predictions], streams)
    cut = "none" if tokenize == "none" else f"moses-like-{tokenize}"
    signature = str(metric.get_signature()).replace("tok:none", f"tok:{cut}+compound-split")
    return {"bleu_compound_split": score.score, "bleu_compound_split_signature": signature}


def _chrf(predictions, references) -> dict[str, float | str]:
    metric = sacrebleu.CHRF()
    score = metric.corpus_score(predictions, _streams(predictions, references))
    return {"chrf": score.score, "chrf_signature": str(metric.get_signature())}


def check_tokenize(tokenize: str, name: str = "tokenize") -> None:
    """Raise ValueError unless BLEU can be computed with this `tokenize`."""
    if tokenize not in (TOKENIZE, "none"):
        raise ValueError(f'{name}: {tokenize!r} is neither "{TOKENIZE}" nor "none"')


def _streams(predictions, references) -> list[list[str | None]]:
    """References as sacreBLEU takes them: the first of every sentence, the second of every sentence, and so on."""
    if len(predictions) != len(references):
        raise ValueError(f"there are {len(predictions)} predictions but {len(references)} references")
    if not len(predictions):
        raise ValueError("there are no predictions to score")
    rows = [[reference] if isinstance(reference, str) else reference for reference in references]
    missing = [number for number, row in enumerate(rows, start=1) if not row]
    if missing:
        raise ValueError(f"references: sentence {missing[0]} has none")
    return [list(stream) for stream in zip_longest(*rows)]
