"""The log-probabilities that are compared: aligned, on one device, in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from areal_callbacks.ppo.chunks import split_flat
from areal_callbacks.ppo.tensors import move, to_bool, to_float64_device


class SampledLogp(NamedTuple):
    """Log-probabilities of the same sampled tokens by trainer and rollout engine; all of one shape, on one device.

    Attributes:
        mask: bool: which tokens count.
        trainer_logp, rollout_logp: any float dtype; anything where the mask is false.
    """

    mask: Tensor
    trainer_logp: Tensor
    rollout_logp: Tensor


class LogpChunk(NamedTuple):
    """A flat piece of N positions of :class:`SampledLogp`.

    Attributes:
        mask: bool ``[N]``. None on the CPU, where only valid tokens are in the chunk and a result can be read without a
            wait.
        trainer_logp, rollout_logp: ``[N]``, any float dtype.
    """

    mask: Tensor | None
    trainer_logp: Tensor
    rollout_logp: Tensor


def align(trainer_logp: Tensor, rollout_logp: Tensor, mask: Tensor) -> SampledLogp:
    """Bring tensors of one shape to the trainer's device, or to the CPU if that device has no float64."""
    trainer_logp = to_float64_device(trainer_logp)
    device = trainer_logp.device
    return SampledLogp(move(to_bool(mask), device), trainer_logp, move(to_float64_device(rollout_logp), device))


def split_valid(logp: SampledLogp) -> Iterator[LogpChunk]:
    """Chunks of the valid tokens; on devices other than the CPU of all positions, with their masks."""
    for mask, trainer_logp, rollout_logp in split_flat(*logp):
        if mask.device.type != "cpu":
            yield LogpChunk(mask, trainer_logp, rollout_logp)
        elif mask.all():
            yield LogpChunk(None, trainer_logp, rollout_logp)
        elif mask.any():
            valid = mask.nonzero().squeeze(1)  # once for both; twice as fast as indexing with the mask itself
            yield LogpChunk(None, trainer_logp.index_select(0, valid), rollout_logp.index_select(0, valid))
