"""The peaks of known devices, and no peak for anything that merely looks like one."""

from __future__ import annotations

import re

import pytest

from areal_callbacks.flops import peak_flops
from areal_callbacks.flops.peaks import PEAKS

TERAFLOPS = {
    "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H100 PCIe": 756,
    "NVIDIA H100 NVL": 835,
    "NVIDIA H200": 989.4,
    "NVIDIA H200 NVL": 836,
    "NVIDIA GH200 480GB": 989.4,
    "NVIDIA H20": 148,
    "NVIDIA H800": 989.4,
    "NVIDIA B200": 2250,
    "NVIDIA GB200": 2500,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100 80GB PCIe": 312,
    "NVIDIA A800-SXM4-80GB": 312,
    "NVIDIA L40S": 362.05,
    "NVIDIA L40": 181.05,
    "NVIDIA L4": 121,
    "NVIDIA A10": 125,
    "NVIDIA A10G": 70,
    "NVIDIA RTX A6000": 154.8,
    "NVIDIA A40": 149.7,
    "NVIDIA GeForce RTX 4090": 165.2,
    "NVIDIA GeForce RTX 5090": 209.5,
    "NVIDIA RTX 6000 Ada Generation": 364.2,
    "AMD Instinct MI300X": 1307.4,
    "AMD Instinct MI325X": 1307.4,
    "AMD Instinct MI355X": 2516.6,
    "AMD Instinct MI350X": 2306.9,
}
SOURCES_DISAGREE = ("NVIDIA B300 SXM6 AC", "NVIDIA GB300")
NO_BFLOAT16 = ("Tesla V100-SXM2-32GB", "Tesla T4")


@pytest.mark.parametrize("name", TERAFLOPS)
def test_known_devices(name: str) -> None:
    peak = peak_flops(name)
    assert isinstance(peak, float)
    assert peak == round(TERAFLOPS[name] * 100) * 10**10


@pytest.mark.parametrize("name", [*SOURCES_DISAGREE, *NO_BFLOAT16])
def test_devices_without_a_figure_to_rely_on(name: str) -> None:
    assert name in PEAKS
    assert peak_flops(name) is None


def test_every_row_is_tested_and_has_source_and_date() -> None:
    assert PEAKS.keys() == {*TERAFLOPS, *SOURCES_DISAGREE, *NO_BFLOAT16}
    for peak in PEAKS.values():
        assert peak.source
        assert re.fullmatch(r"20\d\d-\d\d", peak.date)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu",
        "NVIDIA",
        "H100",
        "NVIDIA H100",
        "NVIDIA H100 80GB",
        "NVIDIA H100 80GB HBM3e",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H2000",
        "NVIDIA H20-3e",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA L4S",
        "NVIDIA L40G",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100X",
        "NVIDIA A10M",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "AMD Instinct MI300A",
        "nvidia h200",
    ],
)
def test_near_misses_are_unknown(name: str) -> None:
    assert peak_flops(name) is None


def test_white_space_is_normalised() -> None:
    assert peak_flops("  NVIDIA   H100\tPCIe \n") == 756e12
