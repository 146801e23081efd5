"""Metrics as plain Python numbers, the only values that every tracker takes."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from areal_callbacks.core.reporting import report_once


def plain_scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """``values`` as Python ints and floats; NaN and infinities stay.

    Tensors and NumPy numbers are converted: Trackio skips tensors and stores NumPy integers as bytes. What is not one
    number (a word, a vector) is left out, with one message per key.
    """
    numbers: dict[str, float] = {}
    for key, value in values.items():
        number = _number(value)
        if number is None:
            report_once(f"scalar:{key}", f"{key!r} is not a number and is left out: {type(value).__name__}")
        else:
            numbers[str(key)] = number
    return numbers


class RisingStep:
    """A step for trackers that drop or overwrite what comes at a step again, or at an earlier one."""

    def __init__(self) -> None:
        self._last = -1

    def after(self, step: int) -> int:
        """``step``, or the first one that is still free where it lies at or before the last."""
        self._last = max(int(step), self._last + 1)
        return self._last


def _number(value: Any) -> float | None:
    if isinstance(value, str | bytes):
        return None
    if isinstance(value, Integral):
        return int(value)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
