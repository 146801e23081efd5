"""Whatever a host reports becomes a Python number or None, and nothing raises."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.distributed import Ranks
from torch._subclasses import FakeTensorMode

from areal_callbacks.core.numbers import as_number, read_local


class Raising:
    """An object of a host that is not ready yet."""

    def __float__(self) -> float:
        raise RuntimeError("call setup() first")


class RaisingEverywhere:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def make_fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5),
        (-7, -7),
        (2**53 + 1, 2**53 + 1),
        (2**70, 2**70),
        (True, 1),
        (math.inf, math.inf),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.int64(3), 3),
        (np.uint8(255), 255),
        (np.bool_(True), 1.0),
        (np.array(2), 2.0),
        (np.array([[2.5]]), 2.5),
        (torch.tensor(3), 3.0),
        (torch.tensor(True), 1.0),
        (torch.tensor([[1.5]], dtype=torch.bfloat16), 1.5),
        (torch.tensor(2.5, requires_grad=True), 2.5),
        (torch.nn.Parameter(torch.ones(1)), 1.0),
    ],
)
def test_one_real_number_keeps_its_value_and_integers_their_digits(value: Any, expected: float) -> None:
    with warnings.catch_warnings(action="error"):
        number = as_number(value)
    assert (type(number), number) == (type(expected), expected)


@pytest.mark.parametrize("value", [math.nan, np.float32("nan"), torch.tensor(math.nan), Decimal("nan")])
def test_nan_stays(value: Any) -> None:
    number = as_number(value)
    assert type(number) is float
    assert math.isnan(number)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "1.5",
        b"1.5",
        bytearray(b"1.5"),
        memoryview(b"1.5"),
        np.str_("1.5"),
        np.array("1.5"),
        [1.0],
        {},
        1j,
        np.complex64(1),
        np.array(1j),
        torch.tensor(1j),
        10**400,
        -(10**400),
        Fraction(10**400),
        Decimal("sNaN"),
        np.zeros(2),
        np.zeros(0),
        np.ma.masked,
        np.ma.array([1.0], mask=[True]),
        np.datetime64("2024-01-01"),
        torch.zeros(2),
        torch.zeros(0),
        torch.ones((), device="meta"),
        make_fake(),
        Raising(),
        float,
    ],
)
def test_what_is_not_one_real_number_is_none(value: Any) -> None:
    with warnings.catch_warnings(action="error"):
        assert as_number(value) is None


def test_an_object_that_raises_at_every_attribute_is_none() -> None:
    assert as_number(RaisingEverywhere()) is None


def test_a_real_tensor_under_a_fake_mode_is_none() -> None:
    tensor = torch.ones(())
    with FakeTensorMode():
        assert as_number(tensor) is None


@given(st.floats() | st.integers(-(10**300), 10**300) | st.booleans())
def test_every_python_number_is_itself(value: float) -> None:
    number = as_number(value)
    assert number is not None
    assert number == value or (math.isnan(number) and math.isnan(value))
    assert type(number) is (float if isinstance(value, float) else int)


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_numpy_integer_keeps_all_digits(value: int) -> None:
    assert as_number(np.int64(value)) == value


# -- DTensors


def read_distributed_scalars(group: Any) -> dict[str, Any]:
    """Of rank 0 alone: were reading a collective, it would wait for the other rank for ever."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    one, two = init_device_mesh("cpu", (2, 1)), init_device_mesh("cpu", (2,))
    local = torch.tensor([1.5], requires_grad=True)
    scalars = {
        "replicated": DTensor.from_local(local, two, [Replicate()]),
        "partial": DTensor.from_local(local, two, [Partial()]),
        "average": DTensor.from_local(local, two, [Partial("avg")]),
        "shard": DTensor.from_local(local, two, [Shard(0)], shape=torch.Size([1]), stride=(1,)),
        "partial over one rank": DTensor.from_local(local, one, [Replicate(), Partial()]),
        "sharded over one rank": DTensor.from_local(local, one, [Replicate(), Shard(0)]),
        "vector": DTensor.from_local(torch.ones(2), two, [Replicate()]),
    }
    if torch.distributed.get_rank(group) != 0:
        return {}
    found = {name: as_number(scalar) for name, scalar in scalars.items()}
    kept = read_local(scalars["replicated"])
    assert type(kept) is torch.Tensor
    assert not kept.requires_grad
    return found


@pytest.mark.slow
def test_a_dtensor_is_read_only_where_this_rank_holds_all_of_it(two_ranks: Ranks) -> None:
    first, _ = two_ranks.run(read_distributed_scalars)
    assert first == {
        "replicated": 1.5,
        "partial": None,
        "average": None,
        "shard": None,
        "partial over one rank": 1.5,
        "sharded over one rank": 1.5,
        "vector": None,
    }


def test_the_conversion_loads_no_torch() -> None:
    code = (
        "import sys; from areal_callbacks.core.numbers import as_number;"
        " assert as_number(1) == 1; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
