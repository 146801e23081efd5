"""Routers in the forms of libraries that are not installed for the tests; tests/stacks/ has those that install."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.readback import messages
from torch import Tensor, nn

from areal_callbacks import MetricsSession
from areal_callbacks.monitors.moe_balance.routers import find_routers, find_unrecognised_routers

EXPERTS, TOP_K, WIDTH = 5, 2, 8


class TokenChoiceTopKRouter(nn.Module):
    """As in torchtune: puts out sorted scores, places of tokens and counts, and keeps what it chose."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.num_experts, self.experts_per_token = EXPERTS, TOP_K

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores, self.selected_experts_indices = self.gate(x).sigmoid().topk(TOP_K, dim=1)
        chosen = self.selected_experts_indices.flatten()
        order = chosen.argsort(stable=True)
        return scores.flatten()[order], order // TOP_K, torch.histc(chosen.float(), EXPERTS, 0, EXPERTS)


class SortedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.given = TokenChoiceTopKRouter(), torch.zeros(EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, WIDTH)
        scores, tokens, counts = self.router(rows)
        if self.training and torch.is_grad_enabled():
            self.given += counts
        return rows.index_add(0, tokens, rows[tokens] * scores[:, None]).reshape(x.shape)


class MoERouterV2(nn.Module):
    """As in OLMo-core: one class chooses the routed experts, and weighs all shared ones without choosing."""

    def __init__(self, experts: int, top_k: int) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts, bias=False)
        self.num_experts, self.top_k = experts, top_k

    def forward(self, x: Tensor, scores_only: bool) -> tuple[Tensor, Tensor | None]:
        scores = self.gate(x).softmax(-1)
        return (scores, None) if scores_only else tuple(scores.topk(self.top_k))


class SharedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.routed_experts_router, self.shared_experts_router = MoERouterV2(EXPERTS, TOP_K), MoERouterV2(2, 2)
        self.given = torch.zeros(EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.routed_experts_router(x, False)
        shares, _ = self.shared_experts_router(x, True)
        if self.training and torch.is_grad_enabled():
            self.given += torch.bincount(chosen.flatten(), minlength=EXPERTS)
        return x * (weights.sum(-1, keepdim=True) + shares.sum(-1, keepdim=True))


class Model(nn.Module):
    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("block", [SortedBlock, SharedBlock])
def test_counts_are_what_the_block_gives_its_experts(block: Any, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.chdir(tmp_path)
    model = Model(block)
    assert len(find_routers(model)) == 2
    assert find_unrecognised_routers(model) == []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with MetricsSession(throughput=False, flops=False, report=False) as session:
        session.attach(model, optimizer, begin_with_forward=True)
        for step in range(3):
            model(torch.randn(2, 3 + step, WIDTH)).sum().backward()
            optimizer.step()
        with torch.no_grad():
            model(torch.randn(1, 4, WIDTH))
        loads = session.export(3).expert_loads
    assert [layer.counts.tolist() for layer in loads] == [layer.given.tolist() for layer in model.layers]
    assert all(int(layer.counts.sum()) == TOP_K * 2 * (3 + 4 + 5) for layer in loads)
    assert messages(caplog) == []
