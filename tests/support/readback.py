"""What trackers really wrote, read back from disk with their own readers, offline.

Importing this loads no tracker. ``offline_trackers`` keeps every tracker's files, caches and credentials below the
test's folder, and fails the test if this process tries to leave the machine.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from areal_callbacks.safety.reporting import logger
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

# Trackio reads these once, when it is imported; projects keep the tests apart.
if "TRACKIO_DIR" not in os.environ:
    os.environ["TRACKIO_DIR"] = tempfile.mkdtemp(prefix="trackio-")
    atexit.register(shutil.rmtree, os.environ["TRACKIO_DIR"], ignore_errors=True)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

_CREDENTIALS = ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "SWANLAB_API_KEY", "SWANLAB_MODE", "SWANLAB_LOG_DIR")


@pytest.fixture
def offline_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the run; no tracker has credentials, and the network must not be touched."""
    for name in _CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    for name, value in offline_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    attempts: list[Any] = []
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> Any:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            attempts.append(address)
            raise OSError(f"no network in tests: {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)
    yield tmp_path / "run"
    if "wandb" in sys.modules:  # it reads the environment once, and the next test has another
        sys.modules["wandb"].teardown()
    assert attempts == []


def offline_environment(folder: Path) -> dict[str, str]:
    """Environment variables that keep every tracker's own folders below ``folder``, for child processes too."""
    names = {
        "WANDB_DATA_DIR": "data",
        "WANDB_CACHE_DIR": "cache",
        "WANDB_CONFIG_DIR": "config",
        "SWANLAB_ROOT": "swanlab",
    }
    folders = {variable: folder / "trackers" / name for variable, name in names.items()}
    for path in folders.values():
        path.mkdir(parents=True, exist_ok=True)
    return {
        **{variable: str(path) for variable, path in folders.items()},
        "NETRC": str(folder / "trackers" / "netrc"),
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",
        "SWANLAB_TERMINAL_PROXY_TYPE": "none",
        "SWANLAB_PROBE_MONITOR": "false",
        "SWANLAB_PROBE_REQUIREMENTS": "false",
        "SWANLAB_PROBE_GIT": "false",
    }


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What users were told."""
    return [
        record.getMessage() for record in caplog.records if record.levelname == "WARNING" and record.name == logger.name
    ]


def equal(first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    """Equal keys and exactly equal numbers, where NaN equals NaN."""
    return first.keys() == second.keys() and all(
        math.isclose(first[key], second[key], rel_tol=0, abs_tol=0)
        or (math.isnan(first[key]) and math.isnan(second[key]))
        for key in first
    )


def single(metrics: Mapping[str, float]) -> dict[str, float]:
    """The numbers as TensorBoard keeps them: float32."""
    return {key: float(np.float32(value)) for key, value in metrics.items()}


def jsonl_rows(folder: Path) -> dict[int, dict[str, float]]:
    """Step → metrics of metrics.jsonl; several records of a step must not occur."""
    records = [record for record in read_metrics(folder / "metrics.jsonl") if isinstance(record, MetricsRecord)]
    rows = {record.step: record.metrics for record in records}
    assert len(rows) == len(records)
    return rows


# -- W&B: a LevelDB log of protobuf records


def wandb_file(root: Path, run_id: str = "*", timeout: float = 20) -> Path:
    """The finished run file below ``root``; ``finish()`` may return before the last record is on disk."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for path in Path(root).rglob(f"run-{run_id}.wandb"):
            if any(record.WhichOneof("record_type") == "exit" for record in _wandb_records(path)):
                return path
        time.sleep(0.02)
    raise TimeoutError(f"no finished W&B run below {root}")


def wandb_history(path: Path) -> list[dict[str, Any]]:
    """The committed rows, nested keys joined by a slash."""
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in _wandb_records(path)
        if record.WhichOneof("record_type") == "history"
    ]


def wandb_rows(path: Path) -> dict[int, dict[str, float]]:
    """Step → scalars of every row, without W&B's own columns."""
    rows = {}
    for row in wandb_history(path):
        scalars = {key: value for key, value in row.items() if isinstance(value, int | float)}
        media = {key.rsplit("/", 1)[0] for key in row if key.endswith("/_type")}
        rows[row["_step"]] = {
            key: value for key, value in scalars.items() if key[0] != "_" and key.rsplit("/", 1)[0] not in media
        }
    return rows


