"""Log-probabilities to compare, and what the package says about them."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from support.ppo_reference import below
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.train_infer import log_train_inference_stats

SCOPE = "ppo_actor/train_infer/"

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Trainer's and rollout's log-probabilities and the mask, of one shape."""


def make_batch(rows: int, width: int, seed: int, spread: float = 0.3, fill: float = 0.7) -> Batch:
    """Float64 ``[rows, width]`` with differences of a standard deviation ``spread``; a part ``fill`` is valid."""
    generator = torch.Generator().manual_seed(seed)
    trainer = -3 * torch.rand(rows, width, generator=generator).double()
    rollout = trainer - spread * torch.randn(rows, width, generator=generator).double()
    return trainer, rollout, torch.rand(rows, width, generator=generator) < fill


def measure(*batches: tuple[Any, Any, Any], **options: Any) -> dict[str, float]:
    """Record batches of tensors or lists one after the other and export them, names below ``train_infer/``."""
    tracker = StatsTracker()
    for batch in batches:
        trainer, rollout, mask = (torch.as_tensor(part) for part in batch)
        log_train_inference_stats(trainer, rollout, mask, tracker, **options)
    return below(SCOPE, tracker.export())


def differences(*batches: Batch) -> npt.NDArray[np.float64]:
    """d of the valid tokens of all batches, float64 ``[n]``."""
    return np.concatenate([(trainer.numpy() - rollout.numpy())[mask.numpy()] for trainer, rollout, mask in batches])


def held_bytes(root: object) -> int:
    """Memory of all tensors that can be reached from an object."""
    seen: set[int] = set()
    waiting: list[Any] = [root]
    storages: dict[int, int] = {}
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        else:
            waiting.extend(gc.get_referents(item))
    return sum(storages.values())
