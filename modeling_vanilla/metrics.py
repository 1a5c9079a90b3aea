"""BLEU and chrF: sacreBLEU, and the paper's BLEU with German compounds split."""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any
from unicodedata import normalize

import sacrebleu
from sacrebleu.significance import PairedTest

from .errors import one_line

TOKENIZE = "13a"  # sacreBLEU's own default
TOKENIZERS = (*sacrebleu.BLEU.TOKENIZERS,)
# Over bytes, as in Perl: in "a-ö-b" both hyphens are split, because the first match takes one of the two bytes of "ö".
_COMPOUND_HYPHEN = re.compile(rb"(\S)-(\S)")
# What the Moses tokenizer separates and 13a does not: punctuation and symbols beyond ASCII, and the apostrophe.
_MOSES_ONLY = re.compile(r"([^\w\s\x00-\x7f]|')")


def check_tokenize(tokenize: str, name: str = "tokenize") -> None:
    """Raise ValueError unless sacreBLEU has this tokeniser, and its package or file is there; `name` is its option."""
    if tokenize not in TOKENIZERS:
        raise ValueError(f"{name}: must be one of {', '.join(TOKENIZERS)}, not {tokenize!r}")
    try:
        sacrebleu.BLEU(tokenize=tokenize)
    except Exception as error:  # of a missing package, a download, a damaged file
        raise ValueError(f"{name}: {tokenize} cannot be loaded: {one_line(error)}") from error


def translation_scores(
    predictions: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]], tokenize: str = TOKENIZE
) -> dict[str, float | str]:
    """Compute the corpus scores of translations, each with the signature to report beside it.

    - bleu: sacreBLEU (Post 2018), the one to compare across papers.
    - bleu_compound_split: the tokenised BLEU that the paper reports for English-German, see `compound_split_bleu`.
    - chrf: chrF2, the F score of character 6-grams (Popović 2015), as sacreBLEU computes it.

    Args:
        predictions: the translations, detokenised text. Canonically equivalent texts count as equal.
        references: one reference of each translation, or a list of several of each.
        tokenize: sacreBLEU's tokeniser, by which the BLEU scores split text into words: "13a"; "none" for text that is
            tokenised already; "zh", "ja-mecab", "char", "flores200", ... for languages without spaces, where 13a finds
            hardly a match.

    Returns:
        The scores, from 0 to 100, and for each its name with "_signature".

    Raises:
        ValueError: if there is nothing to score, the numbers differ, a translation has no reference, or as
            check_tokenize does.
    """
    check_tokenize(tokenize)
    if len(predictions) != len(references):
        raise ValueError(f"there are {len(predictions)} predictions but {len(references)} references")
    if not len(predictions):
        raise ValueError("there are no predictions to score")
    predictions = [normalize("NFC", text) for text in predictions]
    rows = [[each] if isinstance(each, str) else each for each in references]
    rows = [[normalize("NFC", text) for text in row] for row in rows]
    for number, row in enumerate(rows, start=1):
        if not row:
            raise ValueError(f"references: sentence {number} has none")
    # As sacreBLEU takes them: the first reference of every sentence, the second of every sentence, and so on.
    streams = [list(stream) for stream in zip_longest(*rows)]
    bleu = sacrebleu.BLEU(tokenize=tokenize, force=tokenize == "none")  # which it warns of, as of a mistake
    chrf = sacrebleu.CHRF()
    scores = {
        "bleu": (bleu.corpus_score(predictions, streams).score, str(bleu.get_signature())),
        "bleu_compound_split": compound_split_bleu(predictions, streams, tokenize),
        "chrf": (chrf.corpus_score(predictions, streams).score, str(chrf.get_signature())),
    }
    result: dict[str, float | str] = {}
    for name, (score, signature) in scores.items():
        result |= {name: score, f"{name}_signature": signature}
    return result


