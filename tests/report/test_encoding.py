"""What the builder packs, unpacked with NumPy as the page unpacks it."""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from areal_callbacks.report.encoding import (
    ABSENT,
    LOG_STEP,
    encode_counts,
    encode_peaks,
    encode_series,
    encode_totals,
    format_number,
)
from areal_callbacks.report.history import Series
from areal_callbacks.report.snapshots import Snapshot


def unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def decode(text: str, size: int) -> NDArray[Any]:
    planes = np.frombuffer(unpack(text), dtype=np.uint8).reshape(2, -1).astype(np.int64)
    folded = planes[0] + 256 * planes[1]
    differences = np.where(folded % 2, -((folded + 1) // 2), folded // 2)
    codes = differences.reshape(-1, size).cumsum(axis=0)
    counts = np.where(codes == 0, 0, np.round(np.exp((codes - 1) * LOG_STEP)))
    return np.where(codes == ABSENT, np.nan, counts)


def snapshots(counts: NDArray[Any]) -> list[Snapshot]:
    return [
        Snapshot(step, {("", layer): array("Q", row.tolist()) for layer, row in enumerate(shot)})
        for step, shot in enumerate(counts)
    ]


def test_counts_are_within_a_thousandth_and_small_ones_exact() -> None:
    exponents = np.random.default_rng(0).uniform(0, 63, size=(20, 3, 8))
    counts = np.floor(2.0**exponents).astype(np.uint64)
    counts[:, 0] = np.random.default_rng(1).integers(0, 500, size=(20, 8))
    decoded = decode(encode_counts(snapshots(counts), "", [(0, 8), (1, 8), (2, 8)]), 24).reshape(20, 3, 8)
    np.testing.assert_array_equal(decoded[:, 0], counts[:, 0])
    np.testing.assert_allclose(decoded[:, 1:], counts[:, 1:].astype(np.float64), rtol=1.01e-3, atol=0.51)


def test_sums_and_peaks_of_layers_are_exact() -> None:
    counts = np.random.default_rng(2).integers(0, 1 << 40, size=(5, 2, 8))
    for encode, expected in ((encode_totals, counts.sum(axis=2)), (encode_peaks, counts.max(axis=2))):
        text = unpack(encode(snapshots(counts), "", [(0, 8), (1, 8)])).decode()
        assert [list(map(int, line.split(","))) for line in text.split("\n")] == expected.tolist()


def test_what_is_absent_is_not_zero() -> None:
    shots = [Snapshot(1, {("", 3): array("I", [5, 0])}), Snapshot(2, {("", 9): array("I", [1, 2, 3])})]
    layers = [(3, 2), (9, 4)]
    decoded = decode(encode_counts(shots, "", layers), 6)
    nan = math.nan
    np.testing.assert_array_equal(decoded, [[5, 0, nan, nan, nan, nan], [nan, nan, 1, 2, 3, nan]])
    assert unpack(encode_totals(shots, "", layers)).decode() == "5,-1\n-1,6"


def test_stacks_are_apart() -> None:
    shot = Snapshot(1, {("", 0): array("I", [1]), ("encoder", 0): array("I", [2, 3])})
    assert decode(encode_counts([shot], "encoder", [(0, 2)]), 2).tolist() == [[2.0, 3.0]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-3.0, "-3"),
        (9876543210123.0, "9876543210123"),
        (1 / 3, "0.3333333"),
        (1.23456789e-05, "1.234568e-5"),
        (1.5e300, "1.5e+300"),
        (math.nan, "n"),
        (math.inf, "i"),
        (-math.inf, "-i"),
    ],
)
def test_numbers_as_short_text(value: float, text: str) -> None:
    assert format_number(value) == text


def test_lines_of_series() -> None:
    assert encode_series("loss", Series([0, 1, 2], [1.0, 2.0, 0.5]), 3) == "loss\t\t1,2,0.5"
    assert encode_series("loss", Series([1, 5, 6], [1.0, 2.0, math.nan]), 9) == "loss\t1,4,1\t1,2,n"
    assert encode_series("a\tb\nc", Series([0], [1.0]), 1) == "a b c\t\t1"
