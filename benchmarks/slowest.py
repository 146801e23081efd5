"""Time over ranks, which is that of the slowest."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist


def timed(call: Callable[[], object]) -> float:
    """Seconds that the slowest rank took."""
    dist.barrier()
    start = time.perf_counter()
    call()
    seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)