def compare_scores(
    before: Sequence[str], after: Sequence[str], references: Sequence[str], tokenize: str = TOKENIZE
) -> dict[str, dict[str, float]]:
    """Compare the translations of two models by sacreBLEU's paired bootstrap (Koehn 2004).

    Returns:
        For "bleu" and "chrf" the scores "before" and "after", half the widths of their 95% intervals, "before_interval"
        and "after_interval", and "p_value", the probability of such a difference by chance.
    """
    before, after, references = ([normalize("NFC", text) for text in texts] for texts in (before, after, references))
    metrics = {"bleu": sacrebleu.BLEU(tokenize=tokenize, force=tokenize == "none"), "chrf": sacrebleu.CHRF()}
    systems: list[tuple[str, Sequence[str]]] = [("before", before), ("after", after)]
    tested: dict[str, Any] = PairedTest(systems, metrics, [references], test_type="bs")()[1]
    names = ("before", "after", "before_interval", "after_interval", "p_value")
    found = ((old.score, new.score, old.ci, new.ci, new.p_value) for old, new in (tested["BLEU"], tested["chrF2"]))
    return {
        metric: dict(zip(names, map(float, each), strict=True)) for metric, each in zip(metrics, found, strict=True)
    }


def compound_split_bleu(
    predictions: Sequence[str], reference_streams: Sequence[Sequence], tokenize: str
) -> tuple[float, str]:
    """Compute the BLEU that the paper reports for English-German, tokenised, compounds split, and its signature.

    The original is tensor2tensor's get_ende_bleu.sh: the Moses tokenizer for German, `split_compounds` on hypothesis
    and reference, then multi-bleu.perl: case kept, 4-grams, no smoothing (0 if any order has no match), the length of
    the closest reference. It is 0.7 to 1 point above the same score without splitting and differs from sacreBLEU's:
    never compare the two.

    Here all is the same but for the tokenizer. Text that Moses has tokenised keeps its words with `tokenize="none"`,
    and the score is the original's. With `tokenize="13a"` punctuation and symbols beyond ASCII and apostrophes are
    separated, as Moses does, and sacreBLEU's 13a does the rest. ("intl" separates hyphens, so that no compound is
    split.) What still differs from Moses:
      - 13a separates every full stop that is not between digits. Moses keeps it on an abbreviation, an ordinal ("3.
        Oktober"), a word with another inside ("z.B.") and any word before a small letter, and keeps "..." whole.
      - 13a separates a hyphen after a digit as "-", where the original has "##AT##-##AT##": as many tokens in a
        compound ("10-jährig"), one more where nothing follows ("10- bis 12-jährig").
      - 13a separates "`", Moses does not.
    Later versions of the script first replaced typographic quotation marks of the hypothesis by plain ones.
    """
    metric = sacrebleu.BLEU(tokenize="none", force=True, smooth_method="none")
    words = sacrebleu.BLEU(tokenize=tokenize).tokenizer

    def prepare(text: str | None) -> str | None:
        return text and split_compounds(words(text if tokenize == "none" else _MOSES_ONLY.sub(r" \1 ", text)))

    streams: list[list] = [[prepare(text) for text in stream] for stream in reference_streams]
    score = metric.corpus_score([prepare(text) for text in predictions], streams)
    cut = "none" if tokenize == "none" else f"moses-like-{tokenize}"
    return score.score, str(metric.get_signature()).replace("tok:none", f"tok:{cut}+compound-split")


def split_compounds(text: str) -> str:
    r"""Split German compounds at hyphens: "Rot-Kreuz" becomes "Rot ##AT##-##AT## Kreuz".

    As the Perl of the paper's script, s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g over bytes. Matches do not overlap: of "a-b-c"
    only the first hyphen is split, because its match has taken the "b", while "aa-bb-cc" is split at both.
    """
    return _COMPOUND_HYPHEN.sub(rb"\1 ##AT##-##AT## \2", text.encode()).decode()