def wandb_table(
    path: Path, row: Mapping[str, Any], key: str = "moe_balance/expert_loads"
) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of the table that a history row names, from the media file beside the run file."""
    table = json.loads((path.parent / "files" / row[f"{key}/path"]).read_text())
    return table["columns"], table["data"]


def wandb_config(path: Path) -> dict[str, Any]:
    """The configuration that the run was given."""
    config: dict[str, Any] = {}
    for record in _wandb_records(path):
        kind = record.WhichOneof("record_type")
        updates = record.run.config.update if kind == "run" else record.config.update if kind == "config" else ()
        config |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in updates}
    return config


def wandb_alerts(path: Path) -> list[tuple[str, str, str]]:
    """Title, text and level of every alert."""
    alerts = [record.alert for record in _wandb_records(path) if record.WhichOneof("record_type") == "alert"]
    return [(alert.title, alert.text, alert.level) for alert in alerts]


def _wandb_records(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    data, position, part, block = path.read_bytes(), 7, b"", 32768
    while position + 7 <= len(data):
        left = block - position % block
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        if kind == 0:
            position += left
            continue
        payload = data[position + 7 : position + 7 + length]
        position += 7 + length
        if len(payload) < length:
            return
        part += payload
        if kind in (1, 4):  # a whole record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            part = b""
            yield record


# -- SwanLab, TensorBoard, Trackio


def swanlab_rows(folder: Path) -> dict[int, dict[str, float]]:
    """Step → scalars of the only SwanLab run below ``folder``."""
    rows: dict[int, dict[str, float]] = {}
    for record in _swanlab_records(folder):
        if record.HasField("scalar"):
            rows.setdefault(record.scalar.step, {})[record.scalar.key] = record.scalar.value.number
    return rows


def swanlab_charts(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Step → the ECharts options of that step."""
    charts: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(Path(folder).rglob("media/echarts/**/*.json")):
        charts.setdefault(int(path.name.split("-")[0]), []).append(json.loads(path.read_text()))
    return charts


def swanlab_text(folder: Path) -> str:
    """Everything that SwanLab keeps as text, for a search."""
    return "\n".join(path.read_text(errors="replace") for path in Path(folder).rglob("*") if path.is_file())


def _swanlab_records(folder: Path) -> Iterator[Any]:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    (path,) = Path(folder).rglob("*.swanlab")
    reader = DataStoreReader()
    reader.open(str(path))
    try:
        while (data := reader.scan()) is not None:
            record = Record()
            record.ParseFromString(data)
            yield record
    finally:
        reader.close()


def tensorboard_events(folder: Path) -> Any:
    """TensorBoard's own reader, keeping every event."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    events.Reload()
    return events


def tensorboard_rows(folder: Path) -> dict[int, dict[str, float]]:
    """Step → scalars."""
    events, rows = tensorboard_events(folder), {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            rows.setdefault(event.step, {})[tag] = event.value
    return rows


def trackio_logs(project: str, run: str) -> list[dict[str, Any]]:
    """The rows of a run, with their media and tables as Trackio stores them."""
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage.get_logs(project, run)


def trackio_rows(project: str, run: str) -> dict[int, dict[str, float]]:
    """Step → scalars; two rows of scalars at a step must not occur."""
    rows: dict[int, dict[str, float]] = {}
    for row in trackio_logs(project, run):
        scalars = {key: value for key, value in row.items() if key != "step" and isinstance(value, int | float)}
        if scalars:
            assert row["step"] not in rows
            rows[row["step"]] = scalars
    return rows


def trackio_image(row: Mapping[str, Any], key: str = "moe_balance/expert_loads") -> np.ndarray[Any, Any]:
    """The picture of a row as ``[height, width, 3]``."""
    from PIL import Image
    from trackio.utils import MEDIA_DIR

    return np.asarray(Image.open(Path(MEDIA_DIR, row[key]["file_path"])).convert("RGB"))


def trackio_config(project: str, run: str) -> dict[str, Any]:
    """The configuration that the run was given."""
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage.get_run_config(project, run) or {}
