"""The console summary: whole keys, human numbers, 80 columns."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
import torch

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.console import ConsoleWriter, summarise

METRICS = {
    "train_perf/tokens": 1234567.0,
    "train_perf/seconds": 0.0123,
    "train_perf/tokens_per_second": 98765.4,
    "train_perf/estimated_flops_per_second": 4.56e12,
    "timeperf/optimizer_step": 4.5e-5,
    "train_perf/mfu": 0.4213,
    "train_perf/total_tokens": 9876543210.0,
    "train_perf/total_seconds": 7300.0,
    "train_perf/cumulative_tokens_per_second": 12.34,
    "moe_balance/max_over_ideal_max": 3.4144,
    "moe_balance/max_over_ideal_mean": 1.2,
    "moe_balance/worst_layer": 17.0,
    "moe_balance/dead_experts": 3.0,
    "ppo_actor/train_infer/kl_k1": -0.001234,
    "ppo_actor/train_infer/ratio_outside_2": math.nan,
    "ppo_actor/update/version_stats/sample_staleness_theta_avg": 1.25,
}


def layer(stack: str, number: int, *counts: int) -> LayerLoads:
    return LayerLoads(stack, number, torch.tensor(counts, dtype=torch.int64))


def run_writer(folder: Path, *exports: Export, every_export: bool = False) -> str:
    stream = io.StringIO()
    writer = ConsoleWriter(every_export=every_export, stream=stream)
    writer.open(Run(folder))
    for export in exports:
        writer.write(export)
    writer.close()
    writer.close()
    return stream.getvalue()


def rows(text: str) -> dict[str, str]:
    parts = [line.split(maxsplit=1) for line in text.splitlines()]
    return {part[0]: part[1].strip() for part in parts if len(part) == 2}


def test_it_is_a_metric_writer() -> None:
    assert isinstance(ConsoleWriter(), MetricWriter)


def test_numbers_are_for_people() -> None:
    assert rows(summarise(Export(1200, METRICS))) == {
        "AReaL": "metrics, step 1,200",
        "train_perf/tokens": "1,234,567",
        "train_perf/seconds": "12.3 ms",
        "train_perf/tokens_per_second": "98,765 tokens/s",
        "train_perf/estimated_flops_per_second": "4.56 TFLOP/s",
        "timeperf/optimizer_step": "45.0 us",
        "train_perf/mfu": "42.13 %",
        "train_perf/total_tokens": "9,876,543,210",
        "train_perf/total_seconds": "2.03 h",
        "train_perf/cumulative_tokens_per_second": "12.3 tokens/s",
        "moe_balance/max_over_ideal_max": "3.414",
        "moe_balance/max_over_ideal_mean": "1.200",
        "moe_balance/worst_layer": "17",
        "moe_balance/dead_experts": "3",
        "ppo_actor/train_infer/kl_k1": "-0.00123",
        "ppo_actor/train_infer/ratio_outside_2": "nan",
        "ppo_actor/update/version_stats/sample_staleness_theta_avg": "1.25",
    }


def test_one_word_where_tokens_flops_or_their_peak_are_unknown() -> None:
    metrics = {"train_perf/seconds": 1.5, "train_perf/tokens": 7.0, "train_perf/tokens_per_second": 4.7}
    told = rows(summarise(Export(1, metrics)))
    assert told["train_perf/mfu"] == told["train_perf/estimated_flops_per_second"] == "unknown"
    assert rows(summarise(Export(1, {"train_perf/seconds": 1.5})))["train_perf/tokens"] == "unknown"
    assert "unknown" not in summarise(Export(1, {"loss": 1.0}))


def test_the_three_most_imbalanced_layers_are_listed() -> None:
    loads = ExpertLoads((layer("", 0, 5, 5), layer("", 1, 10, 0), layer("", 2, 1, 3), layer("encoder", 0, 2, 3)))
    lines = summarise(Export(1, {}, loads)).splitlines()[-3:]
    assert [line.split() for line in lines] == [
        ["moe_balance/layer_1", "2.000", "0", "100.0", "%", "1"],
        ["moe_balance/layer_2", "1.500", "1", "75.0", "%", "0"],
        ["moe_balance/encoder/layer_0", "1.200", "1", "60.0", "%", "0"],
    ]


def test_eighty_columns_hold_everything(tmp_path: Path) -> None:
    folder = tmp_path / ("deep_" * 30) / "run"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").touch()
    stack = "a_long_name_of_an_encoder_stack_that_somebody_chose"
    loads = ExpertLoads((layer("", 0, 5, 5), layer(stack, 101, 10, 0)))
    text = run_writer(folder, Export(10**9, METRICS, loads))
    assert max(map(len, text.splitlines())) <= 80
    assert set(METRICS) <= set(rows(text))
    assert f"{folder}metrics.jsonl" in "".join(text.split())


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e300, -1e30, -0.0])
def test_eighty_columns_hold_any_number(value: float) -> None:
    text = summarise(Export(0, dict.fromkeys(METRICS, value)))
    assert max(map(len, text.splitlines())) <= 80
    assert set(METRICS) <= set(rows(text))


def test_the_last_export_with_metrics_is_printed_once_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "report.html").touch()
    exports = [Export(step, {"train_perf/tokens": float(step)}) for step in (1, 2)]
    text = run_writer(tmp_path, *exports, Export(3, {}))
    assert text.count("AReaL metrics, step") == 1
    assert "step 2" in text
    assert "report.html" in text
    assert "metrics.jsonl" not in text


def test_every_export_is_printed_where_wanted(tmp_path: Path) -> None:
    exports = [Export(step, {"train_perf/tokens": float(step)}) for step in (1, 2)]
    text = run_writer(tmp_path, *exports, every_export=True)
    assert [line for line in text.splitlines() if line.startswith("AReaL")] == [
        "AReaL metrics, step 1",
        "AReaL metrics, step 2",
    ]
    assert text.count("Files") == 1


def test_paths_that_fit_are_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("metrics.jsonl").touch()
    assert run_writer(Path("."), Export(1, METRICS)).splitlines()[-2:] == ["Files", "  metrics.jsonl"]
    assert run_writer(Path("new"), Export(1, METRICS)).splitlines()[-2:] == ["Files in", "  new"]


def test_nothing_measured_prints_nothing(tmp_path: Path) -> None:
    assert run_writer(tmp_path, Export(1, {})) == ""


def test_stdout_is_looked_up_when_printing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = ConsoleWriter()
    writer.open(Run(tmp_path))
    writer.write(Export(1, METRICS))
    writer.close()
    assert "1,234,567" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.00 us"), (0.5, "500 ms"), (1.0, "1.00 s"), (59.0, "59.0 s"), (90.0, "1.50 min"), (360000.0, "100 h")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert rows(summarise(Export(1, {"train_perf/seconds": seconds})))["train_perf/seconds"] == text


@pytest.mark.parametrize(
    ("rate", "text"), [(0.0, "0 FLOP/s"), (12e6, "12.0 MFLOP/s"), (9.9e17, "990 PFLOP/s"), (1.2e21, "1200 EFLOP/s")]
)
def test_flop_rates(rate: float, text: str) -> None:
    key = "train_perf/estimated_flops_per_second"
    assert rows(summarise(Export(1, {key: rate})))[key] == text
