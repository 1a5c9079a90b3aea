"""Translate a file or stdin, line by line: one line in, one line out, in the same order.

    vanilla translate runs/mine/model --input test.en --output test.out --reference test.de
    vanilla translate runs/mine/model < test.en | head -1
    vanilla translate runs/one/model runs/two/model --interactive

MODEL is a folder with a model and its tokenizer, or their name on the Hub. Several models of one vocabulary translate
as an ensemble, by the mean of their probabilities at every step. A line ends at "\\n" alone; an empty line stays empty.
The whole input is read before it is translated, because sentences of similar length form a batch; --interactive answers
each line at once.

The default search is the model's own: the paper's has beam 4, alpha 0.6 and at most 50 tokens more than the source. A
line that is longer than what the model has seen in training, in tokens or sentences, is translated sentence by
sentence. With --max_source_tokens N, lines up to N tokens are translated whole, and longer ones in pieces that end with
a sentence, if need be at clause marks or blanks. A warning names the lines.

--nbest K writes K lines for each line of input, "LINE ||| TRANSLATION ||| SCORE", best first, LINE counted from 0. The
score is log P / ((5 + length) / 6)^alpha, or log P / length^alpha of a model that searches so, natural logarithm; the
scores of pieces add up. An empty line has one translation, the empty one, of score 0.

--json writes each translation as a line of JSON: "translation", its "score" as above, its "tokens" with EOS, the
"log_probs" of these, natural logarithm, and the word "alignment", pairs [source word, target word], from 0.

--terms FILE has in each line a source term, a tab, and its translation. If a line of the input contains the source term
as whole words, its translation contains the target term. Of terms that overlap the longest counts. A warning names a
term that cannot be met within the limit; the translation is then the best without it.

--prefix FILE gives, line by line, what the translations begin with; a line of it may be blank.

--alignments FILE writes the word alignment of each line in the Pharaoh format, "SOURCE-TARGET ...", words separated by
white space and counted from 0. It is read from the cross-attention of the best translations, averaged over the heads of
one decoder layer, at the step whose input is the target token (Chen et al. 2020, arXiv:2004.14837); which layer is best
depends on the model.

Exit code: 0; 2 for bad input, with one line that says what is wrong; 130 after Ctrl-C; 141 if nobody reads the output.
"""

