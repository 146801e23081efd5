"""What the loops of these scripts share."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast


def read_batches(model: str, rows: int) -> list[dict[str, Any]]:
    """Batches of so many rows, padded."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    lines = (Path(model).parent / "text" / "train.jsonl").read_text().splitlines()
    read = [tokenizer(lines[i : i + rows], padding=True, return_tensors="pt") for i in range(0, len(lines), rows)]
    return [{"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]} for batch in read]


def load(model: str) -> tuple[Any, list[dict[str, Any]]]:
    """The model, and batches of two rows, padded."""
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train(), read_batches(model, 2)


def loss_of(model: Any, batch: Any) -> Any:
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return model(**batch, labels=labels).loss
