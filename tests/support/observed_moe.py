"""A MoE balance monitor on a model, without a session, and what it should count."""

from __future__ import annotations

from typing import Any

import torch
from support.toy_moe import routed_by_hand
from torch import Tensor, nn

from areal_callbacks.monitors.moe_balance.monitor import MoEBalanceMonitor
from areal_callbacks.monitors.training_forward import TrainingForward

CPU = torch.device("cpu")


class Observed:
    """A monitor on a model, without a session."""

    def __init__(self, *models: nn.Module, **options: Any) -> None:
        self.forward = TrainingForward()
        self.monitor = MoEBalanceMonitor(self.forward, **options)
        self.found = self.monitor.attach(models, CPU)
        self.forward.attach(models)

    def counts(self) -> dict[str, list[int]]:
        return {name: row.tolist() for name, row in self.monitor.collect().sums.items()}


def by_hand(model: nn.Module, data: list[Tensor], name: str = "/{}") -> dict[str, list[int]]:
    return {name.format(layer): row.tolist() for layer, row in enumerate(routed_by_hand(model, data))}