import json
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from ..errors import Interrupted
from ..inference import pharaoh, read_terms
from ..inference.alignment import Links, align_translations
from ..inference.terms import Terminology
from ..inference.translation import translate_with
from ..progress import inform
from ..translation_vanilla import Translation, TranslationSettings
from .parser import CommandParser, run_command
from .streams import (
    add_shared_options,
    check_outputs,
    input_lines,
    output_streams,
    parallel_lines,
    translator_of,
    write_lines,
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(__doc__)
    add = parser.add_argument
    add_shared_options(parser)
    add("--interactive", action="store_true", help="answer each line of stdin at once")
    add("--terms", type=Path, metavar="FILE", help="lines of source term, tab, target term, which are kept to")
    add("--prefix", type=Path, metavar="FILE", help="lines with which the translations of the input's lines begin")
    add("--tgt_lang", help="language to translate to, of a model of several: the tag of lines that have none")
    add("--nbest", type=int, metavar="K", help="write K translations of each line, with scores")
    add("--json", action="store_true", help="write translations as JSON, with tokens, scores and word alignment")
    scores = "print BLEU against the lines of FILE to stderr; of several files, each line has a reference in each"
    add("--reference", type=Path, nargs="+", metavar="FILE", help=scores)
    add("--bleu_tokenize", metavar="NAME", help="sacreBLEU's tokeniser (default: 13a)")
    add("--num_beams", type=int, metavar="N", help="beams of the search (default: the model's)")
    add("--length_penalty", type=float, metavar="X", help="alpha of the search (default: the model's)")
    add("--max_extra_tokens", type=int, metavar="N", help="most tokens beyond the source's (default: the model's)")
    add("--max_source_tokens", type=int, metavar="N", help="the most tokens of a line that is translated whole")
    run_command(parser, translate, arguments)


def translate(options: Namespace) -> None:
    for name in ("input", "output", "reference", "alignments", "prefix", "json"):
        if options.interactive and getattr(options, name):
            raise ValueError(f"--{name} cannot be combined with --interactive")
    if options.json and options.nbest is not None:
        raise ValueError("--json cannot be combined with --nbest")
    if options.alignment_layer and not (options.alignments or options.json):
        raise ValueError("--alignment_layer needs --alignments or --json")
    if options.bleu_tokenize and not options.reference:
        raise ValueError("--bleu_tokenize needs --reference")
    (translate_interactively if options.interactive else translate_file)(options)


def translate_file(options: Namespace) -> None:
    """Translate all lines of the input, and score the translations if there are references."""
    inputs = [("--input", options.input), ("--prefix", options.prefix), ("--terms", options.terms)]
    check_outputs(options, [*inputs, *(("--reference", path) for path in options.reference or ())])
    sources = list(input_lines(options.input))
    references = [parallel_lines(path, sources) for path in options.reference or ()]
    prefixes = parallel_lines(options.prefix, sources) if options.prefix else ""
    if references and sources:
        # Imported here, as it needs a package that translation does not.
        from ..training.metrics import TOKENIZE, check_tokenize, translation_scores

        tokenize = options.bleu_tokenize or TOKENIZE
        check_tokenize(tokenize, "bleu_tokenize")
    aligned = bool(options.alignments or options.json)
    model, tokenizer = translator_of(options, aligned)
    with output_streams(options) as (output, alignments):
        settings = settings_of(options, model, tokenizer)
        terms, where = terms_of(options, tokenizer), partial(place, options)
        found = translate_with(model, tokenizer, sources, settings, terms, prefixes, show_progress=True, place=where)
        links = []
        if aligned:
            how = (options.alignment_layer, options.tokens_per_batch)
            links = align_translations(model, tokenizer, sources, found, *how)
        if alignments:
            write_lines(map(pharaoh, links), alignments, options.alignments)
        lines = map(as_json, found, links) if options.json else as_lines(found, options.nbest)
        write_lines(lines, output, options.output)
    if references and sources:
        best = [translation.hypotheses[0].text for translation in found]
        scores = translation_scores(best, [*zip(*references, strict=True)], tokenize)
        for name in ("bleu", "bleu_compound_split"):
            print(f"{name} {scores[name]:.2f} {scores[name + '_signature']}", file=sys.stderr, flush=True)


def translate_interactively(options: Namespace) -> None:
    """Translate each line of stdin as soon as it is there; Ctrl-C and the end of stdin end it."""
    inform(f"loading {', '.join(options.model)} ...")
    prompt = "> " if sys.stdin.isatty() and not options.quiet else ""
    try:
        model, tokenizer = translator_of(options, aligned=False)
        settings, terms = settings_of(options, model, tokenizer), terms_of(options, tokenizer)
        print(end=prompt, file=sys.stderr, flush=True)
        for number, source in enumerate(input_lines(None)):
            where = partial(place, options, first=number)
            found = translate_with(model, tokenizer, [source], settings, terms, place=where)
            write_lines(as_lines(found, options.nbest, number), sys.stdout.buffer, None)
            print(end=prompt, file=sys.stderr, flush=True)
    except Interrupted as end:
        sys.exit(128 + end.signum)
    finally:
        print(end="\n" if prompt else "", file=sys.stderr)


def terms_of(options: Namespace, tokenizer) -> Terminology:
    """The terms of --terms, which may be none."""
    return Terminology(read_terms(options.terms) if options.terms else [], tokenizer, partial(place, options))


def settings_of(options: Namespace, model, tokenizer) -> TranslationSettings:
    """The settings that the options give, the model's own for all others."""
    names = ("num_beams", "length_penalty", "max_extra_tokens", "max_source_tokens", "nbest", "tgt_lang")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    given |= {"with_scores": options.json or options.nbest is not None}
    return TranslationSettings(model, tokenizer, tokens_per_batch=options.tokens_per_batch, **given)


def place(options: Namespace, what: str, rows: Sequence[int], first: int = 0) -> str:
    """Where texts, prefixes or terms stand, for a message: their file and at most three of their lines."""
    file = {"text": options.input or "stdin", "prefix": options.prefix, "term": options.terms}[what]
    return f"{file}, line {', '.join(str(first + row + 1) for row in rows[:3])}: "


def as_lines(found: list[Translation], nbest: int | None, first: int = 0) -> Iterator[str]:
    """The best translation of each line, or its n best with number and score."""
    for number, translation in enumerate(found, start=first):
        for hypothesis in translation.hypotheses:
            text = on_one_line(hypothesis.text)
            yield text if nbest is None else f"{number} ||| {text} ||| {hypothesis.score:.6f}"


def on_one_line(text: str) -> str:
    """The text with each line end that the model generated as a blank."""
    return re.sub(r"[\r\n]+", " ", text)


def as_json(translation: Translation, links: Links) -> str:
    """The best translation of a line as a line of JSON."""
    (best,) = translation.hypotheses
    values = {"translation": best.text, "score": best.score, "tokens": best.tokens, "log_probs": best.log_probs}
    return json.dumps({**values, "alignment": links}, ensure_ascii=False)
