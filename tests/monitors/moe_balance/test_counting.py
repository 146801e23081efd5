"""The counting operators: exact, unable to fail on a device, and never waiting for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.readback import messages
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from areal_callbacks.monitors.moe_balance import running_counts
from areal_callbacks.monitors.moe_balance.contracts import CONTRACTS, expert_indices
from areal_callbacks.monitors.moe_balance.counting import (
    Counter,
    CountingSwitch,
    add_clamped,
    add_routed,
    count,
    take,
)
from areal_callbacks.monitors.training_forward import TrainingForward

EXPERTS = 5


@contextmanager
def turn_switch(is_on: bool = True) -> Iterator[int]:
    """The number of a switch in that state."""
    forward = TrainingForward()
    switch = CountingSwitch(forward)
    forward._begun_outside = torch._C._current_graph_task_id() if is_on else None  # as a lookup in an embedding does
    yield switch.number


def cells(ids: np.ndarray, experts: int) -> list[int]:
    """Not routed, experts, no experts: by comparison, one value after the other."""
    places = [0 if value < 0 else min(value, experts) + 1 for value in ids.ravel().tolist()]
    return [places.count(place) for place in range(experts + 2)]


@settings(deadline=None)
@given(
    st.integers(1, 9).flatmap(lambda experts: st.tuples(st.just(experts), st.lists(st.integers(-3, 12), max_size=40))),
    st.sampled_from([torch.int64, torch.int32, torch.int16, torch.int8]),
)
def test_indices_of_any_value_find_their_cell(given_ids: tuple[int, list[int]], dtype: torch.dtype) -> None:
    experts, ids = given_ids
    counts = torch.zeros(experts + 2, dtype=torch.int64)
    add_routed(torch.tensor(ids, dtype=dtype), counts)
    assert counts.tolist() == cells(np.array(ids), experts)
    add_clamped(torch.tensor(ids, dtype=torch.int64), counts)  # as on an accelerator
    assert counts.tolist() == [2 * value for value in cells(np.array(ids), experts)]


def test_the_largest_unsigned_index_is_no_expert() -> None:
    counts = torch.zeros(EXPERTS + 2, dtype=torch.int64)
    add_routed(torch.tensor([[255, 0]], dtype=torch.uint8), counts)
    assert counts.tolist() == [0, 1, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("width", [3, EXPERTS, EXPERTS + 1, EXPERTS + 4])
def test_a_mask_of_any_width(width: int) -> None:
    mask = torch.rand(2, 7, width, generator=torch.Generator().manual_seed(width)) < 0.4
    counts = torch.zeros(EXPERTS + 2, dtype=torch.int64)
    add_routed(mask, counts)
    add_routed(mask.float() * 0.3, counts)
    by_column = 2 * mask.numpy().reshape(-1, width).sum(0)
    assert counts[1 : EXPERTS + 1].tolist() == [*by_column[:EXPERTS], *[0] * (EXPERTS - width)]
    assert counts[0] == 0


def test_nothing_is_counted_while_the_switch_is_off() -> None:
    counter = Counter(EXPERTS, torch.device("cpu"))
    for is_on in (False, True):
        with turn_switch(is_on) as switch:
            count(torch.tensor([0, 1]), counter, switch)
        assert bool(counter.home.any()) == is_on
    count(torch.tensor([0, 1]), counter, 10**9)  # of a session that is gone
    assert counter.home.sum() == 2


def test_taking_starts_over_and_keeps_different_widths() -> None:
    counters = [Counter(3, torch.device("cpu")), Counter(5, torch.device("cpu"))]
    with turn_switch() as switch:
        count(torch.tensor([2, 2]), counters[0], switch)
        count(torch.tensor([4, -1]), counters[1], switch)
    assert [row.tolist() for row in take(counters)] == [[0, 0, 0, 2, 0], [1, 0, 0, 0, 0, 1, 0]]
    assert not any(row.any() for row in take(counters))
    assert take([]) == []


def test_a_choice_on_another_device_is_counted_there() -> None:
    counter = Counter(3, torch.device("meta"))  # where nothing can be counted
    with turn_switch() as switch:
        for _ in range(2):
            count(torch.tensor([0, 2, 2]), counter, switch)
    assert len(counter.cells) == 2
    assert counter.on(torch.device("cpu")).tolist() == [0, 2, 0, 4, 0]


def test_counters_made_under_inference_mode_count_in_training() -> None:
    with torch.inference_mode():
        counter = Counter(3, torch.device("cpu"))
    with turn_switch() as switch:
        count(torch.tensor([1]), counter, switch)
    assert counter.home.tolist() == [0, 0, 1, 0, 0]


def test_what_cannot_be_counted_is_reported_and_does_not_raise(caplog: pytest.LogCaptureFixture) -> None:
    with turn_switch() as switch:
        torch.ops.areal_callbacks.count_routed(torch.tensor([1]), torch.zeros(5), switch)
    (message,) = messages(caplog)
    assert message.startswith("routed assignments could not be counted: ")


# -- the device


SYNCHRONISING = {
    "aten._local_scalar_dense",
    "aten.item",
    "aten.nonzero",
    "aten.unique_consecutive",
    "aten._unique2",
    "aten.bincount",
    "aten.masked_select",
    "aten.equal",
    "aten.is_nonzero",
}


class Watch(TorchDispatchMode):
    """Keeps the operators that ran and refuses those that wait for the device or move data off it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket)
        self.seen.append(name)
        assert name not in SYNCHRONISING, f"{name} waits for the device"
        tensors = [value for value in (*args, output) if isinstance(value, Tensor)]
        devices = {value.device.type for value in tensors}
        assert devices <= {"cuda"}, f"{name} mixes {devices}"
        return output


