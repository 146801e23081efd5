"""SetFit: ``few_shot.py MODEL OUT``."""

import sys
from pathlib import Path

from datasets import load_dataset
from sentence_transformers import SentenceTransformer, models
from setfit import SetFitModel, Trainer, TrainingArguments

MODEL, OUT = sys.argv[1:3]
body = SentenceTransformer(modules=[models.Transformer(MODEL), models.Pooling(32)], device="cpu")
model = SetFitModel.from_pretrained(body) if not hasattr(SetFitModel, "_from_pretrained") else SetFitModel(body)
if model.model_head is None:
    from sklearn.linear_model import LogisticRegression

    model.model_head = LogisticRegression()
data = load_dataset(str(Path(MODEL).parent / "label"), split="train")
arguments = TrainingArguments(output_dir=OUT, batch_size=4, max_steps=3, logging_steps=1, report_to="none")
Trainer(model, arguments, train_dataset=data).train()
model.model_body.save(OUT)
