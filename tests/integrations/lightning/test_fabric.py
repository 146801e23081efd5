"""The callback in a real Fabric loop with loggers."""

from __future__ import annotations

import torch
from lightning.fabric import Fabric
from lightning.pytorch.loggers import CSVLogger
from support.tiny_lightning import ROWS, csv_rows, tokens
from support.tiny_trainer import Sequences, moe_model
from torch.utils.data import DataLoader

from areal_callbacks import stats_tracker
from areal_callbacks.integrations.lightning import AReaLMetricsCallback
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics


def train(folder, *, every=1, log_every=1, accumulate=1, **options):
    callback = AReaLMetricsCallback(every=every, report=False, **options)
    logger = CSVLogger(folder)
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[callback], loggers=[logger])
    plain = moe_model()
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), 1e-2))
    loader = fabric.setup_dataloaders(DataLoader(Sequences(ROWS), 2))
    for step, batch in enumerate(loader, 1):
        loss = model(**batch).loss
        with torch.no_grad():
            model(**batch)
        fabric.backward(loss)
        if step % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        if step % log_every == 0:
            fabric.log_dict({"loss": loss.item()}, step=step)
    callback.close()
    logger.save()
    return csv_rows(folder), plain


def test_what_was_measured_joins_the_rows_of_the_loop(tmp_path):
    rows, _ = train(tmp_path)
    assert len(rows) == ROWS // 2
    assert all("loss" in row and "moe_balance/layer_0/max_over_ideal" in row for row in rows)
    assert sum(row["train_perf/tokens"] for row in rows) == tokens()
    assert [row["train_perf/optimizer_steps"] for row in rows] == [1] * 7


def test_rare_rows_and_rare_exports_lose_nothing(tmp_path):
    rows, _ = train(tmp_path, every=2, log_every=3)
    ours = [row for row in rows if "train_perf/tokens" in row]
    assert sum(row["train_perf/tokens"] for row in ours) == tokens()
    assert [row["train_perf/optimizer_steps"] for row in ours] == [2, 4, 1]
    assert ours[-1]["train_perf/total_tokens"] == tokens()


def test_batches_after_the_last_optimizer_step_are_counted(tmp_path):
    """The loop steps every third batch of seven."""
    rows, _ = train(tmp_path, accumulate=3)
    assert sum(row.get("train_perf/optimizer_steps", 0) for row in rows) == 2
    assert sum(row.get("train_perf/tokens", 0) for row in rows) == tokens()


def test_weights_are_bit_identical_and_no_hook_stays(tmp_path):
    _, observed = train(tmp_path / "a")
    _, switched_off = train(tmp_path / "b", throughput=False, moe_balance=False)
    pairs = zip(observed.state_dict().values(), switched_off.state_dict().values())
    assert all(torch.equal(first, second) for first, second in pairs)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in observed.modules())


def test_what_is_recorded_after_the_last_step_joins_the_tail(tmp_path):
    callback = AReaLMetricsCallback(report=False)
    logger = CSVLogger(tmp_path)
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[callback], loggers=[logger])
    plain = moe_model()
    model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), 1e-2))
    batch = {name: value[None] for name, value in Sequences(1)[0].items()}
    fabric.backward(model(**batch).loss)
    optimizer.step()
    fabric.log_dict({"loss": 1.0}, step=1)
    stats_tracker.get("eval-rollout").scalar(reward=0.25)
    callback.close()
    logger.save()
    rows = csv_rows(tmp_path)
    assert [row.get("eval-rollout/reward") for row in rows] == [None, 0.25]
    assert rows[-1]["step"] == 2


def test_another_fabric_begins_a_new_run(tmp_path):
    callback = AReaLMetricsCallback(every=3, report=False)
    for name in ("a", "b"):
        fabric = Fabric(accelerator="cpu", devices=1, callbacks=[callback], loggers=[CSVLogger(tmp_path / name)])
        plain = moe_model()
        model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), 1e-2))
        for step, batch in enumerate(DataLoader(Sequences(ROWS), 2), 1):
            fabric.backward(model(**batch).loss)
            optimizer.step()
            fabric.log("loss", 0.0, step=step)
    callback.close()
    for name in ("a", "b"):
        records = [r for path in (tmp_path / name).rglob("metrics.jsonl") for r in read_metrics(path)]
        ours = [record.metrics for record in records if isinstance(record, MetricsRecord)]
        assert [row["train_perf/optimizer_steps"] for row in ours] == [3, 3, 1]
        assert ours[-1]["train_perf/total_tokens"] == tokens()
