"""Sequence lengths from what Megatron's models are called with."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from areal_callbacks.monitors.throughput.megatron_lengths import MegatronLengths

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing megatron.core warns about Apex, and about what torch deprecates
    from megatron.core.models.bert.bert_model import BertModel
    from megatron.core.models.mamba import MambaModel
    from megatron.core.models.multimodal.llava_model import LLaVAModel
    from megatron.core.models.T5.t5_model import T5Model
    from megatron.core.packed_seq_params import PackedSeqParams


def positional_names_of(model: type) -> list[str]:
    return list(inspect.signature(model.forward).parameters)[1:]  # type: ignore[attr-defined]


TOKENS = torch.zeros(2, 8, dtype=torch.long)
POSITIONS = torch.arange(8).expand(2, 8)


def lengths(*args: Any, shards: int = 1, names: Sequence[str] | None = None, **kwargs: Any) -> list[int]:
    """The nonzero ones, sorted."""
    told = MegatronLengths(shards, names)(*args, **kwargs)
    values = told if isinstance(told, list) else told.values.tolist()
    assert isinstance(told, list) or max(values) <= told.bound
    return sorted(value for value in values if value)


def packed(*boundaries: int, padded: list[int] | None = None, **options: Any) -> PackedSeqParams:
    ends = torch.tensor(boundaries, dtype=torch.int32)
    padding = None if padded is None else torch.tensor(padded, dtype=torch.int32)
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, cu_seqlens_q_padded=padding, **options
    )


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


def test_the_masks_of_encoders() -> None:
    """BERT's script gives its padding second, by position, and 1 marks what is none."""
    padding = torch.ones(2, 8, dtype=torch.long)
    padding[1, 3:] = 0
    names = positional_names_of(BertModel)
    assert lengths(TOKENS, padding, names=names, tokentype_ids=None) == [3, 8]
    assert lengths(TOKENS, padding, tokentype_ids=None) == [3, 8]


@pytest.mark.parametrize("known", [True, False])
def test_an_encoder_decoder_has_the_sequences_of_both(known: bool) -> None:
    names = positional_names_of(T5Model) if known else None
    decoded = torch.zeros(2, 5, dtype=torch.long)
    visible = torch.zeros(2, 1, 8, 8, dtype=torch.bool)
    visible[0, :, :6, :6] = True
    visible[1] = True
    assert lengths(TOKENS, decoded, None, None, None, names=names) == [5, 5, 8, 8]
    assert lengths(TOKENS, decoded, ~visible, None, None, names=names) == [5, 5, 6, 8]
    told = MegatronLengths(1, names)(TOKENS, decoded, ~visible, None, None)
    assert not isinstance(told, list)
    assert told.pairs is not None
    assert [side.tolist() for side in told.pairs] == [[6, 8], [5, 5]]


@pytest.mark.parametrize(("model", "before"), [(MambaModel, ()), (LLaVAModel, (torch.zeros(3, 3, 4, 4),))])
def test_other_models_name_their_arguments(model: type, before: tuple[Any, ...]) -> None:
    """A multimodal model is given its images first."""
    assert lengths(*before, TOKENS, POSITIONS, None, names=positional_names_of(model)) == [8, 8]


def test_hybrid_context_parallelism_counts_a_sequence_once() -> None:
    part = torch.zeros(1, 12, dtype=torch.long)
    assert lengths(part, None, None, packed_seq_params=packed(0, 24, local_cp_size=2)) == [24]


def test_a_last_conversation_that_fills_the_pack() -> None:
    tokens = torch.tensor([[5, 6, 7, 8, 9, 9, 4, 3, 0, 0, 0, 0]])
    loss = torch.tensor([[0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0.0]])
    pack = packed(0, 4, 12)
    assert lengths(tokens, None, None, packed_seq_params=pack, loss_mask=loss) == [4, 4]
    assert lengths(tokens[:, :9], None, None, packed_seq_params=packed(0, 4, 9), loss_mask=loss[:, :9]) == [4, 5]
    assert lengths(tokens, None, None, packed_seq_params=pack) == [4, 8]  # nothing tells
