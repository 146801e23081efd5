"""Numbers as short text and expert loads as compressed bytes: what the page decodes again.

Scalars are lines of text, ``key<TAB>indices<TAB>values``: indices are those of the run's steps, each as the difference
to the one before, and empty if the series has a value at every step; values have seven significant digits, whole
numbers all of theirs.

Expert loads are whole numbers spread over many orders of magnitude. Each becomes ``0`` or ``1 + round(log(count) / s)``
with ``s = 0.002``: within 0.1 % of the count, and the count itself below 500. The difference to the snapshot before,
which is small, is folded to a natural number and split into two planes of bytes, which deflate well.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from areal_callbacks.report.history import Series
from areal_callbacks.report.snapshots import Snapshot

LOG_STEP = 0.002
ABSENT = 0x7FFF

_WORDS = {"nan": "n", "inf": "i", "-inf": "-i"}


def pack(data: bytes) -> str:
    """Compressed (zlib) and in base64."""
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def encode_series(key: str, series: Series, steps: int) -> str:
    """One series as one line."""
    return f"{key.translate({9: ' ', 10: ' ', 13: ' '})}\t{encode_points(series, steps)}"


def encode_points(series: Series, steps: int) -> str:
    """Indices and values, without the key."""
    indices = "" if len(series.indices) == steps else ",".join(map(str, take_differences(series.indices)))
    return f"{indices}\t{','.join(map(format_number, series.values))}"


def take_differences(values: Iterable[int]) -> Iterator[int]:
    """The first value and the differences from one to the next."""
    previous = 0
    for value in values:
        yield value - previous
        previous = value


def format_number(value: float) -> str:
    """Seven significant digits, all digits of a whole number, ``n``, ``i``, ``-i`` for NaN and the infinities."""
    if not math.isfinite(value):
        return _WORDS[str(value)]
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.7g}".replace("e-0", "e-")


def encode_counts(snapshots: Sequence[Snapshot], stack: str, layers: Sequence[tuple[int, int]]) -> str:
    """The counts of a stack in all snapshots.

    Args:
        snapshots: by step.
        stack: which stack.
        layers: (id, number of experts) in the order of the rows.
    """
    codes = _Codes()
    low, high = bytearray(), bytearray()
    previous = [0] * sum(experts for _, experts in layers)
    for snapshot in snapshots:
        current = [code for layer in layers for code in _encode_layer(snapshot, stack, layer, codes)]
        folded = [(a - b) << 1 if a >= b else ((b - a) << 1) - 1 for a, b in zip(current, previous)]
        low += bytes(value & 0xFF for value in folded)
        high += bytes(value >> 8 & 0xFF for value in folded)
        previous = current
    return pack(bytes(low + high))


def encode_totals(snapshots: Sequence[Snapshot], stack: str, layers: Sequence[tuple[int, int]]) -> str:
    """The exact sum of every layer, one line a snapshot; -1 where a layer is absent."""
    return _encode_rows(snapshots, stack, layers, sum)


def encode_peaks(snapshots: Sequence[Snapshot], stack: str, layers: Sequence[tuple[int, int]]) -> str:
    """The exact count of the busiest expert of every layer, like :func:`encode_totals`."""
    return _encode_rows(snapshots, stack, layers, lambda row: max(row, default=0))


def _encode_rows(
    snapshots: Sequence[Snapshot],
    stack: str,
    layers: Sequence[tuple[int, int]],
    measure: Callable[[Sequence[int]], int],
) -> str:
    lines = []
    for snapshot in snapshots:
        counts = [snapshot.counts.get((stack, layer)) for layer, _ in layers]
        lines.append(",".join("-1" if row is None else str(measure(row)) for row in counts))
    return pack("\n".join(lines).encode())


class _Codes(dict[int, int]):
    """Count → code, computed once: few counts are different."""

    def __missing__(self, count: int) -> int:
        code = 1 + round(math.log(count) / LOG_STEP) if count else 0
        self[count] = code
        return code


def _encode_layer(snapshot: Snapshot, stack: str, layer: tuple[int, int], codes: _Codes) -> list[int]:
    number_of_layer, experts = layer
    counts = snapshot.counts.get((stack, number_of_layer))
    row = [] if counts is None else [codes[count] for count in counts]
    return row + [ABSENT] * (experts - len(row))
