"""Train a translation model on your own sentence pairs: the command `vanilla train`, whose --help has the options.

accelerate launch examples/train_translation.py --preset tiny --train_file train.jsonl --output_dir runs/mine
"""

from modeling_vanilla.cli.train import main

if __name__ == "__main__":
    main()
