"""Fine-tune a saved model with transformers' Seq2SeqTrainer: modeling_vanilla/cli/finetune_seq2seq_trainer.py.

python examples/finetune_seq2seq_trainer.py --model runs/mine/model --train_file train.jsonl --output_dir runs/tuned
"""

from modeling_vanilla.cli.finetune_seq2seq_trainer import main

if __name__ == "__main__":
    main()
