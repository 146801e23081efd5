"""Sentence embeddings: ``sentences.py MODEL OUT``."""

import sys
from pathlib import Path

from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, losses, models
from sentence_transformers import SentenceTransformerTrainingArguments as Arguments

MODEL, OUT = sys.argv[1:3]
words = models.Transformer(MODEL)
model = SentenceTransformer(modules=[words, models.Pooling(32)], device="cpu")
data = load_dataset(str(Path(MODEL).parent / "pair"), split="train")
arguments = Arguments(
    OUT, use_cpu=True, max_steps=3, per_device_train_batch_size=4, learning_rate=0.01, logging_steps=1, report_to="none"
)
SentenceTransformerTrainer(
    model, arguments, train_dataset=data, loss=losses.MultipleNegativesRankingLoss(model)
).train()
model.save(OUT)
