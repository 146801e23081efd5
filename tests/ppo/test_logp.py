"""Chunks of the compared log-probabilities."""

from __future__ import annotations

import pytest
import torch

from areal_callbacks.ppo.logp import SampledLogp, align, split_valid


def test_masks_and_dtypes_are_aligned_without_a_change():
    trainer, rollout = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3).bfloat16()
    logp = align(trainer, rollout, torch.tensor([[1.0, 0, 1], [0, 0, 2]]))
    assert logp.mask.tolist() == [[True, False, True], [False, False, True]]
    assert torch.equal(logp.trainer_logp, trainer)
    assert torch.equal(logp.rollout_logp, rollout)
    assert not logp.trainer_logp.requires_grad


@pytest.mark.parametrize("fill", [0.0, 0.3, 1.1])
def test_chunks_on_the_cpu_are_the_valid_tokens_in_order(fill):
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(5, 40_000, generator=generator) < fill
    trainer, rollout = torch.arange(200_000.0).reshape(5, -1), -torch.arange(200_000.0).reshape(5, -1)
    chunks = list(split_valid(SampledLogp(mask, trainer, rollout)))
    assert all(chunk.mask is None for chunk in chunks)
    assert [float(value) for chunk in chunks for value in chunk.trainer_logp] == trainer[mask].tolist()
    assert [float(value) for chunk in chunks for value in chunk.rollout_logp] == rollout[mask].tolist()


def test_chunks_on_other_devices_keep_padding_and_mask():
    logp = torch.zeros(3, 500_000, device="meta")
    chunks = list(split_valid(SampledLogp(logp.bool(), logp, logp)))
    assert sum(len(chunk.mask) for chunk in chunks) == sum(len(chunk.trainer_logp) for chunk in chunks) == 1_500_000
    assert len(chunks) == 2
