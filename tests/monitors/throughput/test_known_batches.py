"""A batch of a form that was seen before is counted as if it were read anew."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from areal_callbacks.monitors.consumers import Entry
from areal_callbacks.monitors.forward_call import ForwardCall
from areal_callbacks.monitors.throughput import known_batches
from areal_callbacks.monitors.throughput.known_batches import KnownBatches
from areal_callbacks.monitors.throughput.sequences import SequenceCounts

OUTER, INNER = (Entry(nn.Identity(), (), frozenset()) for _ in range(2))
WIDTH = 6


def call(outer: dict[str, Any] | None, **inputs: Any) -> ForwardCall:
    around = None if outer is None else ForwardCall(OUTER, None, (), outer, trains=True)
    return ForwardCall(INNER, around, (), inputs, trains=True)


def ids(rows: int, width: int = WIDTH) -> Tensor:
    return torch.arange(rows * width).view(rows, width) + 10


masks = st.lists(st.lists(st.integers(0, 3), min_size=WIDTH, max_size=WIDTH), min_size=1, max_size=3)
kinds = st.sampled_from([torch.int64, torch.int32, torch.bool, torch.float32])


def by_hand(mask: Tensor) -> list[int]:
    """Tokens of each number in each row; of each row, where the numbers are no integers."""
    rows = mask.tolist()
    if mask.dtype in (torch.bool, torch.float32):
        return [sum(map(bool, row)) for row in rows]
    return [row.count(number) for row in rows for number in set(row) - {0}]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(masks, kinds, st.sampled_from(["inner", "outer", "batch", "none"])), max_size=50))
def test_lengths_of_all_batches(batches: list[Any]) -> None:
    """Wherever the mask was given, and whatever it was changed into afterwards."""
    counts = SequenceCounts()
    known, expected = KnownBatches(), Counter[int]()
    for rows, dtype, place in batches:
        mask = torch.tensor(rows).to(dtype)
        expected.update([WIDTH] * len(rows) if place == "none" else by_hand(mask))
        tokens = ids(len(rows))
        outer = {
            "outer": {"input_ids": tokens, "attention_mask": mask},
            "batch": {"batch": {"input_ids": tokens, "attention_mask": mask, "name": "text"}},
        }.get(place)
        counts.add_read(
            known.read(call(outer, input_ids=tokens, **({"attention_mask": mask} if place == "inner" else {})))
        )
        mask.zero_()
    del expected[0]
    assert counts.take().lengths == dict(expected)


def test_what_no_mask_tells_is_read_each_time() -> None:
    counts = SequenceCounts()
    known = KnownBatches()
    for start in (3, 2, 1):
        positions = torch.tensor([[*range(start), *range(WIDTH - start)]])
        counts.add_read(known.read(call(None, input_ids=ids(1), position_ids=positions)))
    assert counts.take().lengths == {3: 2, 2: 1, 4: 1, 1: 1, 5: 1}


def test_a_mask_for_a_prefix_too_is_read_each_time() -> None:
    counts = SequenceCounts()
    known = KnownBatches()
    for kept in (4, 5):
        mask = torch.tensor([[1, 1, *[1] * kept, *[0] * (WIDTH - kept)]])
        counts.add_read(known.read(call(None, input_ids=ids(1), attention_mask=mask)))
    assert counts.take().lengths == {4: 1, 5: 1}


def test_a_number_of_padding_that_is_set_later_counts() -> None:
    counts, config = SequenceCounts(), type("Config", (), {"pad_token_id": None})()
    known, entry = KnownBatches(), Entry(nn.Identity(), (), frozenset(), config)
    tokens = torch.tensor([[5, 6, 0, 0]])
    for number in (None, 0):
        config.pad_token_id = number
        counts.add_read(known.read(ForwardCall(entry, None, (), {"input_ids": tokens}, trains=True)))
    assert counts.take().lengths == {4: 1, 2: 1}


def test_forms_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_batches, "_MOST_FORMS", 3)
    counts = SequenceCounts()
    known = KnownBatches()
    for width in range(1, 9):
        counts.add_read(known.read(call(None, input_ids=ids(2, width))))
        assert len(known._rules) <= 3
    assert counts.take().lengths == dict.fromkeys(range(1, 9), 2)


def test_masks_that_wait_are_bounded() -> None:
    counts = SequenceCounts()
    known = KnownBatches()
    for _ in range(100):
        counts.add_read(
            known.read(call(None, input_ids=ids(1), attention_mask=torch.ones(1, WIDTH, dtype=torch.int64)))
        )
        assert len(counts._alone._masks) <= 32
    assert counts.take().lengths == {WIDTH: 100}
