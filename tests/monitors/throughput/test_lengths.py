"""Lengths against sequences that were laid out by hand: padded, packed, joined, embedded."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given, settings
from torch import Tensor

from areal_callbacks.monitors.throughput.lengths import Lengths, lengths_of, sequence_lengths
from areal_callbacks.monitors.throughput.token_batch import read_batch

LENGTHS = st.lists(st.lists(st.integers(1, 6), min_size=0, max_size=4), min_size=1, max_size=4)


def read(*args: Any, **kwargs: Any) -> list[int] | None:
    lengths = sequence_lengths(args, kwargs)
    return None if lengths is None else checked(lengths)


def read_with(config: Any, **inputs: Tensor) -> list[int]:
    batch = read_batch(inputs, config=config)
    assert batch is not None
    return checked(lengths_of(batch))


def checked(lengths: Lengths | None) -> list[int]:
    assert lengths is not None
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
    whole = [sum(row) for row in rows if sum(row)]
    assert read(input_ids=mask, attention_mask=mask.bool()) == whole  # without positions
    assert read(attention_mask=mask) is None  # of what, is not told


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_joined_sequences(lengths: list[int]) -> None:
    """Padding-free batches: one row, told apart by boundaries or by positions."""
    assume(lengths[-2:] != [1, 1])  # the same as padding
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


def test_ids_without_a_name() -> None:
    assert read(IDS) == read([IDS, IDS[:, 0]]) == read((IDS, torch.zeros(2, 3))) == read({"x": IDS}) == [5, 5]
    assert read(torch.zeros(2, 3)) is None
    assert sequence_lengths((IDS,), {}, looked_up=[]) is None
    assert checked(sequence_lengths((IDS,), {}, looked_up=[IDS.clone()])) == [5, 5]


class Pair(NamedTuple):
    ids: Tensor
    mask: Tensor


@dataclasses.dataclass
class Batch:
    input_ids: Tensor
    attention_mask: Tensor


@pytest.mark.parametrize("batch", [Pair(IDS, MASK), Batch(IDS, MASK), {"input_ids": IDS, "attention_mask": MASK}])
def test_batches_of_every_make(batch: Any) -> None:
    assert read(batch) == read(batch, 0) == read(batch=batch) == [3, 4]


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.zeros(6, 5), torch.zeros(6, 3, dtype=torch.long)),  # features, and targets behind them
        (torch.zeros(6, 784, dtype=torch.uint8),),
        (torch.zeros(6, 7, dtype=torch.bool),),
        (torch.zeros(6, 7, dtype=torch.int8),),
        (torch.zeros(6, dtype=torch.long),),
        ({"pixels": torch.zeros(2, 3, 8, 8), "boxes": torch.zeros(2, 4, dtype=torch.long)},),
        (),
    ],
)
def test_what_is_no_token(arguments: tuple[Any, ...]) -> None:
    assert read(*arguments) is None
    assert read(arguments) is None


IDS_OF_CHOICES = torch.tensor([[[5, 6, 7, 0], [5, 6, 0, 0], [5, 6, 7, 8]]])


def test_several_choices_a_row() -> None:
    assert read(input_ids=IDS_OF_CHOICES, attention_mask=(IDS_OF_CHOICES != 0).long()) == [3, 2, 4]
    assert read(input_ids=IDS_OF_CHOICES) == [4, 4, 4]


def test_several_numbers_a_token() -> None:
    """Codebooks of sound: the mask tells which dimension is the sequence."""
    assert read(input_ids=torch.ones(2, 5, 8, dtype=torch.long), attention_mask=MASK) == [3, 4]


def test_a_mask_longer_than_the_ids_has_a_prefix() -> None:
    assert read(input_ids=IDS, attention_mask=torch.cat([torch.ones(2, 3), MASK], 1)) == [3, 4]


def numbered(rows: list[list[int]], width: int) -> Tensor:
    """A mask 1, 1, 2, 2, 2, 0 for sequences of 2 and 3."""
    told = [[number for number, length in enumerate(row, 1) for _ in range(length)] for row in rows]
    return torch.tensor([row + [0] * (width - len(row)) for row in told])


def blocks(rows: list[list[int]], width: int, *, causal: bool) -> Tensor:
    """Bool ``[rows, 1, width, width]``: a token sees those of its sequence, padding sees nothing."""
    numbers = numbered(rows, width)
    same = (numbers[:, :, None] == numbers[:, None, :]) & (numbers[:, :, None] > 0)
    return (same.tril() if causal else same)[:, None]


@settings(deadline=None, max_examples=60)
@given(LENGTHS, st.integers(0, 3), st.booleans())
def test_packed_rows_that_only_a_mask_tells_apart(rows: list[list[int]], padding: int, causal: bool) -> None:
    width = max(1, *(sum(row) for row in rows)) + padding
    ids, lengths = torch.ones(len(rows), width, dtype=torch.long), [length for row in rows for length in row]
    assert read(input_ids=ids, attention_mask=numbered(rows, width)) == lengths
    allowed = blocks(rows, width, causal=causal)
    added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    for mask in (allowed, added, {"full_attention": allowed, "sliding_attention": allowed}):
        assert read(input_ids=ids, attention_mask=mask) == lengths


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(2, 5))
def test_padding_behind_a_packing(lengths: list[int], padding: int) -> None:
    """``pad_to_multiple_of``: every pad is at position 0, as if it were a sequence of its own."""
    total = sum(lengths)
    ids = torch.tensor([[7] * total + [0] * padding])
    positions = torch.tensor([[place for length in lengths for place in range(length)] + [0] * padding])
    labels = torch.where(ids == 0, -100, ids)
    assert read(input_ids=ids, position_ids=positions, labels=labels) == lengths
    assert read(input_ids=ids, position_ids=positions[0], labels=labels) == lengths
    assert read(input_ids=ids, position_ids=positions) == lengths
    one = slice(0, total + 1)
    assert read(input_ids=ids[:, one], position_ids=positions[:, one]) == [*lengths, 1]  # may be a sequence
    assert read(input_ids=ids[:, one], position_ids=positions[:, one], labels=labels[:, one]) == lengths


PACKED = torch.tensor([[5, 6, 3, 7, 3, 0, 0, 0, 0]])
PLACES = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2, 3]])


@pytest.mark.parametrize("end", [3, 0])
@pytest.mark.parametrize("told", ["labels", "mask and labels", "nothing"])
@pytest.mark.parametrize("left", [False, True])
def test_padding_behind_a_packing_that_is_numbered_like_a_sequence(end: int, told: str, left: bool) -> None:
    """Pads of one packing at 0, 1, 2, 3, as axolotl's collator numbers them; also where sequences end with pads."""
    ids, places = PACKED.where(PACKED != 3, end), PLACES
    labels = ids.where(torch.arange(9) < 5, -100)
    given = {"input_ids": ids, "position_ids": places}
    given |= {"labels": labels} if "labels" in told else {}
    given |= {"attention_mask": torch.ones_like(ids)} if "mask" in told else {}
    if left:
        given = {name: torch.cat([value[:, 5:], value[:, :5]], 1) for name, value in given.items()}
    config = SimpleNamespace(pad_token_id=0, eos_token_id=end)
    assert read_with(config, **given) == [3, 2]
    assert read_with(None, **given) == ([4, 3, 2] if left else [3, 2, 4])  # what no number of padding is known for


