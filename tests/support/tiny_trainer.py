"""A tiny Qwen3-MoE under a real Hugging Face Trainer, and independent recounts of what it was trained on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig, Trainer, TrainingArguments

from areal_callbacks.writers.jsonl import ExpertLoadsRecord, MetricsRecord, read_metrics

LAYERS, EXPERTS, TOP_K, VOCABULARY, WIDTH = 2, 4, 2, 64, 12


def moe_config(**overrides: Any) -> Qwen3MoeConfig:
    values = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "moe_intermediate_size": 16,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "use_cache": False,
        "attention_dropout": 0.0,
    }
    return Qwen3MoeConfig(**{**values, **overrides})


def moe_model(*, seed: int = 0, attention: str = "sdpa", **overrides: Any) -> nn.Module:
    torch.manual_seed(seed)
    model: nn.Module = AutoModelForCausalLM.from_config(moe_config(**overrides), attn_implementation=attention)
    return model


def dense_model() -> nn.Module:
    torch.manual_seed(0)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "head_dim")
    values = moe_config().to_dict()
    config = Qwen3Config(**{name: values[name] for name in names}, num_key_value_heads=1, use_cache=False)
    model: nn.Module = AutoModelForCausalLM.from_config(config)
    return model


class Sequences(Dataset[dict[str, Tensor]]):
    """Random sequences of 3 to ``WIDTH`` tokens, padded on either side; labels of padding are -100."""

    def __init__(self, number: int = 16, *, seed: int = 0, width: int = WIDTH) -> None:
        generator = random.Random(seed)
        self._width = width
        self._lengths = [generator.randint(3, width) for _ in range(number)]
        self._ids = torch.Generator().manual_seed(seed)
        self._rows = [torch.randint(1, VOCABULARY, (width,), generator=self._ids) for _ in range(number)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        mask = torch.zeros(self._width, dtype=torch.long)
        if index % 2:
            mask[-self._lengths[index] :] = 1
        else:
            mask[: self._lengths[index]] = 1
        ids = self._rows[index] * mask
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class RecordingTrainer(Trainer):
    """Keeps every training batch as the data loader gave it, and interleaves forwards that train nothing."""

    def __init__(self, *args: Any, interleave: bool = False, **kwargs: Any) -> None:
        self.batches: list[dict[str, Any]] = []
        self.steps_of_batches: list[int] = []
        self._interleave = interleave
        super().__init__(*args, **kwargs)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        self.batches.append({k: v.clone() if isinstance(v, Tensor) else v for k, v in inputs.items()})
        self.steps_of_batches.append(self.state.global_step + 1)
        loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        return loss

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if self._interleave:
            with torch.no_grad():
                model(**inputs)
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if self._interleave:
            model.eval()
            with torch.inference_mode():
                model(**inputs)
            model.train()
        return loss


class Recount:
    """Routed assignments counted by plain hooks with the stateless rule, in NumPy, one snapshot per optimizer step.

    A call counts iff it trains: training mode, gradients enabled, and not inside backward, except where reentrant
    checkpointing makes the recomputation the only call with gradients.
    """

    def __init__(self, model: nn.Module) -> None:
        self.counts = np.zeros((LAYERS, EXPERTS), dtype=np.int64)
        self._handles = [
            module.register_forward_hook(self._hook(layer)) for layer, module in enumerate(router_modules(model))
        ]

    def _hook(self, layer: int) -> Any:
        def count(module: nn.Module, _: Any, output: Any) -> None:
            node: Any = torch._C._current_autograd_node()
            in_backward = node is not None or torch._C._current_graph_task_id() != -1
            recomputed = node is not None and node.name().endswith("CheckpointFunctionBackward")
            if module.training and torch.is_grad_enabled() and (not in_backward or recomputed):
                self.counts[layer] += np.bincount(output[2].numpy().reshape(-1), minlength=EXPERTS)

        return count

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def router_modules(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


def replayed_routes(model: nn.Module, batches: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Counts of running the batches again through an unchanged model, from the routers' outputs."""
    counts = np.zeros((LAYERS, EXPERTS), dtype=np.int64)
    outputs: list[tuple[int, Tensor]] = []
    handles = [
        module.register_forward_hook(lambda m, a, out, layer=layer: outputs.append((layer, out[2])))
        for layer, module in enumerate(router_modules(model))
    ]
    with torch.no_grad():
        for batch in batches:
            model(**batch)
    for handle in handles:
        handle.remove()
    for layer, indices in outputs:
        counts[layer] += np.bincount(indices.numpy().reshape(-1), minlength=EXPERTS)
    return counts


def mask_lengths(batches: Sequence[Mapping[str, Any]]) -> list[int]:
    """Sequence lengths of the batches, counted in Python from their attention masks."""
    return [sum(row) for batch in batches for row in batch["attention_mask"].tolist()]


def squares(lengths: Sequence[int]) -> int:
    return sum(length * (length + 1) for length in lengths)


def arguments(folder: Path | str, **overrides: Any) -> TrainingArguments:
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 1,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(**{**values, **overrides})


def make_trainer(
    folder: Path | str,
    *,
    callbacks: Sequence[Any] = (),
    model: nn.Module | None = None,
    interleave: bool = False,
    kind: type[RecordingTrainer] = RecordingTrainer,
    data: Dataset[Any] | None = None,
    collator: Callable[..., Any] | None = None,
    **overrides: Any,
) -> RecordingTrainer:
    """A Trainer that prints nothing."""
    from transformers import PrinterCallback

    fresh_accelerator()
    trainer = kind(
        model=moe_model() if model is None else model,
        args=arguments(folder, **overrides),
        train_dataset=Sequences() if data is None else data,
        eval_dataset=Sequences(4, seed=1),
        data_collator=collator,
        callbacks=list(callbacks),
        interleave=interleave,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def fresh_accelerator() -> None:
    """Accelerate keeps its settings in the process; every Trainer of the tests chooses its own."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def our_rows(trainer: Trainer) -> list[dict[str, Any]]:
    """The rows of log_history that carry measurements."""
    return [row for row in trainer.state.log_history if any(name.startswith("train_perf/") for name in row)]


def metric_records(folder: Path | str) -> list[MetricsRecord]:
    return [record for record in read_metrics(_file(folder)) if isinstance(record, MetricsRecord)]


def load_records(folder: Path | str) -> Iterator[ExpertLoadsRecord]:
    return (record for record in read_metrics(_file(folder)) if isinstance(record, ExpertLoadsRecord))


def total_loads(folder: Path | str) -> np.ndarray:
    return sum((np.array(record.counts) for record in load_records(folder)), np.zeros((LAYERS, EXPERTS), np.int64))


def _file(folder: Path | str) -> Path:
    return Path(folder, "areal_metrics", "metrics.jsonl")
