"""Metrics as plain Python numbers, the only values that every tracker takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal_callbacks.core.numbers import as_number
from areal_callbacks.safety.reporting import report_once


def as_plain_scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """``values`` as Python ints and floats; NaN and infinities stay.

    Trackio skips tensors, and stores NumPy integers as bytes; it also skips integers beyond 64 bits, which become
    floats. What is not one number (a word, a vector, an integer that no float can hold) is left out, with one message
    per key.
    """
    numbers: dict[str, float] = {}
    for key, value in values.items():
        number = as_number(value)
        if number is None:
            report_once(f"scalar:{key}", f"{key!r} is not a number and is left out: {type(value).__name__}")
        else:
            numbers[_as_encodable(key)] = number if abs(number) < 2**63 else float(number)
    return numbers


class RisingStep:
    """A step for trackers that drop or overwrite what comes at a step again, or at an earlier one."""

    def __init__(self) -> None:
        self._last = -1

    def after(self, step: int) -> int:
        """``step``, or the first one that is still free where it lies at or before the last."""
        self._last = max(int(step), self._last + 1)
        return self._last


def _as_encodable(key: object) -> str:
    """Text without lone surrogates, which names of undecodable paths hold: W&B and TensorBoard would lose the run."""
    return str(key).encode("utf-8", "backslashreplace").decode()
