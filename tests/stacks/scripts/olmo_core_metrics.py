"""A callback of OLMo-core's trainer, as docs/your_stack.md has it."""

from dataclasses import dataclass
from typing import Any

from olmo_core.train.callbacks import Callback

from areal_callbacks import track


@dataclass
class ArealMetrics(Callback):
    def pre_train(self) -> None:
        module = self.trainer.train_module
        self.metrics = track(module.model, module.optim, report=False)

    def pre_step(self, batch: Any) -> None:
        self.step_span = self.metrics.step()
        self.step_span.__enter__()

    def post_train_batch(self) -> None:
        self.step_span.__exit__(None, None, None)

    def post_step(self) -> None:
        self.metrics.export(self.step)

    def post_train(self) -> None:
        self.metrics.close()
