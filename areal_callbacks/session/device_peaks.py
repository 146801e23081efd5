"""The dense peak of the devices that a rank trains on, and one message where it is not known."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from areal_callbacks.flops.peaks import peak_flops
from areal_callbacks.safety.reporting import report_once

_ADVICE = "train_perf/mfu is left out; flops: {peak_flops: …} gives the FLOP/s of one device"


def count_devices(parts: Sequence[nn.Module]) -> int:
    """Devices that this process trains on: several under DataParallel."""
    return max((len(part.device_ids) for part in parts if isinstance(part, nn.DataParallel)), default=1) or 1


def find_device_name(device: torch.device) -> str | None:
    """The name that the driver gives an accelerator; its type where there is no such thing; None for the CPU."""
    if device.type in ("cpu", "meta"):
        return None
    name_of = getattr(getattr(torch, device.type, None), "get_device_name", None)
    return device.type if name_of is None else str(name_of(device))


def find_peak(name: str, number_format: str | None) -> float | None:
    """Dense FLOP/s of one device; a message where it is not known.

    Args:
        name: of the device.
        number_format: of the products; None where that cannot be told.
    """
    if number_format is None:
        report_once("flops:peak", f"it cannot be told in which number format {name!r} computes: {_ADVICE}")
        return None
    peak = peak_flops(name, number_format)
    if peak is None:
        report_once("flops:peak", f"no peak FLOP/s is known for {name!r} in {number_format}: {_ADVICE}")
    return peak
