"""What a host's own row may hold: it passes as it is, and what is a number reaches our files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.readback import messages
from support.tiny_accelerate import Rows as Tracker
from support.tiny_accelerate import make_accelerator
from support.tiny_trainer import RecordingTrainer, make_trainer, metric_records
from support.tiny_words import Rows, Words, batches

from areal_callbacks.integrations import transformers
from areal_callbacks.integrations.accelerate import enable
from areal_callbacks.integrations.lightning import AReaLFabricCallback
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

VALUES: dict[str, Any] = {
    "float32": np.float32(0.5),
    "int64": np.int64(3),
    "zero_dimensional": np.array(2.5),
    "bfloat16": torch.tensor([1.5], dtype=torch.bfloat16),
    "with_gradient": torch.tensor(0.25, requires_grad=True),
    "huge": 10**400,
    "infinite": float("inf"),
    "missing": float("nan"),
    "flag": True,
    "meta": torch.ones((), device="meta"),
    "matrix": torch.ones(2, 2),
    "word": "warm-up",
    "nothing": None,
    7: 1.0,
}
NUMBERS = {"float32": 0.5, "int64": 3.0, "zero_dimensional": 2.5, "bfloat16": 1.5, "with_gradient": 0.25}


def check(rows: list[dict[Any, Any]], records: list[MetricsRecord]) -> None:
    """Every row of the host holds the same objects, and our files the numbers."""
    assert len(rows) == len(records) == len(batches())
    for row, record in zip(rows, records):
        assert all(row[name] is value for name, value in VALUES.items())
        assert {name: record.metrics[name] for name in NUMBERS} == NUMBERS
        assert record.metrics["infinite"] == float("inf")
        assert np.isnan(record.metrics["missing"])
        assert not {"huge", "meta", "matrix", "word", "nothing"} & set(record.metrics)
        assert record.metrics["train_perf/tokens"] == 10


class LogsOddly(RecordingTrainer):
    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        super().log({**logs, **VALUES}, *args, **kwargs)


class Loss(Words):
    def forward(self, input_ids: torch.Tensor) -> Any:
        return {"loss": super().forward(input_ids)}


def test_transformers(tmp_path: Path, caplog: Any) -> None:
    host = make_trainer(
        tmp_path,
        model=Loss(),
        data=Rows(),
        kind=LogsOddly,
        callbacks=[transformers.AReaLMetricsCallback(report=False)],
        gradient_accumulation_steps=1,
    )
    host.train()
    check([row for row in host.state.log_history if "loss" in row], metric_records(tmp_path))
    assert messages(caplog) == []


def test_accelerate(tmp_path: Path, caplog: Any) -> None:
    tracker = Tracker()
    accelerator = make_accelerator(tmp_path, log_with=tracker)
    enable(accelerator, report=False)
    plain = Words()
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), 0.1))
    for step, batch in enumerate(batches()):
        accelerator.backward(model(**batch))
        optimizer.step()
        accelerator.log(VALUES, step=step)
    accelerator.end_training()
    check([row for _, row in tracker.rows], metric_records(tmp_path))
    assert messages(caplog) == []


@pytest.mark.parametrize("values", [None, [], 5, "loss"])
def test_what_is_no_row_reaches_accelerates_trackers_as_it_is(values: Any, tmp_path: Path, caplog: Any) -> None:
    class Takes(Tracker):
        def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
            given.append(values)

    given: list[Any] = []
    accelerator = make_accelerator(tmp_path, log_with=Takes())
    enable(accelerator, report=False)
    plain = Words()
    model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), 0.1))
    for batch in batches():
        accelerator.backward(model(**batch))
        optimizer.step()
    accelerator.log(values)
    assert given == [values]
    accelerator.end_training()
    assert given[1]["train_perf/tokens"] == 40
    assert messages(caplog) == []


@pytest.mark.filterwarnings("ignore")  # of Lightning
def test_fabric(tmp_path: Path, caplog: Any) -> None:
    from lightning.fabric import Fabric
    from lightning.fabric.loggers import CSVLogger

    class Takes(CSVLogger):
        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            rows.append(metrics)

    rows: list[Any] = []
    values = {name: value for name, value in VALUES.items() if name not in ("meta", "matrix")}  # Fabric reads tensors
    callback = AReaLFabricCallback(output_dir=tmp_path, report=False)
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[callback], loggers=[Takes(tmp_path)])
    plain = Words()
    model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), 0.1))
    for step, batch in enumerate(batches()):
        fabric.backward(model(**batch))
        optimizer.step()
        fabric.log_dict(values, step=step)
    callback.close()
    for row in rows:
        assert row.keys() >= values.keys() | {"train_perf/tokens"}
        assert row["huge"] == 10**400
        assert (row["word"], row["nothing"]) == ("warm-up", None)
    records = [record for record in read_metrics(tmp_path / "metrics.jsonl") if isinstance(record, MetricsRecord)]
    assert len(records) == len(rows) == len(batches())
    assert all({name: record.metrics[name] for name in NUMBERS} == NUMBERS for record in records)
    assert messages(caplog) == []
