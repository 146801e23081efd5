"""A batch of a form that was seen before is counted as if it were read anew."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from transformers import BatchEncoding

from areal_callbacks.monitors.consumers import Entry
from areal_callbacks.monitors.forward_call import ForwardCall
from areal_callbacks.monitors.throughput import known_batches
from areal_callbacks.monitors.throughput.known_batches import KnownBatches
from areal_callbacks.monitors.throughput.sequences import SequenceCounts

MODULES = [nn.Identity(), nn.Identity()]
OUTER, INNER = (Entry(weakref.ref(module), (), frozenset()) for module in MODULES)
WIDTH = 6


def call(outer: dict[str, Any] | None, *args: Any, **inputs: Any) -> ForwardCall:
    """A call of a model in that of a module that was given other arguments, by position and by keyword."""
    around = None if outer is None else ForwardCall(OUTER, None, args, outer, trains=True)
    return ForwardCall(INNER, around, (), inputs, trains=True)


def ids(rows: int, width: int = WIDTH) -> Tensor:
    return torch.arange(rows * width).view(rows, width) + 10


masks = st.lists(st.lists(st.integers(0, 3), min_size=WIDTH, max_size=WIDTH), min_size=1, max_size=3)
kinds = st.sampled_from([torch.int64, torch.int32, torch.bool, torch.float32])
places = st.sampled_from(["inner", "outer", "batch", "several", "list", "none"])


def by_hand(mask: Tensor) -> list[int]:
    """Tokens of each number in each row; of each row, where the numbers are no integers."""
    rows = mask.tolist()
    if mask.dtype in (torch.bool, torch.float32):
        return [sum(map(bool, row)) for row in rows]
    return [row.count(number) for row in rows for number in set(row) - {0}]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(masks, kinds, places), max_size=50))
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
            "several": {"input_ids": tokens, "attention_mask": {"full_attention": mask, "sliding_attention": mask}},
            "list": {},
        }.get(place)
        given = [[tokens, mask, mask]] if place == "list" else []
        inner = {"attention_mask": mask} if place in ("inner", "list") else {}
        counts.add_read(known.read(call(outer, *given, input_ids=tokens, **inner)))
        mask.zero_()
    del expected[0]
    assert counts.take().lengths == dict(expected)


BATCHES: dict[str, Callable[[Tensor, Tensor], ForwardCall]] = {
    "a mapping": lambda ids, mask: call(
        {"batch": {"input_ids": ids, "attention_mask": mask}, "batch_idx": 3}, input_ids=ids, attention_mask=mask
    ),
    "a mapping with the mask alone": lambda ids, mask: call(
        {"batch": {"input_ids": ids, "attention_mask": mask}}, input_ids=ids
    ),
    "a list": lambda ids, mask: call({}, [ids, mask, ids], 3, input_ids=ids, attention_mask=mask),
    "an encoding": lambda ids, mask: call(
        {"batch": BatchEncoding({"input_ids": ids, "attention_mask": mask})}, input_ids=ids, attention_mask=mask
    ),
}


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_a_known_form_is_not_read_anew(
    make: Callable[[Tensor, Tensor], ForwardCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a training step is given its batch in."""
    counts, known = SequenceCounts(), KnownBatches()
    counts.add_read(known.read(make(ids(1), torch.ones(1, WIDTH))))
    monkeypatch.setattr(known_batches, "model_lengths", None)
    counts.add_read(known.read(make(ids(1) + 5, (torch.arange(WIDTH) < 4).float()[None])))
    assert counts.take().lengths == {WIDTH: 1, 4: 1}


def test_one_of_several_masks_is_read_each_time() -> None:
    """What stands in a mapping may be there in one call and not in the next, of the same form."""
    counts, known = SequenceCounts(), KnownBatches()
    for masks in ({"sliding_attention": torch.ones(1, WIDTH)}, {"full_attention": (torch.arange(WIDTH) < 4)[None]}):
        counts.add_read(known.read(call(None, input_ids=ids(1), attention_mask=masks)))
        counts.add_read(known.read(call({"batch": {"attention_mask": masks, "input_ids": ids(1)}}, input_ids=ids(1))))
    assert counts.take().lengths == {WIDTH: 2, 4: 2}


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
    known, entry = KnownBatches(), Entry(weakref.ref(MODULES[0]), (), frozenset(), config)
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
