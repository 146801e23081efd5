"""Sequence lengths from what Megatron's models are called with."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from areal_callbacks.monitors.throughput.megatron_lengths import MegatronLengths

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing megatron.core warns about Apex, and about what torch deprecates
    from megatron.core.packed_seq_params import PackedSeqParams

TOKENS = torch.zeros(2, 8, dtype=torch.long)
POSITIONS = torch.arange(8).expand(2, 8)


def lengths(*args: Any, shards: int = 1, **kwargs: Any) -> list[int]:
    """The nonzero ones, sorted."""
    told = MegatronLengths(shards)(*args, **kwargs)
    values = told if isinstance(told, list) else told.values.tolist()
    assert isinstance(told, list) or max(values) <= told.bound
    return sorted(value for value in values if value)


def packed(*boundaries: int, padded: list[int] | None = None) -> PackedSeqParams:
    ends = torch.tensor(boundaries, dtype=torch.int32)
    padding = None if padded is None else torch.tensor(padded, dtype=torch.int32)
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, cu_seqlens_q_padded=padding)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_a_row_is_a_sequence_whose_parts_lie_on_several_ranks(shards: int) -> None:
    assert lengths(TOKENS, POSITIONS, None, shards=shards, labels=TOKENS) == [8 * shards] * 2


def test_arguments_may_come_by_name() -> None:
    assert lengths(input_ids=TOKENS, position_ids=POSITIONS, attention_mask=None) == [8, 8]
    assert lengths(input_ids=TOKENS, shards=2) == [16, 16]


def test_a_square_attention_mask_tells_nothing_about_padding() -> None:
    mask = torch.ones(2, 1, 8, 8).triu(1).bool()
    assert lengths(TOKENS, POSITIONS, mask) == [8, 8]


def test_packed_batches_tell_whole_sequences_on_every_rank() -> None:
    whole, part = torch.zeros(1, 16, dtype=torch.long), torch.zeros(1, 8, dtype=torch.long)
    assert lengths(whole, None, None, packed_seq_params=packed(0, 5, 6, 16)) == [1, 5, 10]
    assert lengths(part, None, None, shards=2, packed_seq_params=packed(0, 5, 6, 16)) == [1, 5, 10]


def test_alignment_between_packed_sequences_is_no_token() -> None:
    whole = torch.zeros(1, 16, dtype=torch.long)
    assert lengths(whole, None, None, packed_seq_params=packed(0, 5, 12, padded=[0, 8, 16])) == [5, 7]
    assert lengths(whole, None, None, packed_seq_params=packed(0, 5, 12, 12, 12)) == [5, 7]


def test_padding_is_left_out_where_it_is_marked() -> None:
    padding = torch.zeros(2, 8, dtype=torch.bool)
    padding[1, 3:] = True
    assert lengths(TOKENS, POSITIONS, None, padding_mask=padding) == [3, 8]


def test_positions_that_restart_begin_a_sequence() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7]])
    assert lengths(TOKENS, positions, None) == [3, 5, 8]


def test_no_token_ids_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    for shards in (1, 2):
        assert lengths(None, None, None, shards=shards, decoder_input=torch.zeros(8, 2, 4)) == []
    assert [record.getMessage() for record in caplog.records] == [
        "the first pipeline stage is given no token ids: pass token_count_fn to count tokens"
    ]
