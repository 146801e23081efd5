"""What hosts and trackers get; the files always have everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.readback import jsonl_rows

from areal_callbacks import MetricsConfig, MetricsSession, stats_tracker
from areal_callbacks.core.types import Export, Run
from areal_callbacks.session.selection import make_selection

METRICS = {
    "train_perf/tokens": 1.0,
    "train_perf/mfu": 2.0,
    "moe_balance/layer_0/max_over_ideal": 3.0,
    "moe_balance/vision/layer_12/max_over_ideal": 4.0,
    "moe_balance/dead_experts": 5.0,
    "loss": 6.0,
}


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"include": ["train_perf/*"]}, ["train_perf/tokens", "train_perf/mfu"]),
        ({"exclude": ["moe_balance/*", "*/mfu"]}, ["train_perf/tokens", "loss"]),
        ({"include": ["*_perf/*", "loss"], "exclude": ["*/tokens"]}, ["train_perf/mfu", "loss"]),
        ({"per_layer": False}, ["train_perf/tokens", "train_perf/mfu", "moe_balance/dead_experts", "loss"]),
        ({"include": ["nothing"]}, []),
    ],
)
def test_what_is_left(options: dict[str, Any], left: list[str]) -> None:
    select = make_selection(MetricsConfig(**options))
    assert select is not None
    assert list(select(Export(1, dict(METRICS))).metrics) == left


def test_without_patterns_nothing_is_done() -> None:
    assert make_selection(MetricsConfig()) is None


class Guest:
    """A tracker of the host."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def open(self, run: Run) -> None: ...

    def write(self, export: Export) -> None:
        self.rows.append(export.metrics)

    def close(self) -> None: ...


def test_files_have_what_hosts_and_trackers_do_not_get(tmp_path: Path) -> None:
    guest = Guest()
    with MetricsSession(output_dir=tmp_path, guests=[guest], report=False, exclude=["secret*"]) as session:
        stats_tracker.scalar(secret=1.0, shown=2.0)
        export = session.export(1)
    assert export.metrics == {"shown": 2.0}
    assert guest.rows == [{"shown": 2.0}]
    assert jsonl_rows(tmp_path) == {1: {"secret": 1.0, "shown": 2.0}}
