"""What the loops of these scripts share."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast


def load(model: str) -> tuple[Any, list[dict[str, Any]]]:
    """The model, and batches of two rows, padded."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    lines = (Path(model).parent / "text" / "train.jsonl").read_text().splitlines()
    rows = [tokenizer(lines[i : i + 2], padding=True, return_tensors="pt") for i in range(0, len(lines), 2)]
    batches = [{"input_ids": row["input_ids"], "attention_mask": row["attention_mask"]} for row in rows]
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train(), batches


def loss_of(model: Any, batch: Any) -> Any:
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return model(**batch, labels=labels).loss
