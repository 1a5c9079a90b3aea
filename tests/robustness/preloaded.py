"""What the process imports that all processes of the trial are forked from."""

import datasets  # noqa: F401
import evaluate  # noqa: F401
import finetune_seq2seq_trainer  # noqa: F401
import sacrebleu  # noqa: F401
import torch
from torch.utils import tensorboard  # noqa: F401
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, FSMTTokenizer, MarianTokenizer, pipeline  # noqa: F401

from modeling_vanilla.cli import attention, average, check, convert, export, push, train, translate  # noqa: F401
from modeling_vanilla.interop import to_ctranslate2, to_onnx  # noqa: F401

torch.set_num_threads(1)
