"""Guests in the trackers that a host opened: real trainers, read back from disk, beside metrics.jsonl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from support.readback import (
    equal,
    single,
    swanlab_charts,
    swanlab_rows,
    swanlab_text,
    tensorboard_events,
    tensorboard_rows,
    trackio_image,
    trackio_logs,
    wandb_file,
    wandb_history,
    wandb_rows,
    wandb_table,
)
from support.report_guest_module import Module
from support.tiny_trainer import EXPERTS, LAYERS, Sequences, make_trainer
from torch.utils.data import DataLoader

from areal_callbacks.integrations.lightning import AReaLMetricsCallback as LightningCallback
from areal_callbacks.integrations.transformers import AReaLMetricsCallback
from areal_callbacks.writers.jsonl import ExpertLoadsRecord, MetricsRecord, read_metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # W&B starts its service beside threads
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),  # few workers, no validation loop
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),  # Lightning on a newer torch
]

KEY = "moe_balance/expert_loads"
STEPS = 10


def ours(folder: Path) -> tuple[dict[int, dict[str, float]], dict[int, list[list[int]]]]:
    """Of metrics.jsonl: step → our metrics, step → expert counts ``[layers][experts]``."""
    records = list(read_metrics(folder / "areal_metrics" / "metrics.jsonl"))
    rows = {record.step: record.metrics for record in records if isinstance(record, MetricsRecord)}
    counts = {record.step: record.counts for record in records if isinstance(record, ExpertLoadsRecord)}
    scopes = ("train_perf/", "moe_balance/", "timeperf/")
    return {step: {k: v for k, v in row.items() if k.startswith(scopes)} for step, row in rows.items()}, counts


def take_part(row: dict[str, Any], like: dict[str, float]) -> dict[str, float]:
    return {key: row[key] for key in like if key in row}


def assert_wandb_rows(file: Path, step_key: str, metrics: dict[int, dict[str, float]], counts: dict[int, Any]) -> None:
    """Every step is one row, which holds the host's loss, our numbers and our table."""
    history = [row for row in wandb_history(file) if KEY + "/_type" in row]
    assert [row[step_key] for row in history] == sorted(metrics)
    assert len(metrics) == STEPS
    scalars = wandb_rows(file)
    for row in history:
        step = row[step_key]
        assert equal(take_part(scalars[row["_step"]], metrics[step]), metrics[step])
        columns, table = wandb_table(file, row)
        assert columns == ["layer", "expert", "tokens", "load_percent"]
        assert np.array([cells[2] for cells in table]).reshape(LAYERS, EXPERTS).tolist() == counts[step]


def assert_images(folder: Path, metrics: dict[int, dict[str, float]]) -> None:
    images = tensorboard_events(folder).Images(KEY)
    assert [image.step for image in images] == sorted(metrics)
    assert {(image.height, image.width) for image in images} == {(LAYERS, EXPERTS)}
    rows = tensorboard_rows(folder)
    assert all(equal(take_part(rows[step], metrics[step]), single(metrics[step])) for step in metrics)


def test_a_transformers_run_keeps_ten_of_ten_rows_in_every_tracker(
    offline_trackers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import swanlab
    import wandb

    offline_trackers.mkdir()
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(offline_trackers / "tb"))
    run = wandb.init(mode="offline", project="p", dir=str(offline_trackers))
    swan = swanlab.init(mode="offline", project="p", log_dir=str(offline_trackers / "swanlog"))
    trainer = make_trainer(
        offline_trackers / "out",
        callbacks=[AReaLMetricsCallback()],
        data=Sequences(4 * STEPS),
        report_to=["wandb", "swanlab", "trackio", "tensorboard"],
        project="hf-guest",
        run_name="run",
    )
    try:
        trainer.train()
    finally:
        run.finish()
        swan.finish()
    metrics, counts = ours(offline_trackers / "out")
    assert sorted(counts) == list(range(1, STEPS + 1))

    file = wandb_file(offline_trackers, run.id)
    assert_wandb_rows(file, "train/global_step", {step: metrics[step] for step in counts}, counts)
    assert all("train/loss" in row for row in wandb_history(file) if KEY + "/_type" in row)

    scalars = swanlab_rows(offline_trackers / "swanlog")
    charts = swanlab_charts(offline_trackers / "swanlog")
    rows = {row["train/global_step"]: row for row in trackio_logs("hf-guest", "run") if KEY in row}
    assert sorted(charts) == sorted(rows) == sorted(counts)
    logged = trackio_logs("hf-guest", "run")
    assert [row["step"] for row in logged if "report" not in row] == list(range(STEPS + 1))
    assert sum("report" in row for row in logged) == 1
    assert "report/_type" in wandb_history(file)[-1]
    assert "<!doctype html>" in swanlab_text(offline_trackers / "swanlog")
    for step, layers in counts.items():
        expected = np.array(layers)
        cells = np.array(charts[step][0]["series"][0]["data"])
        assert cells[:, 3].reshape(LAYERS, EXPERTS).tolist() == layers
        assert trackio_image(rows[step]).shape[1] == 768
        for row in (scalars[step], rows[step]):
            assert equal(take_part(row, metrics[step]), metrics[step])
            assert "train/loss" in row
            series = [
                [row[f"moe_balance/layer_{layer}/expert_{e}/tokens"] for e in range(EXPERTS)] for layer in range(LAYERS)
            ]
            assert series == layers
            share = row["moe_balance/layer_1/expert_2/load_percent"]
            assert share == pytest.approx(100 * expected[1, 2] / expected[1].sum())
    assert_images(offline_trackers / "tb", {step: metrics[step] for step in counts})


def test_a_lightning_run_keeps_ten_of_ten_rows(offline_trackers: Path) -> None:
    import wandb

    offline_trackers.mkdir()
    logger = WandbLogger(project="p", mode="offline", save_dir=str(offline_trackers))
    board = TensorBoardLogger(str(offline_trackers / "tb"), name="", version="")
    trainer = LightningTrainer(
        accelerator="cpu",
        max_steps=STEPS,
        log_every_n_steps=1,
        logger=[logger, board],
        callbacks=[LightningCallback(output_dir=str(offline_trackers / "areal_metrics"))],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(Sequences(2 * STEPS), batch_size=2))
    run_id = logger.experiment.id
    wandb.finish()
    metrics, counts = ours(offline_trackers)
    assert len(counts) == STEPS
    file = wandb_file(offline_trackers, run_id)
    assert_wandb_rows(file, "trainer/global_step", metrics, counts)
    assert "report/_type" in wandb_history(file)[-1]
    assert_images(offline_trackers / "tb", metrics)


def test_without_moe_balance_guests_have_no_expert_loads_to_add(
    offline_trackers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(offline_trackers / "tb"))
    callback = AReaLMetricsCallback(moe_balance=False)
    make_trainer(offline_trackers / "out", callbacks=[callback], data=Sequences(8), report_to=["tensorboard"]).train()
    events = tensorboard_events(offline_trackers / "tb")
    assert "train_perf/tokens" in events.Tags()["scalars"]
    assert events.Tags()["images"] == []
    assert len(events.Tensors("custom_scalars__config__")) == 1
