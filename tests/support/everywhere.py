"""A configuration with every tracker on, offline, and the comparison of what they kept with metrics.jsonl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.readback import (
    equal,
    jsonl_rows,
    single,
    swanlab_rows,
    tensorboard_rows,
    trackio_rows,
    wandb_file,
    wandb_rows,
)


def everywhere(root: Path, **options: Any) -> dict[str, Any]:
    return {
        "experiment_name": "flow",
        "trial_name": root.parent.name[-40:],
        "fileroot": str(root),
        "wandb": {"mode": "offline"},
        "swanlab": {"mode": "offline"},
        "trackio": {},
        "tensorboard": {"path": str(root / "tb")},
        **options,
    }


def files_of(config: dict[str, Any]) -> Path:
    return Path(config["fileroot"], config["experiment_name"], config["trial_name"])


def assert_trackers_equal_jsonl(config: dict[str, Any]) -> dict[int, dict[str, float]]:
    """Every tracker's rows, read with its own reader, are those of metrics.jsonl."""
    folder = files_of(config)
    expected = jsonl_rows(folder)
    trackers = {
        "wandb": wandb_rows(wandb_file(folder)),
        "swanlab": swanlab_rows(folder),
        "trackio": trackio_rows(config["experiment_name"], config["trial_name"]),
    }
    for name, rows in trackers.items():
        assert rows.keys() == expected.keys(), name
        assert all(equal(rows[step], expected[step]) for step in rows), name
    events = tensorboard_rows(Path(config["tensorboard"]["path"]))
    assert events.keys() == expected.keys()
    assert all(equal(events[step], single(expected[step])) for step in events)
    return expected
