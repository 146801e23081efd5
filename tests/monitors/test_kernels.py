"""How many operations, each of which is a kernel on an accelerator, the step path and an export launch there.

Counted on tensors without values, which take the ways of an accelerator: every operator but views.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from areal_callbacks.core.summary import empty_rows, merge_rows_, summarise_all
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType
from areal_callbacks.monitors.moe_balance.choices import Block, Choices, Row
from areal_callbacks.monitors.moe_balance.counting import Counter, add_routed, counting_ones, take
from areal_callbacks.monitors.throughput.histogram import LengthHistogram
from areal_callbacks.monitors.throughput.lengths import Rows

EXPERTS = 8
CUDA = torch.device("cuda:0")
_FREE = {"view", "_unsafe_view", "reshape", "expand", "slice", "select", "narrow", "alias", "unsqueeze", "squeeze"}
_FREE |= {
    "split",
    "split_with_sizes",
    "unbind",
    "detach",
    "t",
    "transpose",
    "permute",
    "empty",
    "empty_like",
    "as_strided",
}


class Kernels(TorchDispatchMode):
    """Counts kernels and copies to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []
        self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "_to_copy" and output.device.type == "cpu" and args[0].device.type == "cuda":
            self.copies += 1
        elif name not in _FREE:
            self.launched.append(name)
        return output


def on_gpu(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_a_router_that_is_counted_at_once(dtype: torch.dtype) -> None:
    counts, routed = on_gpu(EXPERTS + 2), on_gpu(16, EXPERTS, dtype=dtype)
    counting_ones(counts.device)  # as where a counter is made
    with Kernels() as kernels:
        add_routed(routed, counts)
    assert 0 < len(kernels.launched) <= 3, kernels.launched


@pytest.mark.parametrize("layers", [1, 4, 96])
def test_all_routers_of_a_step(layers: int) -> None:
    """One operation a step, whatever the number of routers, and a few more each 32 steps."""
    steps, block, choices = 64, Block(EXPERTS), Choices()
    rows, routed = [Row(block, pytest.fail) for _ in range(layers)], [on_gpu(32, 2) for _ in range(layers)]
    for row in rows:
        row.dtype = torch.int64  # a forward in which nothing was changed has ended
    counting_ones(block.on(routed[0].device).device)
    with Kernels() as kernels:
        for _ in range(steps):
            assert all(map(choices.keep, rows, routed))
            choices.end_forward()
    assert steps <= len(kernels.launched) <= steps + 10, kernels.launched


@pytest.mark.parametrize("number", [1, 13])
@pytest.mark.parametrize(("kind", "bound"), [(ReduceType.SUM, 4), (ReduceType.MIN, 5), (ReduceType.AVG_MIN_MAX, 6)])
def test_stats_under_one_mask(kind: ReduceType, bound: int, number: int) -> None:
    """Whatever their number; merging them into what was recorded before takes three more."""
    values, mask = [on_gpu(8, 4096, dtype=torch.float32) for _ in range(number)], on_gpu(8, 4096, dtype=torch.bool)
    summarise_all(values, mask, kind)
    with Kernels() as kernels:
        rows = summarise_all(values, mask, kind)
    assert 0 < len(kernels.launched) <= bound, kernels.launched
    with Kernels() as kernels:
        merge_rows_(empty_rows(number, rows.device), rows)
    assert [name for name in kernels.launched if name not in ("zeros", "fill_")] == ["add_", "minimum", "maximum"]


@pytest.mark.parametrize("elements", [64, 8192])
def test_a_stat_of_many_tensors_looks_at_its_mask_once(elements: int) -> None:
    tracker, mask = StatsTracker(), torch.ones(elements, dtype=torch.bool)
    tracker.denominator(valid=mask)
    with Kernels() as kernels:
        tracker.stat("valid", **{f"metric_{index}": torch.rand(elements) for index in range(13)})
    assert kernels.launched.count("sum") == (1 if elements == 64 else 14)  # large ones stay in the cache one by one


def test_counts_are_copied_to_the_host_once() -> None:
    with FakeTensorMode():
        block = Block(EXPERTS)
        for _ in range(4):
            block.add()
        block.on(CUDA)
        with Kernels() as kernels:
            take([block, *(Counter(EXPERTS, CUDA) for _ in range(4))])
    assert kernels.copies == 1


def test_masks_of_many_steps_are_counted_together() -> None:
    histogram, mask = LengthHistogram(), on_gpu(4, 128)
    with Kernels() as kernels:
        for _ in range(64):
            histogram.add_rows(Rows(4, 128, mask))
    assert 64 <= len(kernels.launched) <= 64 + 2 * 12, kernels.launched
