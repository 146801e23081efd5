from __future__ import annotations

import pickle
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from areal_callbacks.monitors.throughput.histogram import LengthHistogram
from areal_callbacks.monitors.throughput.lengths import Lengths


def lengths(values: list[int], bound: int | None = None, dtype: torch.dtype = torch.int64) -> Lengths:
    return Lengths(torch.tensor(values, dtype=dtype), max([*values, 0]) if bound is None else bound)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 40), max_size=5), max_size=80), st.integers(0, 80))
def test_counts_of_all_batches(batches: list[list[int]], taken_after: int) -> None:
    """Whatever the number and width of the batches, and wherever an export cuts them."""
    histogram = LengthHistogram()
    parts = []
    for number, batch in enumerate(batches):
        if number == taken_after:
            parts.append(histogram.take())
        histogram.add(lengths(batch))
    parts.append(histogram.take())
    expected = Counter(length for batch in batches for length in batch if length)
    assert sum((Counter(part) for part in parts), Counter()) == expected
    assert histogram.take() == {}


def test_every_source_of_lengths() -> None:
    histogram = LengthHistogram()
    histogram.add(lengths([3, 0, 5], dtype=torch.int32))
    histogram.add_host([5, np.int64(7)])
    histogram.add_unbounded(torch.tensor([[7, 2]]))
    assert histogram.take() == {3: 1, 5: 2, 7: 2, 2: 1}


@pytest.mark.parametrize(
    ("values", "error"), [([-1], ValueError), ([2, -3], ValueError), ([1.5], TypeError), (["3"], TypeError)]
)
def test_host_lengths_that_are_none(values: list[int], error: type[Exception]) -> None:
    histogram = LengthHistogram()
    with pytest.raises(error):
        histogram.add_host(values)
    assert histogram.take() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_tensors_that_hold_no_integers(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match="integers"):
        LengthHistogram().add_unbounded(torch.ones(2, dtype=dtype))


def test_memory_depends_on_the_longest_sequence_alone() -> None:
    histogram, sizes = LengthHistogram(), []
    for _ in range(1000):
        histogram.add(lengths([4, 9], bound=16))
        sizes.append(len(pickle.dumps(histogram)))
    assert max(sizes[64:]) <= max(sizes[:64])
    assert histogram.take() == {4: 1000, 9: 1000}


def test_adding_waits_for_no_device() -> None:
    """On a device without values, whatever reads one raises."""
    histogram = LengthHistogram()
    for width in range(100):
        histogram.add(Lengths(torch.zeros(3, dtype=torch.int64, device="meta"), width))
    histogram.add_unbounded(torch.zeros(3, dtype=torch.int64, device="meta"))


def test_in_inference_mode_and_out_of_it() -> None:
    histogram = LengthHistogram()
    with torch.inference_mode():
        for _ in range(40):
            histogram.add(lengths([2]))
    histogram.add(lengths([2]))
    assert histogram.take() == {2: 41}
    with torch.inference_mode():
        histogram.add(lengths([5]))
        assert histogram.take() == {5: 1}
