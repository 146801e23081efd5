"""Metrics as plain Python numbers, the only values that every tracker takes."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from torch import Tensor

from areal_callbacks.safety.reporting import report_once


def plain_scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """``values`` as Python ints and floats; NaN and infinities stay.

    Tensors and NumPy numbers are converted: Trackio skips tensors and stores NumPy integers as bytes. Integers beyond
    64 bits, which Trackio skips too, become floats. What is not one number (a word, a vector, an integer that no float
    can hold) is left out, with one message per key.
    """
    numbers: dict[str, float] = {}
    for key, value in values.items():
        number = _number(value)
        if number is None:
            report_once(f"scalar:{key}", f"{key!r} is not a number and is left out: {type(value).__name__}")
        else:
            # Half a character, as in names made of undecodable paths, would cost W&B and TensorBoard their whole run.
            numbers[str(key).encode("utf-8", "backslashreplace").decode()] = number
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
    try:
        number = float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return int(value) if isinstance(value, Integral) and abs(number) < 2**63 else number
