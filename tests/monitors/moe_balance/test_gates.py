"""Blocks whose router is a linear gate: the top-k of its logits, compared once with what the experts are given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.readback import messages
from torch import Tensor, nn

from areal_callbacks import MetricsSession
from areal_callbacks.monitors.moe_balance.routers import find_routers

EXPERTS, TOP_K, WIDTH = 5, 2, 8


class Block(nn.Module):
    """As in litgpt: the block takes the top-k of its gate's logits, and gives each expert its rows."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.config = type("Config", (), {"n_expert": EXPERTS, "n_expert_per_token": TOP_K})()
        self.correction = torch.tensor([0.0, 0, 0, 0, 9]) if bias else torch.zeros(EXPERTS)
        self.given = torch.zeros(EXPERTS, dtype=torch.long)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, WIDTH)
        weights, chosen = torch.topk(self.gate(rows) + self.correction, TOP_K)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if self.training and torch.is_grad_enabled():
                self.given[number] += len(token)
            out[token] += weights[token, place, None] * expert(rows[token])
        return x + out.reshape(x.shape)


class Model(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(**options) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def train(model: Model, steps: int = 3) -> Any:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with MetricsSession(throughput=False, flops=False, report=False) as session:
        session.attach(model, optimizer, begin_with_forward=True)
        for step in range(steps):
            model(torch.randn(2, 3 + step, WIDTH)).sum().backward()
            optimizer.step()
        with torch.no_grad():
            model(torch.randn(1, 4, WIDTH))
        return session.export(steps)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_counts_are_the_rows_that_the_experts_got(caplog):
    model = Model()
    assert [router.contract.name for router in find_routers(model)] == ["gate logits of the block"] * 2
    loads = train(model).expert_loads
    assert [layer.counts.tolist() for layer in loads] == [layer.given.tolist() for layer in model.layers]
    assert sum(int(layer.counts.sum()) for layer in loads) == 2 * TOP_K * 2 * (3 + 4 + 5)
    assert messages(caplog) == []


class Recorded(Model):
    """Declares its blocks as the sources of its ``router_logits``, as Transformers 4 does."""

    _can_record_outputs = {"router_logits": SimpleNamespace(target_class=Block, index=1)}  # noqa: RUF012


def test_a_block_that_is_recorded_is_read_at_its_gate(caplog):
    model = Recorded()
    for layer in model.layers:
        layer.num_experts, layer.top_k = EXPERTS, TOP_K
    assert [router.name for router in find_routers(model)] == ["layers.0.gate", "layers.1.gate"]
    loads = train(model).expert_loads
    assert [layer.counts.tolist() for layer in loads] == [layer.given.tolist() for layer in model.layers]
    assert messages(caplog) == []


def test_a_gate_whose_choice_is_corrected_afterwards_is_left_out_with_one_message(caplog):
    export = train(Model(bias=True))
    assert not any(name.startswith("moe_balance/") for name in export.metrics)
    (message,) = messages(caplog)
    assert "not given what the top-2 of its logits chooses" in message
    assert "register_router_contract" in message


def test_hooks_of_the_check_are_gone_after_the_second_call():
    model = Model()
    train(model)
    assert all(not expert._forward_pre_hooks for layer in model.layers for expert in layer.experts)


class MaskRouter(nn.Module):
    """As in nanoMoE: a mask that also tells the place in the expert's batch, after capacity."""

    def __init__(self) -> None:
        super().__init__()
        self.n_exp, self.top_k, self.w_g = EXPERTS, TOP_K, nn.Linear(WIDTH, EXPERTS, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.w_g(x.reshape(-1, WIDTH))
        mask = torch.zeros_like(logits).scatter_(-1, logits.topk(TOP_K).indices, 1)
        place = (mask.cumsum(0) - 1).long()
        capacity = 4
        kept = mask * (place < capacity)
        where = nn.functional.one_hot(place.clamp(0, capacity - 1), capacity) * kept.unsqueeze(-1)
        return kept.sum(0), where * logits.softmax(-1).unsqueeze(-1), where.bool()


class MaskBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = MaskRouter()
        self.used = torch.zeros(EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        used, weights, _ = self.router(x)
        if self.training and torch.is_grad_enabled():
            self.used += used
        return x + weights.sum((1, 2)).reshape(*x.shape[:-1], 1)


def test_a_mask_with_the_place_in_the_experts_batch(caplog):
    model = Model()
    model.layers = nn.ModuleList(MaskBlock() for _ in range(2))
    loads = train(model).expert_loads
    assert [layer.counts.tolist() for layer in loads] == [layer.used.long().tolist() for layer in model.layers]
    assert messages(caplog) == []
