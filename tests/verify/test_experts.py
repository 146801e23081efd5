"""Assignments that the recount reads at the experts, against NumPy on the routers' logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.tiny_moe import tiny_model
from support.toy_moe import WIDTH, ToyMoE, batches, routed_by_hand
from torch import Tensor, nn

from areal_callbacks.verify import Recount

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:transformers", "ignore::FutureWarning:transformers")

ROUTERS = {
    "qwen3_moe": "Qwen3MoeTopKRouter",
    "mixtral": "MixtralTopKRouter",
    "olmoe": "OlmoeTopKRouter",
    "gpt_oss": "GptOssTopKRouter",
}


def choose(router: Any, hidden: Tensor) -> npt.NDArray[np.int64]:
    """Counts of the largest logits, in NumPy, in the router's own precision."""
    bias = getattr(router, "bias", None)
    logits = hidden.detach().numpy().reshape(-1, hidden.shape[-1]) @ router.weight.detach().numpy().T
    logits = logits if bias is None else logits + bias.detach().numpy()
    chosen = np.argsort(-logits, axis=-1)[:, : router.top_k]
    return np.bincount(chosen.ravel(), minlength=len(router.weight))


@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
@pytest.mark.parametrize("family", ROUTERS)
def test_the_families_of_transformers(family: str, experts: str) -> None:
    model = tiny_model(family)
    model.config._experts_implementation = experts
    for name, parameter in model.named_parameters():
        if "gate.weight" in name or "router.weight" in name:
            torch.nn.init.normal_(parameter)
    expected: list[list[int]] = []
    routers = [module for module in model.modules() if type(module).__name__ == ROUTERS[family]]
    assert routers
    for router in routers:
        router.register_forward_pre_hook(lambda module, args: expected.append(choose(module, args[0]).tolist()))
    ids = torch.randint(96, (2, 12), generator=torch.Generator().manual_seed(0))
    with Recount(model) as recount:
        model(input_ids=ids).logits.sum().backward()
    assert list(recount.totals.routed.values()) == expected
    assert all(sum(counts) == 24 * routers[0].top_k for counts in expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_layers_count_once(reentrant: bool) -> None:
    model = tiny_model("deepseek_v3")
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with Recount(model) as recount:
        model(input_ids=torch.randint(96, (2, 12))).logits.sum().backward()
    assert [layer for _, layer in recount.totals.routed] == [1, 2, 3]
    assert all(sum(counts) == 48 for counts in recount.totals.routed.values())


class Block(nn.Module):
    """Experts that are modules of their own, each given its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.cat([self.experts[0](rows[:3]), self.experts[2](rows[3:])])


def test_a_list_of_experts() -> None:
    block = Block()
    with Recount(block, nn.Sequential(block), block) as recount:
        block(torch.randn(5, WIDTH)).sum().backward()
        with torch.no_grad():
            block(torch.randn(5, WIDTH))
    assert recount.totals.routed == {("", 0): [3, 0, 2]}


def test_experts_that_are_told_how_many_rows_are_theirs() -> None:
    model, (batch,) = ToyMoE(), batches(1)
    with Recount(model) as recount:
        model(batch).sum().backward()
    assert list(recount.totals.routed.values()) == routed_by_hand(model, [batch]).tolist()


def test_experts_that_join_later_are_named() -> None:
    block = Block()
    with Recount(block) as recount:
        block(torch.randn(5, WIDTH))
        assert not recount.totals.unread
        block.experts.append(nn.Linear(WIDTH, WIDTH))
        block(torch.randn(5, WIDTH))
    (problem,) = recount.totals.unread
    assert "4 experts, which were 3" in problem
