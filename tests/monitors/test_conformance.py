"""Every monitor collects, pools and can be switched off; a new one is named here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.conformance import MonitorCase, check_monitor
from support.throughput_ranks import forward_call
from support.tiny_trainer import moe_model

from areal_callbacks.core.records import Records
from areal_callbacks.monitors.moe_balance.monitor import MoEBalanceMonitor
from areal_callbacks.monitors.throughput.monitor import ThroughputMonitor
from areal_callbacks.monitors.training_forward import TrainingForward

IDS = torch.tensor([[5, 6, 7, 8], [9, 6, 5, 0]])


def throughput() -> MonitorCase:
    monitor, model = ThroughputMonitor(torch.device("cpu"), estimator=lambda length: 2 * length), moe_model()

    def train() -> None:
        monitor.begin()
        call = forward_call(input_ids=IDS, attention_mask=(IDS > 0).long())
        monitor.on_consumed("text", call)
        monitor.optimizer_begin()
        monitor.optimizer_end()
        monitor.end()

    def numbers(records: Records) -> dict[str, float]:
        derived, names = monitor.derive(records), ("tokens", "estimated_flops", "optimizer_steps")
        return {name: derived[f"train_perf/{name}"] for name in names if f"train_perf/{name}" in derived}

    return MonitorCase(monitor, model, train, numbers)


def moe_balance() -> MonitorCase:
    model, forward = moe_model().train(), TrainingForward()
    monitor = MoEBalanceMonitor(forward)
    monitor.attach([model], torch.device("cpu"))
    forward.attach([model])

    def numbers(records: Records) -> dict[str, float]:
        loads = monitor.expert_loads(records)
        return {} if loads is None else {str(row[:3]): float(row.tokens) for row in loads.rows()}

    return MonitorCase(monitor, model, lambda: model(input_ids=IDS).logits.sum().backward(), numbers)


MONITORS: dict[str, Callable[[], MonitorCase]] = {"throughput": throughput, "moe_balance": moe_balance}


@pytest.mark.parametrize("name", MONITORS)
def test_a_monitor_collects_pools_and_can_be_switched_off(name: str) -> None:
    check_monitor(MONITORS[name])
