"""What the devices of a rank can compute at most, and one message where nobody knows."""

from __future__ import annotations

import pytest
import torch
from support.readback import messages
from torch import nn

from areal_callbacks.flops.peaks import peaks
from areal_callbacks.session.device_peaks import count_devices, find_device_name, find_peak


def test_a_device_has_the_name_that_its_driver_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Card {device.index}")
    assert find_device_name(torch.device("cuda", 1)) == "Card 1"
    assert find_device_name(torch.device("xla", 0)) == "xla"  # torch has no module that would tell
    assert find_device_name(torch.device("cpu")) is None
    assert find_device_name(torch.device("meta")) is None


def test_data_parallel_computes_on_several_devices() -> None:
    several, none = nn.DataParallel(nn.Linear(2, 2)), nn.DataParallel(nn.Linear(2, 2))
    several.device_ids, none.device_ids = [0, 1, 2], []
    assert count_devices([several]) == 3
    assert count_devices([none]) == count_devices([nn.Linear(2, 2)]) == count_devices([]) == 1
    assert count_devices([nn.Linear(2, 2), several]) == 3


def test_a_known_device_has_the_peak_of_the_format(caplog: pytest.LogCaptureFixture) -> None:
    name, peak = next((name, peak) for name, peak in peaks().items() if {"bf16", "fp32"} <= peak.tflops.keys())
    assert find_peak(name, "bf16") == peak.tflops["bf16"] * 1e12
    assert find_peak(name, "fp32") == peak.tflops["fp32"] * 1e12
    assert messages(caplog) == []


@pytest.mark.parametrize(("number_format", "said"), [("fp32", "no peak FLOP/s is known"), (None, "it cannot be told")])
def test_what_is_not_known_is_said_once_with_what_to_do(
    number_format: str | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert find_peak("Some Accelerator 9000", number_format) is None
    (message,) = messages(caplog)
    assert message.startswith(said)
    assert "'Some Accelerator 9000'" in message
    assert "peak_flops" in message