def test_pads_in_a_packing_that_are_sequences() -> None:
    """Between others, or as all that a row holds, they stand for what they are."""
    config = SimpleNamespace(pad_token_id=0, eos_token_id=0)
    between = torch.tensor([[5, 0, 0, 0, 7, 0]])
    assert read_with(config, input_ids=between, position_ids=torch.tensor([[0, 1, 0, 1, 0, 1]])) == [2, 2, 2]
    several = torch.tensor([[5, 0, 0, 0, 0, 0]])
    assert read_with(config, input_ids=several, position_ids=torch.tensor([[0, 1, 0, 1, 0, 1]])) == [2]
    assert read_with(config, input_ids=several[:, 2:], position_ids=torch.tensor([[0, 1, 2, 3]])) == [4]
    with_both = torch.cat([several, between])
    places = torch.tensor([[0, 1, 0, 1, 0, 1], [0, 1, 2, 3, 4, 5]])
    assert read_with(config, input_ids=with_both, position_ids=places) == [2, 6]


def test_one_axis_of_the_positions_of_images_goes_on_within_an_image() -> None:
    """Two sequences: text, an image of 2 x 2 patches, text; then an image that comes first."""
    time_ = [0, 1, 2, 2, 2, 2, 4, 0, 0, 0, 0, 2]
    height = [0, 1, 2, 2, 3, 3, 4, 0, 0, 1, 1, 2]
    across = [0, 1, 2, 3, 2, 3, 4, 0, 1, 0, 1, 2]
    positions = torch.tensor([time_, height, across])[:, None]
    ids = torch.ones(1, 12, dtype=torch.long)
    assert read(input_ids=ids, position_ids=positions) == [7, 5]
    text = torch.tensor([[*range(7), *range(5)]])[None]
    assert read(input_ids=ids, position_ids=torch.cat([text, positions])) == [7, 5]


@pytest.mark.parametrize(("shared", "labelled"), [(False, False), (False, True), (True, True)])
def test_the_padding_of_the_configuration(shared: bool, labelled: bool) -> None:
    """No mask: padding is at the ends of rows, and the end of a sequence is a token even if it has the same number."""
    config = SimpleNamespace(pad_token_id=0, eos_token_id=0 if shared else 3)
    ids = torch.tensor([[5, 0, 6, 0, 0], [0, 0, 5, 6, 7]])
    labels = torch.tensor([[5, 0, 6, 0, -100], [-100, -100, 5, 6, 7]]) if labelled else None
    batch = read_batch({"input_ids": ids, "labels": labels}, config=config)
    assert batch is not None
    assert checked(lengths_of(batch)) == ([4, 3] if labelled else [3, 3])
    unlabelled = read_batch({"input_ids": ids}, config=SimpleNamespace(pad_token_id=0, eos_token_id=[0, 2]))
    assert unlabelled is not None
    assert checked(lengths_of(unlabelled)) == [5, 5]


def test_boundaries_that_are_aligned() -> None:
    """Sequences of 3 and 2, each filled up to a multiple of 4, and more behind the last boundary."""
    ids = torch.tensor([[5, 6, 7, 0, 5, 6, 0, 0, 0, 0]])
    batch = read_batch(
        {"input_ids": ids, "cu_seqlens": torch.tensor([0, 4, 8])}, config=SimpleNamespace(pad_token_id=0)
    )
    assert batch is not None
    assert checked(lengths_of(batch)) == [3, 2]
    assert read(input_ids=ids, cu_seqlens=torch.tensor([0, 4, 8])) == [4, 4]


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
