"""A script with a Hugging Face Trainer: ``hf_trainer.py MODEL OUT``."""

import sys
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

MODEL, OUT = sys.argv[1:3]
tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL)
lines = (Path(MODEL).parent / "text" / "train.jsonl").read_text().splitlines()
rows = [{"input_ids": tokenizer(line)["input_ids"]} for line in lines]
arguments = TrainingArguments(
    OUT, use_cpu=True, max_steps=3, per_device_train_batch_size=2, learning_rate=0.01, logging_steps=1, report_to="none"
)
trainer = Trainer(
    AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
    arguments,
    train_dataset=rows,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
trainer.save_model()
