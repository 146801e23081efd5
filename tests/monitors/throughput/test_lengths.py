"""Lengths against sequences that were laid out by hand: padded, packed, joined, embedded."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from areal_callbacks.monitors.throughput.lengths import Lengths, sequence_lengths

LENGTHS = st.lists(st.lists(st.integers(1, 6), min_size=0, max_size=4), min_size=1, max_size=4)


def read(*args: Any, **kwargs: Any) -> list[int] | None:
    lengths = sequence_lengths(args, kwargs)
    return None if lengths is None else checked(lengths)


def checked(lengths: Lengths) -> list[int]:
    values = lengths.values.tolist()
    assert not lengths.values.is_floating_point()
    assert lengths.values.dim() == 1
    assert all(0 <= value <= lengths.bound for value in values)
    return [value for value in values if value]


def laid_out(rows: list[list[int]], *, left: bool) -> tuple[Tensor, Tensor]:
    """(attention mask, positions) of rows of packed sequences, padded to the same width."""
    width = max(1, *(sum(row) for row in rows))
    masks, positions = [], []
    for row in rows:
        padding = [0] * (width - sum(row))
        mask, places = [1] * sum(row), [place for length in row for place in range(length)]
        masks.append(padding + mask if left else mask + padding)
        filler = [1] * len(padding)  # what Transformers puts where the mask is 0
        positions.append(filler + places if left else places + filler)
    return torch.tensor(masks), torch.tensor(positions)


@settings(deadline=None, max_examples=60)
@given(LENGTHS, st.booleans())
def test_packed_rows_with_padding(rows: list[list[int]], left: bool) -> None:
    """A mask, positions that restart in every sequence, and both orders of padding."""
    mask, positions = laid_out(rows, left=left)
    lengths = [length for row in rows for length in row]
    assert read(input_ids=mask, attention_mask=mask, position_ids=positions) == lengths
    assert read(attention_mask=mask.bool()) == [sum(row) for row in rows if sum(row)]  # without positions: whole rows


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_joined_sequences(lengths: list[int]) -> None:
    """Padding-free batches: one row, told apart by boundaries or by positions."""
    ids = torch.zeros(1, sum(lengths), dtype=torch.long)
    positions = torch.tensor([[place for length in lengths for place in range(length)]])
    boundaries = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    assert read(input_ids=ids, position_ids=positions) == lengths
    assert read(input_ids=ids, cu_seq_lens_q=boundaries, cu_seq_lens_k=boundaries) == lengths
    assert read(input_ids=ids, cu_seq_lens_q=boundaries, position_ids=positions) == lengths
    assert read(inputs_embeds=torch.zeros(1, sum(lengths), 4), cu_seq_lens_q=boundaries) == lengths


IDS = torch.zeros(2, 5, dtype=torch.long)
MASK = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("kwargs", "lengths"),
    [
        ({"input_ids": IDS}, [5, 5]),
        ({"inputs_embeds": torch.zeros(2, 5, 3)}, [5, 5]),
        ({"input_ids": IDS, "attention_mask": MASK}, [3, 4]),
        ({"input_ids": IDS, "attention_mask": MASK * 7}, [3, 4]),
        ({"input_ids": IDS, "attention_mask": MASK.float()}, [3, 4]),
        ({"input_ids": IDS, "attention_mask": None}, [5, 5]),
        ({"input_ids": IDS, "attention_mask": torch.ones(2, 1, 5, 5)}, [5, 5]),  # a causal mask tells nothing
        ({"input_ids": IDS, "position_ids": torch.arange(5)[None]}, [5, 5]),  # one row for both
        ({"input_ids": IDS, "position_ids": torch.arange(5).expand(3, 2, 5)}, [5, 5]),  # rotary positions of images
        ({"input_ids": IDS, "attention_mask": MASK, "position_ids": torch.arange(5)[None]}, [3, 4]),
        ({"input_ids": IDS, "attention_mask": torch.zeros_like(MASK)}, []),
        ({"input_ids": IDS[0]}, [5]),
        ({"pixel_values": torch.zeros(2, 3, 8, 8)}, None),
        ({}, None),
    ],
)
def test_what_a_model_is_given(kwargs: dict[str, Any], lengths: list[int] | None) -> None:
    assert read(**kwargs) == lengths


def test_positional_ids() -> None:
    assert read(torch.zeros(2, 3), IDS) == [5, 5]  # the floating tensor is none
    assert read(torch.zeros(2, 3)) is None


def test_nothing_is_changed_and_nothing_waits_for_the_device() -> None:
    """On a device without values, whatever reads one raises."""
    mask = MASK.clone()
    read(attention_mask=mask)
    assert torch.equal(mask, MASK)
    meta = {"input_ids": IDS.to("meta"), "attention_mask": MASK.to("meta"), "position_ids": IDS.to("meta")}
    lengths = sequence_lengths((), meta)
    assert lengths is not None
    assert lengths.values.device.type == "meta"
    assert lengths.bound == 5
