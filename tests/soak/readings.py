"""What a process holds, so that a soak can tell whether it grows."""

from __future__ import annotations

import ctypes
import gc
import threading
from dataclasses import dataclass
from pathlib import Path

PAGE = 4096


@dataclass(frozen=True)
class Reading:
    """What this process holds now.

    Attributes:
        memory: resident, in bytes; what the C library could give back is given back first.
        threads: of the operating system.
        handles: open files, sockets and pipes.
        objects: that Python's garbage collector knows.
    """

    memory: int
    threads: int
    handles: int
    objects: int


def read() -> Reading:
    """After a garbage collection. Linux."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return Reading(
        memory=int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
        threads=max(len(list(Path("/proc/self/task").iterdir())), threading.active_count()),
        handles=len(list(Path("/proc/self/fd").iterdir())),
        objects=len(gc.get_objects()),
    )


def check_flat(before: Reading, after: Reading, *, megabytes: float, objects: int) -> None:
    """Raise if the process has grown by more than that; threads and handles may not grow at all."""
    assert after.threads <= before.threads, (before, after)
    assert after.handles <= before.handles, (before, after)
    assert after.objects <= before.objects + objects, (before, after)
    assert after.memory <= before.memory + megabytes * 2**20, (before, after)
