"""Whatever users record reaches trackers as plain Python numbers."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from support.readback import messages

from areal_callbacks.writers.scalars import as_plain_scalars

BIG = 2**70


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(1.5), 1.5),
        (np.int64(-7), -7),
        (np.uint64(2**63 - 1024), 2**63 - 1024),
        (np.array(2.0), 2.0),
        (np.bool_(True), 1.0),
        (True, 1),
        (torch.tensor(3), 3.0),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (torch.tensor(2.5, requires_grad=True), 2.5),
        (BIG, float(BIG)),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
    ],
)
def test_numbers_of_any_library_are_plain(value: Any, expected: float) -> None:
    with warnings.catch_warnings(action="error"):
        (number,) = as_plain_scalars({"a": value}).values()
    assert (type(number), number) == (type(expected), expected)


def test_integers_keep_all_digits_up_to_64_bits() -> None:
    assert as_plain_scalars({"a": 2**53 + 1}) == {"a": 2**53 + 1}


@pytest.mark.parametrize("value", ["1.5", b"1", None, [1.0], 1j, torch.zeros(2), np.zeros(2), 10**400])
def test_what_is_no_number_is_left_out_with_one_message(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert as_plain_scalars({"odd": value, "a": 1.0}) == as_plain_scalars({"odd": value, "a": 1.0}) == {"a": 1.0}
    assert messages(caplog) == [f"'odd' is not a number and is left out: {type(value).__name__}"]


def test_keys_are_text_that_can_be_encoded() -> None:
    keys: dict[Any, float] = {"日本/<b>": 1.0, 7: 1.0, "broken \ud800": 1.0}
    assert list(as_plain_scalars(keys)) == ["日本/<b>", "7", "broken \\ud800"]
