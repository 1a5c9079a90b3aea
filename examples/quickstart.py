"""Train a small Transformer on the embedded synthetic corpus, save it, load it back, and translate unseen sentences.

It takes some three minutes on two idle cores (AVX2) and no network; run again, it continues where it stopped. The
output folder then holds model/ (what from_pretrained loads), results.json, loss.png, attention.png and the last
checkpoints; the corpus is in the folder beside it. A grammar generates the corpus: the scores show that model, training
and search work, and nothing about real text.
"""

from pathlib import Path

from toy_corpus import toy_corpus, write_corpus
from transformers import pipeline

from modeling_vanilla import Translator
from modeling_vanilla.cli.parser import CommandParser, run_command
from modeling_vanilla.training import DataOptions, ModelOptions, TrainingOptions, summary, train_translation
from modeling_vanilla.training.run_record import is_begun
from modeling_vanilla.visualization.heat_maps import attention_maps, draw_heat_map, save_figure

NEXT = """
The model is in {model}. Beside it, loss.png shows the loss, and attention.png what the model attended to. It knows
some hundred words (examples/toy_grammar/everyday.toml). Try sentences made of them, after `. .venv/bin/activate`:

    echo "The old farmer sees a small dog." | vanilla translate {model}
    echo "Today my sister calls the teacher." | vanilla translate {model}
    echo "He buys a cake because it is fresh." | vanilla translate {model}

Next, train on your own text: docs/train.md."""


def quickstart(run: Path, max_steps: int, seed: int = 0) -> dict:
    """Corpus, training, saving, loading and translating. Returns what results.json holds."""
    # Smaller updates than the recipe's, so that the time holds more of them; the recipe chooses what is not given.
    training = TrainingOptions(str(run), is_begun(run), max_steps=max_steps, tokens_per_update=1024, seed=seed)
    corpus = toy_corpus(validation=200, test=500)
    print(
        f"A small model learns from {len(corpus['train'])} synthetic sentence pairs in {max_steps} updates: 400 take "
        "some three minutes on two idle cores (AVX2). On busy ones set OMP_NUM_THREADS=1, and "
        "--max_steps 200. The next lines are those of any training.",
        flush=True,
    )
    train_file, validation_file, test_file = map(str, write_corpus(corpus, run.with_name(run.name + "-corpus")))
    results = train_translation(
        DataOptions(train_file=train_file, validation_file=validation_file, test_file=test_file),
        training,
        ModelOptions(),
        {"vocab_size": 1000, "dropout": 0.0},  # it sees each pair but twice
    )
    show(run, corpus["test"][:5])
    print(summary(results, run))
    print(NEXT.format(model=run / "model"))
    return results


def show(run: Path, pairs: list[tuple[str, str]]) -> None:
    """Load the saved model as a user would, print some translations, and draw the attention of the first."""
    translator = pipeline("translation", model=str(run / "model"))
    sources = [source for source, _ in pairs]
    print("\nHeld-out sentences:")
    for (source, reference), result in zip(pairs, translator(sources, batch_size=len(sources)), strict=True):
        print(f"  source     {source}\n  output     {result['translation_text']}\n  reference  {reference}\n")
    output = translator(sources[0])[0]["translation_text"]
    cross = attention_maps(Translator(translator.model, translator.tokenizer), sources[0], output)["cross"]
    save_figure(draw_heat_map(cross, layer=len(cross.weights) - 1), run / "attention.png")


if __name__ == "__main__":
    parser = CommandParser(__doc__)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/quickstart"), help="folder of the run")
    parser.add_argument("--max_steps", type=int, default=400, help="updates to train for")
    parser.add_argument("--seed", type=int, default=0, help="seed of initialisation, data order and dropout")
    run_command(parser, lambda options: quickstart(options.output_dir, options.max_steps, options.seed))
