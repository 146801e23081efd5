"""Choices that wait until a forward has ended are counted as if each had been counted when it was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from support.observed_moe import Observed, by_hand
from support.readback import messages
from support.toy_moe import LAYERS, ToyMoE, batches
from torch import Tensor, nn

from areal_callbacks.monitors.moe_balance import choices as choices_module
from areal_callbacks.monitors.moe_balance.choices import Block, Choices, Row

EXPERTS = 4


class Router(nn.Module):
    """Puts out the indices that it was told."""

    num_experts, top_k = EXPERTS, 2

    def __init__(self) -> None:
        super().__init__()
        self.chosen = torch.zeros(0, 2, dtype=torch.int64)

    def forward(self, _: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(self.chosen), EXPERTS), self.chosen


class TopKRouter2(Router):
    """Named like one."""


class Routers(nn.Module):
    """Calls its routers in a given order, and then does something."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"router": TopKRouter2()}) for _ in range(number))
        self.after: Callable[[Any], None] = lambda _: None

    def forward(self, order: list[int], chosen: list[Tensor]) -> None:
        for layer, ids in zip(order, chosen):
            router = self.layers[layer]["router"]
            router.chosen = ids
            router(torch.zeros(1))
        self.after(chosen)


def clear(_: nn.Module, __: Any, output: tuple[Tensor, ...]) -> None:
    """As an expert-parallel layer may turn the ids of all experts into those of its own."""
    output[1].zero_()


def cells(ids: list[Tensor]) -> list[int]:
    """Assignments per expert, one value after the other."""
    values = [value for each in ids for value in each.reshape(-1).tolist()]
    return [values.count(expert) for expert in range(EXPERTS)]


