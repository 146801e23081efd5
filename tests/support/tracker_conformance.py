"""What every tracker's writer and guest have to do: a test class inherits this and names its tracker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.conformance import check_writer
from support.readback import equal, jsonl_rows

from areal_callbacks.config import MoEBalanceConfig
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.jsonl import JsonlWriter
from areal_callbacks.writers.publisher import Publisher
from areal_callbacks.writers.tracker_runs import HostRun
from areal_callbacks.writers.trackers import TRACKERS

SPECIAL = {"nan": math.nan, "up": math.inf, "down": -math.inf, "tiny": 5e-324, "big": 2.0**53 + 2}


def publish(folder: Path, writer: MetricWriter, *exports: Export, config: Mapping[str, Any] | None = None) -> None:
    """Write exports as a session does, beside metrics.jsonl."""
    run = Run(folder, config or {}, "a name")
    publisher = Publisher([], run=run, synchronous=[JsonlWriter()], trackers=[writer])
    for export in exports:
        publisher.publish(export)
    publisher.close()


class TrackerConformance:
    """A writer of a run of our own, offline, and a guest in a host's run.

    Attributes:
        name: of the tracker in the configuration.
        kind: what a host's run is called in messages.
    """

    name: str
    kind: str

    def section(self, folder: Path) -> Any:
        """The tracker's section of a configuration that keeps the run on this machine."""
        raise NotImplementedError

    def rows(self, folder: Path) -> dict[int, dict[str, float]]:
        """Step → scalars of the run below ``folder``, read with the tracker's own reader."""
        raise NotImplementedError

    def keep(self, metrics: dict[str, float]) -> dict[str, float]:
        """The numbers as the tracker stores them."""
        return metrics

    def make_writer(self, folder: Path, **balance: Any) -> MetricWriter:
        writer = TRACKERS[self.name].writer
        assert writer is not None
        return writer(self.section(folder), MoEBalanceConfig(**balance))

    def make_guest(self, host: HostRun, **balance: Any) -> MetricWriter:
        return TRACKERS[self.name].guest(host, MoEBalanceConfig(**balance))

    @pytest.mark.slow
    def test_its_writer_lives_as_the_interface_says(
        self, offline_trackers: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        check_writer(lambda: self.make_writer(offline_trackers), offline_trackers, caplog)

    def test_every_row_equals_metrics_jsonl_with_nan_and_infinities(self, offline_trackers: Path) -> None:
        metrics = [{"train_perf/tokens": 0.1 * step, **SPECIAL} for step in range(5)]
        exports = [Export(step, row, host={"loss": step / 7}) for step, row in enumerate(metrics)]
        publish(offline_trackers, self.make_writer(offline_trackers), *exports)
        rows, expected = self.rows(offline_trackers), jsonl_rows(offline_trackers)
        assert rows.keys() == expected.keys() == set(range(5))
        assert all(equal(rows[step], self.keep(expected[step])) for step in rows)
        assert equal(rows[3], self.keep({"train_perf/tokens": 0.1 * 3, **SPECIAL, "loss": 3 / 7}))

    def test_numbers_of_any_library_arrive_and_words_are_left_out(self, offline_trackers: Path) -> None:
        values: dict[str, Any] = {"a": np.float32(0.5), "b": torch.tensor([1.5]), "c": np.int64(7), "d": "warm-up"}
        publish(offline_trackers, self.make_writer(offline_trackers), Export(np.int64(2), values))  # type: ignore[arg-type]
        assert self.rows(offline_trackers) == {2: {"a": 0.5, "b": 1.5, "c": 7}}

    def test_a_guest_without_a_host_says_so_and_can_be_closed(self, tmp_path: Path) -> None:
        guest = self.make_guest(HostRun(lambda: None))
        assert isinstance(guest, MetricWriter)
        with pytest.raises(RuntimeError, match=f"the host has no {self.kind}"):
            guest.open(Run(tmp_path))
        guest.close()


class RunConformance(TrackerConformance):
    """A tracker whose runs show a configuration and take files."""

    def search(self, folder: Path) -> str:
        """Everything that the tracker has kept of the run below ``folder``, as text."""
        raise NotImplementedError

    def test_secrets_stay_here_and_the_report_is_handed_over(self, offline_trackers: Path) -> None:
        config = {"lr": 0.015625, "max_tokens": 8, "hf_token": "s3cret-1", "hub": {"url": "https://me:s3cret-2@host"}}
        writer = self.make_writer(offline_trackers)
        offline_trackers.mkdir()
        writer.open(Run(offline_trackers, config))
        writer.write(Export(1, {"a": 1.0}))
        (offline_trackers / "report.html").write_text("<!doctype html><p>planted</p>")
        writer.close()
        kept = self.search(offline_trackers)
        assert "0.015625" in kept
        assert "[redacted]" in kept
        assert "planted" in kept
        assert "s3cret" not in kept
