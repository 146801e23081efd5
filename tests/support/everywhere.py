"""A configuration with every tracker on, offline, and what each tracker kept."""

from __future__ import annotations

from collections.abc import Callable
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

Rows = dict[int, dict[str, float]]
"""Step → scalars."""

_READERS: dict[str, Callable[[dict[str, Any]], Rows]] = {
    "wandb": lambda config: wandb_rows(wandb_file(files_of(config))),
    "swanlab": lambda config: swanlab_rows(files_of(config)),
    "trackio": lambda config: trackio_rows(config["experiment_name"], config["trial_name"]),
    "tensorboard": lambda config: tensorboard_rows(Path(config["tensorboard"]["path"])),
}


NAMES = tuple(_READERS)


def everywhere(root: Path, **options: Any) -> dict[str, Any]:
    """The ``stats_logger`` section; its files lie below ``root``."""
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
    """The folder of metrics.jsonl."""
    return Path(config["fileroot"], config["experiment_name"], config["trial_name"])


def read_tracker(name: str, config: dict[str, Any]) -> Rows:
    """The rows that a tracker kept, read with its own reader."""
    return _READERS[name](config)


def assert_trackers_equal_jsonl(config: dict[str, Any]) -> Rows:
    """Every tracker's rows are those of metrics.jsonl, which are returned."""
    expected = jsonl_rows(files_of(config))
    for name in NAMES:
        rows = read_tracker(name, config)
        assert rows.keys() == expected.keys(), name
        keep = single if name == "tensorboard" else dict
        assert all(equal(rows[step], keep(expected[step])) for step in rows), name
    return expected
