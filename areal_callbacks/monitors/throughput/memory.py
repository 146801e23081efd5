"""Device memory, as the allocator of the accelerator counts it: no synchronisation, nothing is reset."""

from __future__ import annotations

import torch

_GIB = 2.0**30
_PEAKS = {"allocated": "max_memory_allocated", "reserved": "max_memory_reserved"}


def read_memory(device: torch.device) -> dict[str, float]:
    """``device_memory/peak_{allocated,reserved}_gib`` of this process so far; empty where the device does not count.

    The peaks are those since the process began, or since its code has reset them; in GiB.
    """
    module = getattr(torch, device.type, None)
    counters = {name: getattr(module, function, None) for name, function in _PEAKS.items()}
    return {
        f"device_memory/peak_{name}_gib": float(counter(device)) / _GIB
        for name, counter in counters.items()
        if counter is not None
    }
