"""A session on a tiny Qwen3-MoE whose FLOPs are easy to compute by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.sessions import open_session
from support.tiny_trainer import moe_model
from torch import nn

from areal_callbacks import MetricsSession, register_flops_estimator
from areal_callbacks.flops import registry


@pytest.fixture(autouse=True)
def _squares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register_flops_estimator("qwen3_moe", lambda config: lambda length: length * (length + 1))


@pytest.fixture
def model() -> nn.Module:
    return moe_model()


@pytest.fixture
def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture
def session(model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path) -> MetricsSession:
    return open_session(tmp_path).attach(model, optimizer)
