"""What one tracker in one process exports; expected values by hand or from NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType

INF, NAN = math.inf, math.nan


def all_true(values):
    return torch.ones(torch.as_tensor(values).shape, dtype=torch.bool)


def record(tracker, reduce_type=None, **values):
    for name, numbers in values.items():
        tensor = torch.as_tensor(numbers)
        tracker.stat_compact(all_true(tensor), reduce_type, **{name: tensor})


def same(first, second):
    """Equality of exports in which NaN equals NaN."""
    return {key: str(value) for key, value in first.items()} == {key: str(value) for key, value in second.items()}


# -- what each kind exports


@pytest.mark.parametrize(
    ("reduce_type", "expected"),
    [
        (None, {"x/avg": 2.0, "x/min": -1.0, "x/max": 5.0}),
        (ReduceType.AVG_MIN_MAX, {"x/avg": 2.0, "x/min": -1.0, "x/max": 5.0}),
        (ReduceType.AVG, {"x": 2.0}),
        (ReduceType.SUM, {"x": 6.0}),
        (ReduceType.MIN, {"x": -1.0}),
        (ReduceType.MAX, {"x": 5.0}),
    ],
)
def test_every_reduce_type_exports_its_names_over_the_masked_elements(reduce_type, expected):
    tracker = StatsTracker()
    tracker.denominator(valid=torch.tensor([[True, True], [True, False]]))
    tracker.stat("valid", reduce_type, x=torch.tensor([[-1.0, 2.0], [5.0, 100.0]]))
    assert tracker.export() == {"valid": 3.0, **expected}


def test_a_scalar_exports_its_mean_and_count():
    tracker = StatsTracker()
    for reward in (1.0, 0.0, 0.5):
        tracker.scalar(reward=reward)
    assert tracker.export() == {"reward": 0.5, "reward__count": 3.0}


@pytest.mark.parametrize("kind", [ReduceType.SCALAR, ReduceType.DENOMINATOR, "avg", 3])
def test_stat_takes_only_the_tensor_kinds_and_names_them(kind):
    with pytest.raises(ValueError, match="AVG_MIN_MAX, AVG, SUM, MIN, MAX, got"):
        StatsTracker().stat_compact(torch.ones(1, dtype=torch.bool), kind, x=torch.ones(1))


def test_an_empty_population_is_a_zero_sum_and_has_no_average_or_extremum():
    tracker = StatsTracker()
    tracker.denominator(none=torch.zeros(3, dtype=torch.bool))
    for name, kind in {"a": None, "b": ReduceType.AVG, "c": ReduceType.MIN, "d": ReduceType.MAX}.items():
        tracker.stat("none", kind, **{name: torch.ones(3)})
    tracker.stat("none", ReduceType.SUM, total=torch.ones(3))
    assert tracker.export() == {"none": 0.0, "total": 0.0}


def test_a_tensor_without_elements_is_an_empty_population():
    tracker = StatsTracker()
    tracker.denominator(none=torch.zeros(0, 4, dtype=torch.bool))
    tracker.stat("none", ReduceType.SUM, total=torch.ones(0, 4))
    tracker.stat("none", x=torch.ones(0, 4))
    assert tracker.export() == {"none": 0.0, "total": 0.0}


def test_what_is_not_recorded_again_is_absent():
    tracker = StatsTracker()
    record(tracker, ReduceType.SUM, total=[0.0])
    assert tracker.export() == {"total": 0.0}
    assert tracker.export() == {}


# -- numbers


def test_means_are_over_elements_and_not_over_batches():
    tracker = StatsTracker()
    record(tracker, x=[1.0])
    record(tracker, x=[3.0, 5.0, 7.0])
    assert tracker.export() == {"x/avg": 4.0, "x/min": 1.0, "x/max": 7.0}  # the mean of the batch means would be 3


def test_max_is_the_maximum_over_batches_and_not_a_mean_of_maxima():
    tracker = StatsTracker()
    record(tracker, ReduceType.MAX, x=[9.0])
    record(tracker, ReduceType.MAX, x=[1.0])
    assert tracker.export() == {"x": 9.0}


@pytest.mark.parametrize(
    "kind", [ReduceType.AVG_MIN_MAX, ReduceType.AVG, ReduceType.SUM, ReduceType.MIN, ReduceType.MAX]
)
@pytest.mark.parametrize("batches", [[[NAN], [1.0, 2.0]], [[1.0, 2.0], [NAN]], [[1.0, NAN, 2.0]], [[NAN, 1.0], [NAN]]])
def test_nan_propagates_whatever_the_order(kind, batches):
    tracker = StatsTracker()
    for batch in batches:
        record(tracker, kind, x=batch)
    values = tracker.export()
    assert len(values) == (3 if kind is ReduceType.AVG_MIN_MAX else 1)
    assert all(math.isnan(value) for value in values.values())


def test_infinities_are_kept():
    tracker = StatsTracker()
    record(tracker, x=[1.0, INF], y=[1.0, -INF], z=[INF, -INF])
    record(tracker, ReduceType.MAX, only_low=[-INF])
    record(tracker, ReduceType.MIN, only_high=[INF])
    expected = {
        **{"x/avg": INF, "x/min": 1.0, "x/max": INF},
        **{"y/avg": -INF, "y/min": -INF, "y/max": 1.0},
        **{"z/avg": NAN, "z/min": -INF, "z/max": INF},
        **{"only_low": -INF, "only_high": INF},
    }
    assert same(tracker.export(), expected)


def test_masked_padding_cannot_reach_the_result():
    tracker = StatsTracker()
    tracker.denominator(valid=torch.tensor([True, False, False, False]))
    tracker.stat("valid", x=torch.tensor([2.0, NAN, INF, -INF]))
    assert tracker.export() == {"valid": 1.0, "x/avg": 2.0, "x/min": 2.0, "x/max": 2.0}


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8]
)
def test_every_real_dtype_is_taken_and_summed_in_float64(dtype):
    values = torch.tensor([1, 2, 3, 251], dtype=dtype)
    exact = values.double().numpy().astype(np.float64)
    tracker = StatsTracker()
    record(tracker, x=values)
    assert tracker.export() == {"x/avg": exact.mean(), "x/min": exact.min(), "x/max": exact.max()}


def test_bfloat16_values_do_not_lose_their_sum():
    values = torch.full((1000,), 1.0078125, dtype=torch.bfloat16)  # exact in bfloat16, its running sum is not
    tracker = StatsTracker()
    record(tracker, ReduceType.SUM, x=values)
    assert tracker.export() == {"x": 1007.8125}


def test_complex_values_are_refused():
    with pytest.raises(ValueError, match=r"must be a real tensor, got torch\.complex64"):
        StatsTracker().stat_compact(all_true([1]), x=torch.ones(1, dtype=torch.complex64))


@pytest.mark.parametrize("number", [16777217, 16777217.0, torch.tensor(16777217), np.float64(16777217)])
def test_a_scalar_beyond_float32_is_exported_exactly(number):
    tracker = StatsTracker()
    tracker.scalar(step=number)
    assert tracker.export() == {"step": 16777217.0, "step__count": 1.0}


def test_counts_beyond_float32_are_exact():
    tracker = StatsTracker()
    tracker.denominator(valid=torch.ones(2**24, dtype=torch.bool))
    tracker.denominator(valid=torch.ones(1, dtype=torch.bool))
    tracker.summaries(ReduceType.AVG, x=torch.tensor([2.0**53 - 1, 2.0**53 - 1, 1.0, 1.0], dtype=torch.float64))
    assert tracker.export() == {"valid": 2**24 + 1, "x": 1.0}


@pytest.mark.parametrize(
    "number", [2, 2.0, np.float32(2.0), np.int64(2), torch.tensor(2.0, requires_grad=True), torch.tensor([[2]])]
)
def test_a_scalar_may_be_any_real_number_or_one_element_tensor(number):
    tracker = StatsTracker()
    tracker.scalar(x=number, y=True)
    tracker.scalar(x=0.0)
    assert tracker.export() == {"x": 1.0, "x__count": 2.0, "y": 1.0, "y__count": 1.0}


def test_ready_summaries_are_merged_as_they_are():
    tracker = StatsTracker()
    tracker.summaries(ReduceType.AVG_MIN_MAX, x=torch.tensor([6.0, 2.0, 1.0, 5.0], dtype=torch.float64))
    tracker.summaries(ReduceType.AVG_MIN_MAX, x=torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    assert tracker.export() == {"x/avg": 2.0, "x/min": 0.0, "x/max": 5.0}
    with pytest.raises(ValueError, match=r"float64 tensor of shape \[4\]"):
        tracker.summaries(ReduceType.AVG, x=torch.ones(4))


def test_a_random_mixture_gives_what_numpy_gives():
    generator = np.random.default_rng(0)
    tracker, values, masks = StatsTracker(), [], []
    for size in (1, 7, 64, 1000):
        batch = generator.normal(size=(size, 3)) * 10.0 ** generator.integers(-3, 4)
        mask = generator.random((size, 3)) < 0.7
        tracker.denominator(valid=torch.from_numpy(mask))
        tracker.stat("valid", x=torch.from_numpy(batch))
        values.append(batch.ravel())
        masks.append(mask.ravel())
    chosen = np.concatenate(values)[np.concatenate(masks)]
    exported = tracker.export()
    assert exported["valid"] == chosen.size
    assert exported["x/avg"] == pytest.approx(chosen.mean(), rel=1e-12)
    assert (exported["x/min"], exported["x/max"]) == (chosen.min(), chosen.max())
