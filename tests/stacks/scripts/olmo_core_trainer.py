"""OLMo-core's own trainer on one CPU: ``olmo_core_trainer.py MODEL OUT [--track]``."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from loops import read_batches
from olmo_core.data import DataLoaderBase
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment
from olmo_core.train.train_module import TransformerTrainModule
from safetensors.torch import save_file

LENGTH, ROWS = 64, 2


class Text(DataLoaderBase):
    """Rows of one length, so many in a batch."""

    def __init__(self, model: str, folder: str) -> None:
        super().__init__(work_dir=folder, global_batch_size=LENGTH * ROWS)
        ids = torch.cat([batch["input_ids"][0] for batch in read_batches(model, 1)])
        self.batches = list(ids[: len(ids) // (LENGTH * ROWS) * LENGTH * ROWS].view(-1, ROWS, LENGTH))

    @property
    def total_batches(self) -> int:
        return len(self.batches)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass

    def reshuffle(self, epoch: int | None = None, **kwargs: Any) -> None:
        pass

    def _iter_batches(self) -> Iterable[dict[str, Any]]:
        yield from ({"input_ids": batch} for batch in self.batches)

    def get_mock_batch(self) -> dict[str, Any]:
        raise NotImplementedError  # so that no batch is tried before the training

    def global_num_tokens_in_batch(self, batch: dict[str, Any]) -> int:
        return batch["input_ids"].numel()


if __name__ == "__main__":
    source, out = sys.argv[1:3]
    prepare_training_environment(seed=7, backend=None)
    model = TransformerConfig.llama_like(d_model=32, vocab_size=264, n_layers=2, n_heads=4).build(init_device="cpu")
    module = TransformerTrainModule(
        model,
        AdamWConfig(lr=0.01),
        rank_microbatch_size=LENGTH,
        max_sequence_length=LENGTH,
        device=torch.device("cpu"),
    )
    config = TrainerConfig(
        save_folder=f"{out}/run", device="cpu", max_duration=Duration.steps(3), no_checkpoints=True, no_evals=True
    )
    if "--track" in sys.argv:
        from olmo_core_metrics import ArealMetrics

        config.callbacks["areal"] = ArealMetrics()
    config.build(module, Text(source, f"{out}/work")).fit()
    Path(out).mkdir(exist_ok=True)
    save_file(model.state_dict(), Path(out, "model.safetensors"))