def random_indices(rows: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Some of them no experts."""
    return torch.from_numpy(np.random.default_rng(seed).integers(-2, EXPERTS + 3, (rows, 2))).to(dtype)


dtypes = st.sampled_from([torch.int64, torch.int32, torch.int8])
indices = st.builds(random_indices, st.integers(0, 3), st.integers(0, 2**31), dtypes)
forwards = st.lists(st.tuples(st.integers(0, 3), indices), max_size=12)


@settings(deadline=None, max_examples=60)
@given(st.lists(forwards, max_size=6), st.integers(0, 6), st.sampled_from([1 << 22, 9]))
def test_any_order_of_routers_and_shapes(trained: list[Any], taken_after: int, held: int) -> None:
    """Also indices that are no experts, several forwards, and more than may be held."""
    model, expected = Routers(4), [list[Tensor]() for _ in range(4)]
    observed, total = Observed(model), np.zeros((4, EXPERTS), dtype=int)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices_module, "MOST_HELD", held)
        for number, calls in enumerate(trained):
            if number == taken_after:
                total += list(observed.counts().values())
            model([layer for layer, _ in calls], [ids for _, ids in calls])
            for layer, ids in calls:
                expected[layer].append(ids)
    total += list(observed.counts().values())
    assert total.tolist() == [cells(each) for each in expected]


def test_routers_with_different_numbers_of_experts() -> None:
    model, data = ToyMoE(experts=(6, 6, 3, 5, 5)), batches(3)
    observed = Observed(model)
    for batch in data:
        model(batch)
    assert {name: row + [0] * (6 - len(row)) for name, row in observed.counts().items()} == by_hand(model, data)


def test_indices_that_are_always_changed_in_place_are_counted_before(caplog: pytest.LogCaptureFixture) -> None:
    model, data = ToyMoE(), batches(3)
    for layer in model.layers.values():
        layer.router.register_forward_hook(clear)
    expected = by_hand(model, data)
    observed = Observed(model)
    for batch in data:
        model(batch)
    assert observed.counts() == expected
    assert not messages(caplog)


def test_indices_that_are_changed_only_later_cost_their_router(caplog: pytest.LogCaptureFixture) -> None:
    model, data = ToyMoE(), batches(3)
    expected = by_hand(model, data)
    observed = Observed(model)
    model(data[0])
    handle = model.layers["3"].router.register_forward_hook(clear)
    model(data[1])
    handle.remove()
    model(data[2])
    assert observed.counts() == {name: row for name, row in expected.items() if name != "/3"}
    (message,) = messages(caplog)
    assert "layers.3.router" in message
    assert "changed in place" in message


class Reusing(Routers):
    """All routers write their indices into one buffer."""

    def forward(self, order: list[int], chosen: list[Tensor]) -> None:
        buffer = torch.zeros_like(chosen[0])
        for layer, ids in zip(order, chosen):
            torch.from_numpy(buffer.numpy()).copy_(ids)  # no version tells it
            router = self.layers[layer]["router"]
            router.chosen = buffer.view(buffer.shape)
            router(torch.zeros(1))


def test_indices_in_memory_that_is_used_again_are_counted_before(caplog: pytest.LogCaptureFixture) -> None:
    model = Reusing(3)
    observed = Observed(model)
    chosen = [torch.randint(0, EXPERTS, (5, 2), generator=torch.Generator().manual_seed(n)) for n in range(3)]
    for _ in range(2):
        model([0, 1, 2], chosen)
    assert list(observed.counts().values()) == [cells([ids] * 2) for ids in chosen]
    assert not messages(caplog)


class KeepingBuffers(Routers):
    """Each router writes its indices into a buffer of its own, the same in all forwards."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.kept = [torch.zeros(5, 2, dtype=torch.int64) for _ in range(number)]

    def forward(self, order: list[int], chosen: list[Tensor]) -> None:
        for buffer, ids in zip(self.kept, chosen):
            torch.from_numpy(buffer.numpy()).copy_(ids)  # no version tells it
        super().forward(order, [buffer.view(buffer.shape) for buffer in self.kept])


def test_indices_in_memory_that_the_next_forward_uses_are_counted_before(caplog: pytest.LogCaptureFixture) -> None:
    model, expected = KeepingBuffers(2), [list[Tensor]() for _ in range(2)]
    observed = Observed(model)
    for seed in range(4):
        chosen = [random_indices(5, 10 * seed + layer, torch.int64).clamp(0, EXPERTS - 1) for layer in range(2)]
        model([0, 1], chosen)
        for kept, ids in zip(expected, chosen):
            kept.append(ids)
    assert list(observed.counts().values()) == [cells(each) for each in expected]
    assert not messages(caplog)


@pytest.mark.parametrize(("columns", "waiting"), [(2, 4), (64, 0)])
def test_choices_wait_for_further_forwards_unless_they_hold_more_memory(columns: int, waiting: int) -> None:
    choices, row = Choices(), Row(Block(EXPERTS), pytest.fail)
    made = [torch.ones(3, columns, dtype=torch.int64) for _ in range(5)]
    for each in made:
        choices.keep(row, each[:, :2])
        choices.end_forward()
    assert len(choices._kept) == waiting


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_ran_before_an_exception_counts(error: type[BaseException]) -> None:
    model, data = ToyMoE(), batches(2)
    expected = [by_hand(model, data[:1]), by_hand(model, data)]
    observed = Observed(model)
    model(data[0])

    def fail(_: nn.Module, __: Any) -> None:
        raise error

    model.layers["2"].register_forward_pre_hook(fail)
    with pytest.raises(error):
        model(data[1])
    counted = observed.counts()
    assert [counted[f"/{layer}"] for layer in range(LAYERS)] == [
        *(expected[1][f"/{layer}"] for layer in (0, 1)),
        *(expected[0][f"/{layer}"] for layer in (2, 3)),
    ]


def test_indices_of_inference_mode_do_not_wait() -> None:
    with torch.inference_mode():
        made = torch.tensor([[0, 3]])
    choices, row = Choices(), Row(Block(EXPERTS), pytest.fail)
    assert not choices.keep(row, made)
    choices.keep(row, torch.tensor([[0, 1]]))
    choices.end_forward()
    assert choices.keep(row, torch.tensor([[0, 1]]))
    assert not choices.keep(row, made)


def test_masks_and_large_choices_on_the_cpu_do_not_wait() -> None:
    choices, row = Choices(), Row(Block(EXPERTS), pytest.fail)
    for _ in range(2):
        assert not choices.keep(row, torch.ones(4, EXPERTS, dtype=torch.bool))
        assert not choices.keep(row, torch.zeros(choices_module.MOST_ON_CPU + 1, dtype=torch.int64))
        choices.end_forward()


def test_what_is_held_is_bounded() -> None:
    choices, row = Choices(), Row(Block(EXPERTS), pytest.fail)
    choices.keep(row, torch.zeros(1, 2, dtype=torch.int64))
    choices.end_forward()
    for _ in range(40):
        assert choices.keep(row, torch.zeros(2000, 2, dtype=torch.int64))
        choices.end_forward()
        assert len(choices._groups) < 32
    choices.count()
    assert row.block.split(row.block.cells[0]).tolist() == [[0, 40 * 4000, 0, 0, 0, 0]]
