"""The functions of the check for GPUs, on the CPU as far as they go."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_check

CPU = torch.device("cpu")


def test_it_says_that_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert gpu_check.main([]) == 0
    assert "no NVIDIA GPU" in capsys.readouterr().out


def test_seconds_are_those_of_the_wall_clock() -> None:
    assert gpu_check.check_seconds(CPU, size=64, products=2000).holds


def test_steps_are_counted_exactly(tmp_path: Path) -> None:
    assert gpu_check.check_no_waiting(CPU, tmp_path / "a").holds
    assert gpu_check.check_side_stream(CPU, tmp_path / "b").holds


def test_a_wrong_count_does_not_hold(tmp_path: Path) -> None:
    training = gpu_check.Training(CPU, tmp_path, layers=1, width=8)
    training.step()
    assert training.check_counts("one too many", 2).holds is False
    gpu_check.close(training)


def test_overhead_is_a_ratio_of_the_same_steps(tmp_path: Path) -> None:
    finding = gpu_check.check_overhead(CPU, tmp_path, steps=2, rounds=2, layers=1, width=8)
    ratio = float(finding.measured.split()[3].rstrip(","))
    assert 0.1 < ratio < 10


def test_what_only_a_gpu_tells_is_left_out(tmp_path: Path) -> None:
    assert gpu_check.check_memory(CPU, tmp_path).holds is None
    assert gpu_check.check_mfu(CPU, tmp_path).holds is None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # of Dynamo
@pytest.mark.parametrize("whole", [True, False])
def test_compiled_steps_are_counted_exactly(tmp_path: Path, whole: bool) -> None:
    torch.compiler.reset()
    assert gpu_check.check_compiled(CPU, tmp_path, whole=whole, backend="aot_eager").holds
    torch.compiler.reset()


def test_every_check_has_a_name(tmp_path: Path) -> None:
    checks = gpu_check.checks(CPU, tmp_path)
    assert {"seconds", "step overhead", "compile whole", "CUDA graphs", "MFU"} < checks.keys()
    assert gpu_check.run("side stream", checks["side stream"]).holds


@pytest.mark.parametrize(("holds", "status"), [(True, 0), (None, 0), (False, 1)])
def test_findings_are_shown_and_written(tmp_path: Path, holds: bool | None, status: int) -> None:
    found = gpu_check.Finding("seconds", holds, "1.01 of the wall clock")
    told, page = tmp_path / "told.json", tmp_path / "page.md"
    assert gpu_check.show("A GPU", [found], told, page) == status
    assert json.loads(told.read_text()) == {"device": "A GPU", "findings": [found._asdict()]}
    assert page.read_text().startswith("# Measured on A GPU\n")
    assert found.measured in page.read_text()


def test_ranks_export_together() -> None:
    assert gpu_check.check_export(2, "gloo").holds


def test_a_check_that_raises_does_not_hold() -> None:
    finding = gpu_check.run("broken", lambda: gpu_check.check_export(1, "nothing"))
    assert finding.holds is False
    assert "**does not hold**" in gpu_check.as_table([finding])


def test_names_of_checks_are_told_before_any_runs(tmp_path: Path) -> None:
    assert list(gpu_check.checks(CPU, tmp_path))[:3] == ["seconds", "step overhead", "no wait on the step path"]
