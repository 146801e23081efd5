"""Dense bfloat16 peak FLOP/s of accelerators, the denominator of model FLOPs utilisation.

A wrong peak is worse than none: names are compared whole, so that no variant (SXM, PCIe, NVL, 40S) passes for another,
and a device that is unknown, has no bfloat16 units, or on which sources disagree has no peak.
"""

from __future__ import annotations

from dataclasses import dataclass

_TABLE_DATE = "2026-11"
_SEVERAL = "several published tables agree"
_DATASHEET = "vendor datasheet figure as commonly quoted, one source"


@dataclass(frozen=True)
class Peak:
    """One device.

    Attributes:
        tflops: dense (not 2:4 sparse) bfloat16 TFLOP/s with float32 accumulation; None where no figure is reliable.
        source: where the figure comes from, or why there is none.
        date: year and month in which the figure was taken over.
    """

    tflops: float | None
    source: str = _DATASHEET
    date: str = _TABLE_DATE


PEAKS: dict[str, Peak] = {
    "NVIDIA H100 80GB HBM3": Peak(989.4, _SEVERAL),
    "NVIDIA H100 PCIe": Peak(756),
    "NVIDIA H100 NVL": Peak(835),
    "NVIDIA H200": Peak(989.4, _SEVERAL),
    "NVIDIA H200 NVL": Peak(836),
    "NVIDIA GH200 480GB": Peak(989.4),
    "NVIDIA H20": Peak(148),
    "NVIDIA H800": Peak(989.4),
    "NVIDIA B200": Peak(2250, _SEVERAL),
    "NVIDIA GB200": Peak(2500, "half of the superchip's figure; two published tables agree"),
    "NVIDIA B300 SXM6 AC": Peak(None, "sources disagree: 2250 to 3500"),
    "NVIDIA GB300": Peak(None, "sources disagree: 2500 and others"),
    "NVIDIA A100-SXM4-80GB": Peak(312),
    "NVIDIA A100 80GB PCIe": Peak(312),
    "NVIDIA A800-SXM4-80GB": Peak(312),
    "NVIDIA L40S": Peak(362.05),
    "NVIDIA L40": Peak(181.05),
    "NVIDIA L4": Peak(121),
    "NVIDIA A10": Peak(125),
    "NVIDIA A10G": Peak(70),
    "NVIDIA RTX A6000": Peak(154.8),
    "NVIDIA A40": Peak(149.7),
    "NVIDIA GeForce RTX 4090": Peak(165.2),
    "NVIDIA GeForce RTX 5090": Peak(209.5),
    "NVIDIA RTX 6000 Ada Generation": Peak(364.2),
    "Tesla V100-SXM2-32GB": Peak(None, "no bfloat16 units (125 in float16)"),
    "Tesla T4": Peak(None, "no bfloat16 units (65 in float16)"),
    "AMD Instinct MI300X": Peak(1307.4),
    "AMD Instinct MI325X": Peak(1307.4),
    "AMD Instinct MI350X": Peak(2306.9),
    "AMD Instinct MI355X": Peak(2516.6),
}
"""Device name as ``torch.cuda.get_device_name()`` gives it → its peak."""


def peak_flops(device_name: str) -> float | None:
    """Dense bfloat16 FLOP/s of a device, None if there is no figure to rely on.

    Args:
        device_name: as ``torch.cuda.get_device_name()`` gives it; only runs of white space are normalised.
    """
    peak = PEAKS.get(" ".join(device_name.split()))
    if peak is None or peak.tflops is None:
        return None
    return float(round(peak.tflops * 1e12))
