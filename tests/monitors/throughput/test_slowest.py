"""The slowest rank in the lowest bits of its seconds."""

from __future__ import annotations

import struct

import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_callbacks.monitors.throughput.slowest import decode_rank, encode_rank

RANKS = st.integers(0, 2**20 - 1)
SECONDS = st.floats(1e-9, 1e9)


@given(SECONDS, RANKS)
def test_the_rank_comes_back_and_the_seconds_hardly_change(seconds, rank):
    code = encode_rank(seconds, rank)
    assert decode_rank(code) == rank
    assert abs(code - seconds) <= seconds * 2**-32


@given(st.lists(st.tuples(SECONDS, RANKS), min_size=1, max_size=8))
def test_the_maximum_is_that_of_the_slowest(ranks):
    codes = torch.tensor([encode_rank(seconds, rank) for seconds, rank in ranks], dtype=torch.float64)
    slowest = max(seconds for seconds, _ in ranks)
    told = decode_rank(float(codes.max()))
    assert any(rank == told and seconds >= slowest * (1 - 2**-31) for seconds, rank in ranks)


def test_no_seconds_are_a_number_too():
    assert decode_rank(encode_rank(0.0, 7)) == 7
    assert struct.pack("<d", encode_rank(0.0, 0)) == bytes(8)
