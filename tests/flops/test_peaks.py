"""The peaks of known devices, and no peak for anything that merely looks like one."""

from __future__ import annotations

import re

import pytest

from areal_callbacks.flops import peak_flops
from areal_callbacks.flops.peaks import DTYPES, computing_dtype, peaks

BFLOAT16 = {
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
"""Figures of a reference list that was drawn up apart from the table."""

SOURCES_DISAGREE = ("NVIDIA B300 SXM6 AC", "NVIDIA GB300")
NO_BFLOAT16 = {"Tesla V100-SXM2-32GB": 125, "Tesla T4": 65}


NEAR_MISSES = """
AMD Instinct MI250X MCM
AMD Instinct MI250X/MI250
AMD Instinct MI300
AMD Instinct MI300X VF
AMD Instinct MI300XHF
AMD Instinct MI308X
AMD Instinct MI325
AMD Instinct MI350
AMD Instinct MI355
AMD Instinct MI440X
AMD Radeon PRO W7800
AMD Radeon RX 7900 XT
Ascend910
Ascend910B
Ascend910C
Ascend910_9362
GAUDI2B
GAUDI2D
GAUDI3 PCIe
GRID A100-40C
GRID V100D-32Q
H100
Intel(R) Arc(TM) B580 Graphics
Intel(R) Data Center GPU Flex 170
Intel(R) Data Center GPU Max 1550 VG
NVIDIA
NVIDIA A10-24C
NVIDIA A10-24Q
NVIDIA A100
NVIDIA A100-PCIE-80GB
NVIDIA A100-PG509-200
NVIDIA A100-SXM-64GB
NVIDIA A100-SXM4-40GB MIG 1g.5gb extra
NVIDIA A100-SXM4-40GB-LS
NVIDIA A100X
NVIDIA A10M
NVIDIA A16-16Q
NVIDIA A30 MIG 3c.2g.12gb
NVIDIA A30 MIG 5g.24gb
NVIDIA A30X
NVIDIA A40-48Q
NVIDIA A800 40GB Active
NVIDIA B100
NVIDIA B200 NVL
NVIDIA B2000
NVIDIA B300
NVIDIA GB200 MIG 8g.186gb
NVIDIA GB200 NVL72
NVIDIA GH200
NVIDIA GH200 120GB
NVIDIA GH200 144G HBM3e
NVIDIA GH200 96GB HBM3
NVIDIA GeForce RTX 3070 Ti
NVIDIA GeForce RTX 3080 Laptop GPU
NVIDIA GeForce RTX 3080 Ti
NVIDIA GeForce RTX 3090 D
NVIDIA GeForce RTX 4070 SUPER
NVIDIA GeForce RTX 4070 Ti SUPER
NVIDIA GeForce RTX 4080 Laptop GPU
NVIDIA GeForce RTX 4090 D Laptop GPU
NVIDIA GeForce RTX 4090 Laptop GPU
NVIDIA GeForce RTX 4090 SUPER
NVIDIA GeForce RTX 5090 D
NVIDIA GeForce RTX 5090 Laptop GPU
NVIDIA H100
NVIDIA H100 64GB HBM2
NVIDIA H100 80GB
NVIDIA H100 80GB HBM2e
NVIDIA H100 80GB HBM3 MIG
NVIDIA H100 80GB HBM3 MIG 0g.10gb
NVIDIA H100 80GB HBM3 MIG 1g.10gb MIG 1g.10gb
NVIDIA H100 80GB HBM3 MIG 3c.2g.20gb
NVIDIA H100 80GB HBM3 MIG 7g.80gb MIG
NVIDIA H100 80GB HBM3 MIG 8g.80gb
NVIDIA H100 80GB HBM3e
NVIDIA H100 96GB HBM3
NVIDIA H100 MIG 1g.10gb
NVIDIA H100 PCIe MIG 1g.10gb (virtual)
NVIDIA H100 SXM5
NVIDIA H100-SXM5-80GB
NVIDIA H20 NVL16
NVIDIA H20 SXM
NVIDIA H20-3e
NVIDIA H200 PCIe
NVIDIA H200 SXM 141GB
NVIDIA H2000
NVIDIA H20Z
NVIDIA H800 NVL
NVIDIA L2
NVIDIA L20-48C
NVIDIA L4 MIG 1g.6gb
NVIDIA L4-24Q
NVIDIA L40-48Q
NVIDIA L40G
NVIDIA L40S MIG 1g.12gb
NVIDIA L40S-48Q
NVIDIA L4S
NVIDIA RTX 4000 SFF Ada Generation
NVIDIA RTX 5000 Ada Generation Laptop GPU
NVIDIA RTX 6000 Ada
NVIDIA RTX A5000 Laptop GPU
NVIDIA RTX A6000 Laptop GPU
NVIDIA RTX PRO 6000
NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition
NVIDIA RTX PRO 6000 Blackwell Server Edition
NVIDIA TITAN V
NVIDIA Thor
NVIDIA_A100-SXM4-80GB
Quadro RTX 6000 with Max-Q Design
TPU v5
TPU v5e
TPU7x
Tesla T40
Tesla T4G
Tesla V100-DGXS-32GB
Tesla V100-FHHL-16GB
Tesla V100-SXM2-16GB-LS
cpu
nvidia a100-sxm4-80gb
nvidia h200
"""
"""Other variants, laptops, virtual parts, sparse spellings, marketing names; the first line is no name at all."""


@pytest.mark.parametrize("name", BFLOAT16)
def test_known_devices(name: str) -> None:
    peak = peak_flops(name)
    assert isinstance(peak, float)
    assert peak == round(BFLOAT16[name] * 100) * 10**10


@pytest.mark.parametrize("name", SOURCES_DISAGREE)
def test_devices_without_a_figure_to_rely_on(name: str) -> None:
    assert name in peaks()
    assert [peak_flops(name, dtype) for dtype in DTYPES] == [None] * 5


@pytest.mark.parametrize("name", NO_BFLOAT16)
def test_devices_without_bfloat16_units(name: str) -> None:
    assert peak_flops(name) is None
    assert peak_flops(name, "fp16") == NO_BFLOAT16[name] * 1e12


def test_the_table_is_long_and_every_row_has_source_and_date() -> None:
    assert len(peaks()) >= 60
    for peak in peaks().values():
        assert peak.source
        assert re.fullmatch(r"20\d\d-\d\d", peak.date)


def test_narrower_formats_are_not_slower() -> None:
    """Dense rates double with each step on tensor cores, and never fall: a slip of a column would show."""
    for name, peak in peaks().items():
        rates = [peak.tflops[dtype] for dtype in ("fp32", "tf32", "bf16", "fp8") if dtype in peak.tflops]
        assert rates == sorted(rates), name
        if {"tf32", "bf16"} <= peak.tflops.keys():
            assert peak.tflops["bf16"] / peak.tflops["tf32"] == pytest.approx(2, rel=0.02), name
        if {"bf16", "fp16"} <= peak.tflops.keys():
            assert peak.tflops["fp16"] / peak.tflops["bf16"] in (1, 2), name


@pytest.mark.parametrize("name", [line.strip() for line in NEAR_MISSES.splitlines()])
def test_near_misses_are_unknown(name: str) -> None:
    assert [peak_flops(name, dtype) for dtype in DTYPES] == [None] * 5


def test_other_characters_that_look_alike_are_unknown() -> None:
    assert peak_flops("NVIDIA H200\N{ZERO WIDTH SPACE}") is None
    assert peak_flops("\N{FULLWIDTH LATIN CAPITAL LETTER N}VIDIA H200") is None


def test_white_space_is_normalised() -> None:
    assert peak_flops("  NVIDIA   H100\tPCIe \n") == 756e12


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 312 / 7),
        ("NVIDIA A100-SXM4-40GB MIG 7g.40gb", 312),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", 312 / 7),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", 312 / 7),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 989.4 * 3 / 7),
        ("NVIDIA A30 MIG 2g.12gb", 165 / 2),
    ],
)
def test_parts_of_a_device_have_their_share(name: str, share: float) -> None:
    assert peak_flops(name) == pytest.approx(share * 1e12, rel=1e-12)


def test_formats_are_told_apart() -> None:
    h100 = "NVIDIA H100 80GB HBM3"
    rates = {"fp32": 67e12, "torch.float32": 67e12, "tf32": 494.7e12, "torch.bfloat16": 989.4e12, "half": 989.4e12}
    assert {dtype: peak_flops(h100, dtype) for dtype in rates} == rates
    assert peak_flops(h100, "torch.float8_e4m3fn") == 1978.9e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp8") is None
    with pytest.raises(ValueError, match=r"'int8'; known are fp32, tf32, bf16, fp16, fp8"):
        peak_flops(h100, "int8")


def test_the_format_that_computes() -> None:
    assert computing_dtype("torch.float32") == "fp32"
    assert computing_dtype("torch.float32", tf32=True) == "tf32"
    assert computing_dtype("torch.float32", autocast="torch.bfloat16", tf32=True) == "bf16"
    assert computing_dtype("torch.bfloat16") == "bf16"
    assert computing_dtype("torch.bfloat16", autocast="torch.float16") == "fp16"
    assert computing_dtype("torch.bfloat16", fp8=True) == "fp8"
