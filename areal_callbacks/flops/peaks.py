"""Dense peak FLOP/s of accelerators, the denominator of model FLOPs utilisation.

A wrong peak is worse than none: names are compared whole, so that no variant (SXM, PCIe, NVL, 40S) passes for another,
and a device that is unknown, has no units for a number format, or on which sources disagree has no peak.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")
"""Number formats of matrix products, as the columns of ``peaks.csv`` name them."""

_SPELLINGS = {"float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
_FLOAT8 = "float8"
_MIG = re.compile(r"(?P<device>.+) MIG (?:(?P<compute>[1-7])c\.)?(?P<slices>[1-7])g\.\d+gb(?:\+\S+)?")


@dataclass(frozen=True)
class Peak:
    """One device.

    Attributes:
        tflops: number format → dense (not 2:4 sparse) TFLOP/s with float32 accumulation, for those with a figure.
        mig_slices: into how many equal parts MIG divides the device; 0 where it cannot.
        source: where the figures come from, or why there is none.
        date: year and month in which they were taken over.
    """

    tflops: Mapping[str, float]
    mig_slices: int
    source: str
    date: str


@functools.cache
def peaks() -> Mapping[str, Peak]:
    """Device name as PyTorch's ``get_device_name()`` gives it → its peak; the rows of ``peaks.csv``."""
    with resources.files("areal_callbacks.flops").joinpath("peaks.csv").open(encoding="utf-8") as file:
        return MappingProxyType({row["device"]: _peak(row) for row in csv.DictReader(file)})


def _peak(row: Mapping[str, str]) -> Peak:
    tflops = {dtype: float(row[dtype]) for dtype in DTYPES if row[dtype]}
    return Peak(MappingProxyType(tflops), int(row["mig_slices"] or 0), row["source"], row["date"])


def peak_flops(device_name: str, dtype: str = "bf16") -> float | None:
    """Dense FLOP/s of a device, None if there is no figure to rely on.

    Args:
        device_name: as ``torch.cuda.get_device_name()`` gives it; only runs of white space are normalised. A MIG
            instance has its share of the device (NVIDIA MIG user guide, "Fraction of SMs").
        dtype: the format of the products: one of :data:`DTYPES`, or a name such as ``"torch.bfloat16"``.

    Raises:
        ValueError: an unknown dtype.
    """
    column, name = dtype_column(dtype), " ".join(device_name.split())
    if (peak := peaks().get(name)) is not None:
        return _flops(peak, column, 1, 1)
    match = _MIG.fullmatch(name)
    peak = peaks().get(match["device"]) if match else None
    if match is None or peak is None or int(match["slices"]) > peak.mig_slices:
        return None
    share = int(match["compute"] or match["slices"])
    return _flops(peak, column, share, peak.mig_slices) if share <= int(match["slices"]) else None


def dtype_column(dtype: str) -> str:
    """One of :data:`DTYPES` for the name of a dtype. Raises ValueError for an unknown one."""
    name = str(dtype).removeprefix("torch.").lower()
    column = "fp8" if name.startswith(_FLOAT8) else _SPELLINGS.get(name, name)
    if column not in DTYPES:
        raise ValueError(f"no peak is known for dtype {dtype!r}; known are {', '.join(DTYPES)}")
    return column


def computing_dtype(parameters: str, *, autocast: str | None = None, tf32: bool = False, fp8: bool = False) -> str:
    """The format in which matrix products are computed.

    Args:
        parameters: dtype of the weights.
        autocast: dtype of autocast where it is on; it then decides instead of the weights.
        tf32: whether float32 products may use TensorFloat-32 (``torch.backends.cuda.matmul``).
        fp8: whether linear layers run in an fp8 recipe.
    """
    if fp8:
        return "fp8"
    column = dtype_column(autocast or parameters)
    return "tf32" if column == "fp32" and tf32 else column


def _flops(peak: Peak, column: str, share: int, of: int) -> float | None:
    tflops = peak.tflops.get(column)
    return None if tflops is None else float(round(tflops * 1e12 * share / of))
