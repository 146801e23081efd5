"""Accelerate's own trackers, read back from disk: our numbers in the loss's row, the expert loads beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.readback import (
    equal,
    single,
    tensorboard_events,
    tensorboard_rows,
    wandb_file,
    wandb_history,
    wandb_rows,
    wandb_table,
)
from support.tiny_accelerate import Loop, make_accelerator
from support.tiny_trainer import EXPERTS, LAYERS, load_records, metric_records

from areal_callbacks.integrations.accelerate import enable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # W&B starts its service beside threads
]

TABLE = "moe_balance/expert_loads"


def part(row: dict[str, float], like: dict[str, float]) -> dict[str, float]:
    return {key: row[key] for key in like if key in row}


def test_tensorboard_has_the_scalars_and_a_picture_of_the_loads(tmp_path: Path) -> None:
    accelerator = make_accelerator(tmp_path, log_with="tensorboard")
    enable(accelerator, report=False)
    Loop(accelerator).run(lambda step, loss: accelerator.log({"loss": loss}, step=step))
    accelerator.end_training()
    records = metric_records(tmp_path)
    rows = tensorboard_rows(tmp_path / "project")
    assert [record.step for record in records] == sorted(rows) == list(range(1, 9))
    for record in records:
        ours = {name: value for name, value in record.metrics.items() if name != "loss"}
        assert equal(part(rows[record.step], ours), single(ours))
        assert rows[record.step]["loss"] == np.float32(record.metrics["loss"])
    images = tensorboard_events(tmp_path / "project").Images(TABLE)
    assert [(image.step, image.height, image.width) for image in images] == [
        (step, LAYERS, EXPERTS) for step in range(1, 9)
    ]


@pytest.mark.parametrize("gives_step", [True, False], ids=["step", "no-step"])
def test_wandb_has_the_table_of_the_loads_in_the_row_of_the_loss(gives_step: bool, offline_trackers: Path) -> None:
    """Two rows of the user's own come between ours: a table must not slip into them, or be dropped as too early."""
    offline_trackers.mkdir()
    accelerator = make_accelerator(
        offline_trackers,
        log_with="wandb",
        gradient_accumulation_steps=2,
        init_kwargs={"wandb": {"mode": "offline", "dir": str(offline_trackers)}},
    )
    enable(accelerator, report=False)

    def log(step: int, loss: float) -> None:
        accelerator.log({"loss": loss}, **({"step": 10 * step} if gives_step else {}))
        for extra in range(2):
            accelerator.log({"extra": extra}, **({"step": 10 * step + 1 + extra} if gives_step else {}))

    Loop(accelerator).run(log)
    accelerator.end_training()
    file = wandb_file(offline_trackers)
    scalars = wandb_rows(file)
    history = [row for row in wandb_history(file) if "loss" in row]
    records = metric_records(offline_trackers)
    loads = [record.counts for record in load_records(offline_trackers)]
    assert len(history) == len(records) == len(loads) == 4
    if gives_step:
        assert [row["_step"] for row in history] == [10, 20, 30, 40]
    for row, record, counts in zip(history, records, loads):
        ours = {name: value for name, value in record.metrics.items() if name != "loss"}
        assert equal(part(scalars[row["_step"]], ours), ours)
        _, table = wandb_table(file, row)
        assert np.array([cells[2] for cells in table]).reshape(LAYERS, EXPERTS).tolist() == list(map(list, counts))
    assert not any(f"{TABLE}/_type" in row for row in wandb_history(file) if "loss" not in row)
