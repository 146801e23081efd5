"""The peak of a device, for the format in which the first training forward computed; the names are torch's to give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from areal_callbacks.config import FlopsConfig
from areal_callbacks.monitors.throughput.monitor import ThroughputMonitor
from areal_callbacks.monitors.training_forward import TrainingForward
from areal_callbacks.safety.reporting import logger
from areal_callbacks.session.estimates import Estimates

CUDA = torch.device("cuda")


def settled(model: nn.Module, options: FlopsConfig, dtype: torch.dtype, device: torch.device = CUDA) -> float | None:
    """The peak after one training forward, which runs on the CPU."""
    forward, monitor = TrainingForward(), ThroughputMonitor(torch.device("cpu"))
    estimates = Estimates([model], device, options, lambda length: length, forward)
    monitor.peak_flops = estimates.peak_flops
    forward.attach([model])
    estimates.on_forward(monitor, model)
    model(torch.ones(1, 4, dtype=dtype))
    estimates.before_export(monitor)
    forward.detach()
    assert not any(len(module._forward_hooks) for module in model.modules())
    return monitor.peak_flops


@pytest.fixture
def device_name(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: request.param)


@pytest.mark.parametrize("device_name", ["NVIDIA A100-SXM4-80GB"], indirect=True)
@pytest.mark.usefixtures("device_name")
@pytest.mark.parametrize(
    ("dtype", "peak"), [(torch.bfloat16, 312e12), (torch.float16, 312e12), (torch.float32, 19.5e12)]
)
def test_the_peak_is_that_of_the_format(dtype: torch.dtype, peak: float) -> None:
    """Figures of NVIDIA's data sheet of the A100."""
    assert settled(nn.Sequential(nn.Linear(4, 4)).to(dtype), FlopsConfig(), dtype) == peak


@pytest.mark.parametrize("device_name", ["Some Accelerator 9000"], indirect=True)
@pytest.mark.usefixtures("device_name")
def test_an_unknown_device_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert settled(nn.Sequential(nn.Linear(4, 4)), FlopsConfig(), torch.float32) is None
    (record,) = [record for record in caplog.records if record.name == logger.name]
    for part in ("'Some Accelerator 9000'", "fp32", "train_perf/mfu is left out", "peak_flops"):
        assert part in record.getMessage()


@pytest.mark.parametrize("device_name", ["Some Accelerator 9000"], indirect=True)
@pytest.mark.usefixtures("device_name")
def test_a_configured_peak_wins_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert settled(nn.Sequential(nn.Linear(4, 4)), FlopsConfig(peak_flops=5e12), torch.float32) == 5e12
    assert not [record for record in caplog.records if record.name == logger.name]


def test_the_cpu_has_no_peak_and_no_message(caplog: pytest.LogCaptureFixture) -> None:
    assert settled(nn.Sequential(nn.Linear(4, 4)), FlopsConfig(), torch.float32, torch.device("cpu")) is None
    assert not [record for record in caplog.records if record.name == logger.name]