def on_fake_gpu(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device="cuda:0")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32])
def test_counting_on_a_gpu_never_waits_for_it(dtype: torch.dtype) -> None:
    with FakeTensorMode():
        routed, counts = on_fake_gpu(8, EXPERTS, dtype=dtype), on_fake_gpu(EXPERTS + 2)
        with Watch() as watch:
            add_routed(routed, counts)
            before, grown, last = (on_fake_gpu(EXPERTS + 2) for _ in range(3))
            running_counts._keep_totals(on_fake_gpu(EXPERTS), before)
            running_counts._count_totals(on_fake_gpu(EXPERTS), before, grown, last, True)
    assert watch.seen


def test_reading_a_routers_choice_never_waits_for_the_gpu() -> None:
    with FakeTensorMode():
        router = torch.nn.Module()
        router.top_k = 2
        logits, ids, weights = on_fake_gpu(8, 4, dtype=torch.float32), on_fake_gpu(8, 2), on_fake_gpu(8, 2)
        outputs = {
            "SwitchTransformersTop1Router": (on_fake_gpu(8, 4), logits),
            "Llama4Router": (logits, logits),
            "NllbMoeTop2Router": (ids, logits, logits),
            "JetMoeTopKGating": (ids, ids, ids, [1], logits),
            "ZayaRouter": (logits, weights, ids),
            "DbrxExperts": (logits, ids),
        }
        assert outputs.keys() | {"TopKRouter"} == {name for name, contract in CONTRACTS.items() if contract}
        with Watch() as watch:
            assert expert_indices(router, (logits, weights.float(), ids)) is ids
            for name, output in outputs.items():
                CONTRACTS[name].read(router, output)
    assert watch.seen


def test_the_watch_sees_what_waits() -> None:
    with FakeTensorMode():
        ids = on_fake_gpu(4)
        with pytest.raises(AssertionError, match="mixes"), Watch():
            ids.cpu()
        with pytest.raises(Exception, match=r"item|data|scalar"), Watch():
            ids.sum().item()
