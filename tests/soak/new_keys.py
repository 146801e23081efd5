"""Very many keys that are new, on two ranks: none is lost, and exports stay quick."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from soak.readings import read
from support.distributed import Ranks

KEYS_AN_EXPORT = 50


def soak(folder: Path, keys: int) -> dict[str, float]:
    """:func:`soak_on` two ranks of its own."""
    ranks = Ranks(2)
    try:
        return soak_on(ranks, folder, keys)
    finally:
        ranks.close()


def soak_on(ranks: Ranks, folder: Path, keys: int) -> dict[str, float]:
    """Record keys that are new on one of two ranks or on both, some in every export.

    Raises:
        AssertionError: a key or its value is missing or twice, the ranks differ, an export with all keys known takes
            longer than a second, or a key of the second half costs more than 8 kB.
    """
    first, second = ranks.run(record, str(folder), keys, timeout=900)
    assert first["found"] == second["found"] == dict(_expected(keys))
    assert max(first["last_seconds"], second["last_seconds"]) < 1, (first["last_seconds"], second["last_seconds"])
    assert max(first["bytes"], second["bytes"]) < 8192, (first["bytes"], second["bytes"])
    return {
        "keys": keys,
        "seconds": first["seconds"],
        "last_export_ms": 1000 * first["last_seconds"],
        "bytes_a_key": max(first["bytes"], second["bytes"]),
    }


def _is_known_to(rank: int, key: int) -> bool:
    """Every third key both ranks have; the others one of them."""
    return key % 3 in (rank, 2)


def _expected(keys: int) -> Iterator[tuple[str, float]]:
    """The mean over the ranks that have recorded ``key + rank``."""
    return ((f"key_{key}", key + (0, 1, 0.5)[key % 3]) for key in range(keys))


def record(_: Any, folder: str, keys: int) -> dict[str, Any]:
    """On one rank: what was exported, and what it took."""
    import torch.distributed as dist
    from torch import nn

    from areal_callbacks import stats_tracker
    from areal_callbacks.integrations.fsdp import track

    rank, found, before = dist.get_rank(), {}, None
    begun = time.perf_counter()
    with track(nn.Linear(1, 1), output_dir=f"{folder}/{rank}", report=False) as metrics:
        for step, first in enumerate(range(0, keys, KEYS_AN_EXPORT)):
            new = [key for key in range(first, min(first + KEYS_AN_EXPORT, keys)) if _is_known_to(rank, key)]
            stats_tracker.scalar(**{f"key_{key}": float(key + rank) for key in new})
            exported = metrics.export(step).metrics
            assert not exported.keys() & found.keys(), "old keys came back"
            found |= exported
            if before is None and 2 * len(found) >= keys:
                before, known = read(), len(found)
        grown = (read().memory - before.memory) / (keys - known)
        stats_tracker.scalar(key_0=1.0)
        clock = time.perf_counter()
        assert metrics.export(step + 1).metrics == {"key_0": 1.0}
        last = time.perf_counter() - clock
    return {"found": found, "seconds": time.perf_counter() - begun, "last_seconds": last, "bytes": grown}
