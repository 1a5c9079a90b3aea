"""Write a training corpus with copies of some pairs as people type them behind it: docs/howto/untidy.md says why.

python examples/untidy.py train.en train.de untidy.en untidy.de --share 0.5
"""

import random
from argparse import Namespace
from pathlib import Path

from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.corpus.data import load_pairs
from modeling_vanilla.corpus.options import CorpusOptions
from modeling_vanilla.files import write_text
from modeling_vanilla.splitting_vanilla import TAG

STOPS = (".", "!", "?", "\u3002", "\uff01", "\uff1f", "\u0964")  # the last four Chinese and Devanagari
ERRORS_PER_WORD = 0.1
CURLY = str.maketrans({"'": "\u2019", '"': "\u201d"})


def untidy_pair(source: str, target: str, generator: random.Random) -> tuple[str, str]:
    """The pair in one untidy form, drawn from those that change it; as it is where none does.

    Small letters, errors and quotes change the source alone, so that the model learns to mend them. Capitals and a
    missing full stop change both sides, so that it keeps them. The tag of a language stays.
    """
    tag = match[0] if (match := TAG.match(source)) else ""
    source = source[len(tag) :]
    forms = [(source.lower(), target), (source.upper(), target.upper()), (mistype(source, generator), target)]
    forms.append((source.translate(CURLY), target))
    if source.endswith(STOPS) and target.endswith(STOPS):
        forms.append((source[:-1].rstrip(), target[:-1].rstrip()))
    able = [form for form in forms if form[0] != source and form[0].strip() and form[1].strip()]
    source, target = generator.choice(able or [(source, target)])
    return tag + source, target


def mistype(text: str, generator: random.Random) -> str:
    """The text with an error in one word of ten, at least in one.

    Two letters are swapped, or one is left out, doubled or replaced by another of the text.
    """
    words = text.split(" ")
    long = [number for number, word in enumerate(words) if len(word) > 2 and word.isalpha()]
    for number in generator.sample(long, min(len(long), max(1, round(ERRORS_PER_WORD * len(words))))):
        word = words[number]
        place = generator.randrange(1, len(word))
        swapped, other = word[place] + word[place - 1], generator.choice(words[generator.choice(long)])
        before, letter, after = word[:place], word[place], word[place + 1 :]
        words[number] = generator.choice(
            [before[:-1] + swapped + after, before + after, before + letter * 2 + after, before + other.lower() + after]
        )
    return " ".join(words)


def write_untidy(options: Namespace) -> None:
    generator = random.Random(options.seed)
    corpus = load_pairs(CorpusOptions(train_source=str(options.source), train_target=str(options.target)))["train"]
    pairs = [*zip(corpus["source"], corpus["target"], strict=True)]
    pairs += [untidy_pair(*pair, generator) for pair in pairs if generator.random() < options.share]
    for path, side in zip((options.untidy_source, options.untidy_target), zip(*pairs, strict=True), strict=True):
        write_text(path, "".join(f"{line}\n" for line in side))


def main() -> None:
    parser = CommandParser(__doc__)
    for name in ("source", "target", "untidy_source", "untidy_target"):
        parser.add_argument(name, type=Path, help="a text file")
    parser.add_argument("--share", type=float, default=0.5, help="of the pairs that get an untidy copy (default: 0.5)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    run_command(parser, write_untidy)


if __name__ == "__main__":
    main()
