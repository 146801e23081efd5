"""Rows (sum, count, minimum, maximum) against NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from areal_callbacks.core import summary
from areal_callbacks.core.summary import (
    empty_rows,
    merge_rows_,
    summarise,
    summarise_all,
    summarise_each,
    summarise_number,
)
from areal_callbacks.core.types import ReduceType

quietly = settings(deadline=None)
numbers = st.lists(st.floats(-1e6, 1e6, width=32) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=8)


def reference(values):
    """The row of some numbers; NumPy's minimum and maximum carry NaN as ours must."""
    array = np.array(values, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return [array.sum(), array.size, np.min(array, initial=math.inf), np.max(array, initial=-math.inf)]


def row(values, kind=ReduceType.AVG_MIN_MAX):
    tensor = torch.tensor(values, dtype=torch.float64)
    return summarise(tensor, torch.ones_like(tensor, dtype=torch.bool), kind)


@quietly
@given(numbers)
def test_a_row_says_what_numpy_says(values):
    np.testing.assert_allclose(row(values).numpy(), reference(values), rtol=1e-12, atol=1e-9)


@quietly
@given(numbers, numbers)
def test_merging_two_rows_is_the_row_of_both_in_either_order(first, second):
    for left, right in ((first, second), (second, first)):
        merged = row(left)
        merge_rows_(merged, row(right))
        np.testing.assert_allclose(merged.numpy(), reference(left + right), rtol=1e-12, atol=1e-9)


@quietly
@given(numbers, st.data())
def test_only_the_masked_elements_count(values, data):
    mask = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    tensor = torch.tensor(values, dtype=torch.float64)
    result = summarise(tensor, torch.tensor(mask, dtype=torch.bool), ReduceType.AVG_MIN_MAX)
    chosen = [value for value, here in zip(values, mask) if here]
    np.testing.assert_allclose(result.numpy(), reference(chosen), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ReduceType.AVG, [3.0, 2.0, math.inf, -math.inf]),
        (ReduceType.SUM, [3.0, 2.0, math.inf, -math.inf]),
        (ReduceType.MIN, [3.0, 2.0, 1.0, -math.inf]),
        (ReduceType.MAX, [3.0, 2.0, math.inf, 2.0]),
        (ReduceType.AVG_MIN_MAX, [3.0, 2.0, 1.0, 2.0]),
        (ReduceType.DENOMINATOR, [0.0, 2.0, math.inf, -math.inf]),
    ],
)
def test_columns_that_nobody_reads_stay_neutral(kind, expected):
    assert row([1.0, 2.0], kind).tolist() == expected


def test_the_row_of_a_number_and_of_nothing():
    assert summarise_number(torch.tensor([[16777217]])).tolist() == [16777217.0, 1.0, math.inf, -math.inf]
    assert empty_rows(2).tolist() == [[0.0, 0.0, math.inf, -math.inf]] * 2


# -- many tensors under one mask


class StandIn(torch.Tensor):
    """A tensor of another library: only torch's own operations can read it."""


SIZES = [1, 7, 4096, 4097, 9000]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OTHERS = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float8_e4m3fn]


def generated(size, dtype, seed):
    """Values that the dtype holds, with non-finite ones where it has them, and a mask that leaves some of each out."""
    source = np.random.default_rng(seed)
    numbers = source.integers(0, 2 if dtype in (torch.bool, torch.float8_e4m3fn) else 100, size).astype(np.float64)
    if dtype in FLOATS:
        for special in (math.nan, math.inf, -math.inf, -0.0):
            numbers[source.random(size) < 0.01] = special
        numbers[source.random(size) < 0.5] *= -1
    mask = source.random(size) < 0.6
    if seed % 2:
        mask &= np.isfinite(numbers)  # what is not finite is padding
    return torch.from_numpy(numbers).to(dtype), torch.from_numpy(mask)


