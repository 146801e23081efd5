"""Rows of ids by hand: which are padding, and where sequences begin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from areal_callbacks.verify.calls import ModuleCall
from areal_callbacks.verify.evidence import gather
from areal_callbacks.verify.rows import measure


def lengths(ids: Tensor, pad: int | None = 0, decoder: bool = False, **arguments: Tensor) -> list[int]:
    parameters = frozenset({"decoder_input_ids"}) if decoder else frozenset()
    name = "decoder_ids" if decoder else "input_ids"
    call = ModuleCall(nn.Identity(), {name: ids, **arguments}, parameters)
    return measure(gather(ids, [call], {}, pad))


def rows(*values: list[int]) -> Tensor:
    return torch.tensor(values)


def ignore_pads(ids: Tensor) -> Tensor:
    return ids.masked_fill(ids == 0, -100)


PADDED = rows([5, 6, 7, 0], [5, 6, 0, 0])
LEFT = rows([0, 5, 6, 7], [0, 0, 5, 6])
PACKED = rows([5, 6, 7, 8, 9, 0, 0, 0])
STARTS = rows([0, 1, 2, 0, 1, 0, 0, 0])


@pytest.mark.parametrize("ids", [PADDED, LEFT])
def test_a_mask_decides_at_either_side(ids: Tensor) -> None:
    assert lengths(ids, attention_mask=(ids != 0).long()) == [3, 2]
    assert lengths(ids, attention_mask=ids != 0) == [3, 2]


@pytest.mark.parametrize("ids", [PADDED, LEFT])
def test_without_a_mask_a_pad_is_known_by_its_label_or_if_it_is_nothing_else(ids: Tensor) -> None:
    assert lengths(ids) == [3, 2]
    assert lengths(ids, labels=ids) == [4, 4]
    assert lengths(ids, labels=ignore_pads(ids)) == [3, 2]
    evidence = gather(ids, [], {}, 0)
    evidence.ends = True
    assert measure(evidence) == [4, 4]


def test_an_ignored_label_alone_is_a_prompt() -> None:
    assert lengths(rows([5, 6, 7, 8]), labels=rows([-100, -100, 7, 8])) == [4]


def test_a_mask_of_sequence_numbers() -> None:
    assert lengths(rows([5, 6, 7, 8, 0]), attention_mask=rows([1, 1, 2, 2, 0])) == [2, 2]


def test_three_dimensions_of_ids() -> None:
    choices = torch.tensor([[[5, 6, 7, 0], [5, 6, 0, 0], [5, 6, 7, 8]]])
    assert lengths(choices, attention_mask=(choices != 0).long()) == [3, 2, 4]


@pytest.mark.parametrize("axes", [1, 3, 4])
def test_positions_that_begin_anew(axes: int) -> None:
    positions = rows([0, 1, 2, 0, 1]).expand(axes, 1, 5)
    given = positions[0] if axes == 1 else positions
    assert lengths(PACKED[:, :5], position_ids=given) == [3, 2]


def test_positions_of_one_dimension() -> None:
    assert lengths(PACKED[:, :5], position_ids=torch.tensor([0, 1, 2, 0, 1])) == [3, 2]


def test_the_axes_of_an_image_begin_nothing() -> None:
    text, height, width = [0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]
    positions = torch.tensor([[text], [height], [width]])
    assert lengths(torch.arange(5, 12)[None], position_ids=positions) == [7]


def test_pads_behind_a_packing() -> None:
    assert lengths(PACKED, position_ids=STARTS, labels=ignore_pads(PACKED)) == [3, 2]
    assert lengths(PACKED, None, position_ids=STARTS, labels=ignore_pads(PACKED)) == [3, 2]
    assert lengths(PACKED, position_ids=STARTS) == [3, 2]
    counted_on = rows([0, 1, 2, 0, 1, 0, 1, 2])
    assert lengths(PACKED, position_ids=counted_on, attention_mask=torch.ones_like(PACKED)) == [3, 2]


def test_a_last_sequence_of_one_token_is_no_pad() -> None:
    ids, labels = rows([5, 6, 7, 8]), rows([-100, 6, 7, -100])
    assert lengths(ids, position_ids=rows([0, 1, 2, 0]), labels=labels) == [3, 1]


def test_cumulative_lengths() -> None:
    borders = torch.tensor([0, 3, 5], dtype=torch.int32)
    assert lengths(PACKED, cu_seq_lens_q=borders) == [3, 2]
    stretched = torch.tensor([0, 3, 8], dtype=torch.int32)
    assert lengths(PACKED, cu_seq_lens_q=stretched, labels=ignore_pads(PACKED)) == [3, 2]


@pytest.mark.parametrize("additive", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_a_block_diagonal_mask(additive: bool, causal: bool) -> None:
    blocks = torch.block_diag(torch.ones(3, 3), torch.ones(2, 2), torch.zeros(3, 3))
    seen = (blocks.tril() if causal else blocks).bool()[None, None]
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min) if additive else seen
    assert lengths(PACKED, attention_mask=mask) == [3, 2]


def test_a_decoders_inputs_end_with_its_labels() -> None:
    labels = rows([5, -100, 1], [5, 1, -100])
    assert lengths(rows([0, 5, 6], [0, 5, 1]), decoder=True, labels=labels) == [3, 2]
    assert lengths(rows([0, 5, 6]), decoder=True, decoder_attention_mask=rows([1, 1, 0])) == [2]
    seen = rows([1, 1, 1], [1, 1, 1])
    assert lengths(rows([0, 5, 6], [0, 5, 1]), decoder=True, labels=labels, decoder_attention_mask=seen) == [3, 2]


def test_a_call_without_these_ids_knows_nothing_of_them() -> None:
    other = ModuleCall(nn.Identity(), {"input_ids": LEFT, "attention_mask": (LEFT != 0).long()}, frozenset())
    assert measure(gather(PADDED, [other], {}, None)) == [4, 4]


def text_call(names: str, **arguments: Tensor) -> ModuleCall:
    return ModuleCall(nn.Identity(), dict(arguments), frozenset(names.split()))


@pytest.mark.parametrize("pad", [0, None])
def test_a_mask_that_marks_padding(pad: int | None) -> None:
    hidden = PADDED == 0
    for name in ("src_key_padding_mask", "padding_mask", "pad_mask"):
        assert lengths(PADDED, pad, **{name: hidden}) == [3, 2]
        assert lengths(PADDED, pad, **{name: hidden.float().masked_fill(hidden, float("-inf"))}) == [3, 2]


def test_the_name_input_mask_has_two_meanings() -> None:
    """That of BERT's own scripts, and XLNet's beside an ``attention_mask``; what the ids show decides."""
    hidden = (PADDED == 0).float()
    call = text_call("input_ids attention_mask input_mask", input_ids=PADDED, input_mask=hidden)
    assert measure(gather(PADDED, [call], {}, None)) == [3, 2]
    assert lengths(PADDED, None, input_mask=1 - hidden) == [3, 2]
    assert lengths(PADDED, 0, input_mask=hidden) == [3, 2]


def test_each_of_two_texts_has_its_mask() -> None:
    other = rows([5, 6, 7, 8], [5, 6, 7, 0])
    masks = {"src_key_padding_mask": PADDED == 0, "tgt_key_padding_mask": other == 0}
    call = text_call("src tgt", src=PADDED, tgt=other, **masks)
    assert measure(gather(PADDED, [call], {}, None)) == [3, 2]
    assert measure(gather(other, [call], {}, None)) == [4, 3]


def test_ids_that_a_model_turned() -> None:
    call = text_call("input_ids", input_ids=PADDED, attention_mask=(PADDED != 0).float())
    assert measure(gather(PADDED.t().contiguous(), [call], {}, None)) == [3, 2]


def test_the_batch_is_asked_last() -> None:
    assert measure(gather(PADDED, [], {"input_ids": PADDED, "attention_mask": PADDED != 0}, None)) == [3, 2]


def test_embeddings_have_rows_too() -> None:
    embedded = torch.randn(2, 4, 8)
    call = ModuleCall(nn.Identity(), {"inputs_embeds": embedded, "attention_mask": PADDED != 0}, frozenset())
    assert measure(gather(embedded, [call], {}, None)) == [3, 2]
