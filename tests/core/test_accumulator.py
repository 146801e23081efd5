"""One running summary per key, however keys come together, against plain Python."""

from __future__ import annotations

import math
import random

import pytest
import torch

from areal_callbacks.core.accumulator import Accumulator
from areal_callbacks.core.types import ReduceType

KEYS = [f"k{index}" for index in range(9)]


def row(number):
    return torch.tensor([number, 1.0, number, number], dtype=torch.float64)


@pytest.mark.parametrize("seed", range(20))
def test_keys_recorded_together_apart_forgotten_and_recorded_again(seed):
    source, accumulator, model = random.Random(seed), Accumulator(), {}
    for _ in range(60):
        if source.random() < 0.2:
            key = source.choice(KEYS)
            accumulator.take(key, reset=True)
            model.pop(key, None)
        else:
            keys = source.sample(KEYS, source.randrange(1, 6))
            numbers = {key: float(source.randrange(100)) for key in keys}
            accumulator.add_rows(ReduceType.AVG_MIN_MAX, {key: row(number) for key, number in numbers.items()})
            for key, number in numbers.items():
                model.setdefault(key, []).append(number)
    records = accumulator.take(None, reset=False)
    told = {key: values for (key, _), values in zip(records.keys, records.rows.tolist())}
    assert told == {key: [sum(each), len(each), min(each), max(each)] for key, each in model.items()}


def test_scalars_of_one_name_under_several_prefixes():
    accumulator = Accumulator()
    for prefix in ("", "a/", "a/b/", "a/"):
        accumulator.add_scalars(prefix, {"x": 1.0, "b/x": 2.0})
    accumulator.add_scalars("a/b/", {"x": 3})
    accumulator.add_scalars("a/b/", {"x": torch.tensor(4.0)})
    records = accumulator.take(None, reset=True)
    told = {key: values[:2] for (key, _), values in zip(records.keys, records.rows.tolist())}
    assert told == {
        "x": [1.0, 1.0],
        "b/x": [2.0, 1.0],
        "a/x": [2.0, 2.0],
        "a/b/x": [2 * 2.0 + 1.0 + 3.0 + 4.0, 5.0],
        "a/b/b/x": [2.0, 1.0],
    }
    assert accumulator.take(None, reset=True).keys == ()


def test_a_forgotten_scalar_starts_over_and_may_change_its_kind():
    accumulator = Accumulator()
    accumulator.add_scalars("s/", {"x": 1.0, "y": 5.0})
    accumulator.take("s/x", reset=True)
    accumulator.add_scalars("s/", {"x": 2.0, "y": 5.0})
    assert accumulator.take("s/x", reset=True).rows.tolist() == [[2.0, 1.0, math.inf, -math.inf]]
    accumulator.add_rows(ReduceType.SUM, {"s/x": row(7.0)})
    with pytest.raises(ValueError, match="recorded as SUM"):
        accumulator.add_scalars("s/", {"y": 1.0, "x": 1.0})
    assert accumulator.take("s/y", reset=False).rows[:, :2].tolist() == [[10.0, 2.0]]


def test_one_bad_number_among_good_ones_records_none():
    accumulator = Accumulator()
    accumulator.add_scalars("", {"x": 1.0, "y": 1.0})
    for bad in ({"x": 1.0, "y": "no"}, {"y": None, "x": 1.0}, {"x": 1.0, "z": 10**400}):
        with pytest.raises(ValueError, match="must be a real number"):
            accumulator.add_scalars("", bad)
    records = accumulator.take(None, reset=False)
    assert [key for key, _ in records.keys] == ["x", "y"]
    assert records.rows[:, :2].tolist() == [[1.0, 1.0]] * 2