@pytest.mark.parametrize("kind", [kind for kind in ReduceType if kind is not ReduceType.SCALAR])
@pytest.mark.parametrize("stand_in", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_tensors_of_all_dtypes_under_one_mask_say_what_numpy_says(size, stand_in, kind):
    for seed in (0, 1):
        tensors = [generated(size, dtype, seed)[0] for dtype in FLOATS + OTHERS]
        mask = generated(size, torch.float32, seed)[1]
        brought = [values.as_subclass(StandIn) for values in tensors] if stand_in else tensors
        rows = torch.Tensor(summarise_all(brought, mask, kind)).double().numpy()
        for got, values in zip(rows, tensors):
            expected = np.array(reference(values.double().numpy()[mask.numpy()]))
            read = READ[kind]
            np.testing.assert_allclose(got[read], expected[read], rtol=1e-12, atol=1e-9)
            unread = [column for column in range(4) if column not in read]
            if kind is ReduceType.DENOMINATOR:
                assert got[unread].tolist() == [0.0, math.inf, -math.inf]
            else:
                assert got[unread].tolist() == [[0, 0, math.inf, -math.inf][column] for column in unread]


READ = {
    ReduceType.AVG_MIN_MAX: [0, 1, 2, 3],
    ReduceType.AVG: [0, 1],
    ReduceType.SUM: [0, 1],
    ReduceType.MIN: [0, 1, 2],
    ReduceType.MAX: [0, 1, 3],
    ReduceType.DENOMINATOR: [1],
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (3, 5000), (2, 3, 4)])
def test_tensors_of_any_shape_and_layout(dtype, shape):
    values = torch.randn(shape).to(dtype)
    mask = torch.rand(shape) < 0.5
    layouts = [values, values.transpose(0, -1).contiguous().transpose(0, -1) if shape else values]
    for row in summarise_all([*layouts, torch.zeros((), dtype=dtype).expand(shape)], mask, ReduceType.AVG_MIN_MAX)[:2]:
        np.testing.assert_allclose(row, reference(values[mask].double().numpy()), rtol=1e-12, atol=1e-9)


def test_a_stack_is_made_in_parts_of_bounded_size(monkeypatch):
    tensors = [torch.full((5,), float(number)) for number in range(7)]
    monkeypatch.setattr(summary, "_AT_ONCE", 11)
    rows = summarise_all(tensors, torch.tensor([True, False, True, True, False]), ReduceType.AVG_MIN_MAX)
    assert rows.tolist() == [[3.0 * number, 3.0, number, number] for number in range(7)]


def test_each_tensor_takes_the_mask_of_its_name():
    first, second = torch.tensor([True, False]), torch.tensor([True, True])
    values = torch.tensor([1.0, 2.0])
    rows = summarise_each(dict.fromkeys("abc", values), {"a": first, "b": second, "c": first}, ReduceType.SUM)
    assert {name: row[:2].tolist() for name, row in rows.items()} == {"a": [1, 1], "b": [3, 2], "c": [1, 1]}


class Kernels(TorchDispatchMode):
    """Names of the operations that compute or copy; views cost nothing on a device."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def kernels(device, count, size=64, kind=ReduceType.AVG_MIN_MAX):
    tensors = [torch.ones(size, device=device) for _ in range(count)]
    mask = torch.ones(size, dtype=torch.bool, device=device)
    summarise_all(tensors, mask, kind)  # constants are made once
    with Kernels() as operations:
        summarise_all(tensors, mask, kind)
    return operations.names


@pytest.mark.parametrize("kind", [ReduceType.AVG_MIN_MAX, ReduceType.SUM])
def test_an_accelerator_runs_as_many_kernels_for_13_tensors_as_for_one(kind):
    assert len(kernels("meta", 1, kind=kind)) == len(kernels("meta", 13, kind=kind))
    assert len(kernels("meta", 13, kind=kind)) <= 12


def test_large_tensors_on_the_cpu_cost_nine_operations_each():
    assert len(kernels("cpu", 13, size=5000)) - len(kernels("cpu", 1, size=5000)) <= 12 * 9


@pytest.mark.parametrize("size", [64, 5000])
def test_nothing_waits_for_a_device(size):
    waiting = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"}
    assert not waiting & set(kernels("cpu", 13, size=size))
