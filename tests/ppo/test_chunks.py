"""Flat pieces of tensors, and sums by bin against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from areal_callbacks.ppo.chunks import chunk_size, split_flat, sum_by_bin


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 150_000])
def test_pieces_are_the_tensors_in_order(size):
    one, two = torch.arange(2 * size).reshape(2, size), torch.randn(2, size)
    pieces = list(split_flat(one, two))
    assert all(len(piece) == chunk_size(one) for piece, _ in pieces[:-1])
    for tensor, parts in zip((one, two), zip(*pieces)):
        assert torch.equal(torch.cat(parts), tensor.reshape(-1))
    assert bool(pieces) == bool(size)


def test_sums_by_bin():
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(0, 5, (1000,), generator=generator)
    weights = torch.randn(1000, generator=generator).double()
    np.testing.assert_array_equal(sum_by_bin(indices, 7), np.bincount(indices, minlength=7))
    expected = np.bincount(indices, weights.numpy(), minlength=7)
    np.testing.assert_allclose(sum_by_bin(indices, 7, weights), expected, rtol=1e-12)
    assert sum_by_bin(indices, 7).dtype == sum_by_bin(indices, 7, weights).dtype == torch.float64
