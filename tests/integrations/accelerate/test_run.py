"""What one process measures of what it prepared: accumulation, several models, skipped steps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from support.readback import messages
from support.tiny_accelerate import QUIET, Loop, column, flops_of, hooks_of, join, make_accelerator
from support.tiny_trainer import (
    EXPERTS,
    LAYERS,
    TOP_K,
    dense_model,
    load_records,
    metric_records,
    moe_model,
    total_loads,
)
from torch import nn

from areal_callbacks.integrations.accelerate import enable


class Words(nn.Module):
    """The least that compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 1)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.table(input_ids).sum()


class TestWhatIsMeasured:
    def test_every_step_of_an_accumulating_loop_is_a_row_of_its_own(self, tmp_path):
        accelerator = make_accelerator(tmp_path, gradient_accumulation_steps=3)
        enable(accelerator, **QUIET)
        loop = Loop(accelerator)
        loop.run(epochs=2)  # 8 batches an epoch: the last step of each has two
        accelerator.end_training()
        assert [len(lengths) for lengths in loop.lengths] == [6, 6, 4] * 2
        records = metric_records(tmp_path)
        rows = [record.metrics for record in records]
        assert [record.step for record in records] == [1, 2, 3, 4, 5, 6]
        assert column(rows, "tokens") == [sum(lengths) for lengths in loop.lengths]
        assert column(rows, "estimated_flops") == [flops_of(lengths) for lengths in loop.lengths]
        assert column(rows, "optimizer_steps") == [1] * 6
        assert column(rows, "total_tokens") == list(itertools.accumulate(map(sum, loop.lengths)))
        assert column(rows, "total_seconds") == pytest.approx(list(itertools.accumulate(column(rows, "seconds"))))
        np.testing.assert_array_equal(total_loads(tmp_path), loop.recount.counts)

    def test_every_decides_how_often_and_the_tail_is_not_lost(self, tmp_path):
        accelerator = make_accelerator(tmp_path, gradient_accumulation_steps=2)
        enable(accelerator, every=3, **QUIET)
        loop = Loop(accelerator)
        loop.run()
        accelerator.end_training()
        records = metric_records(tmp_path)
        assert [record.step for record in records] == [3, 4]
        assert column([record.metrics for record in records], "tokens") == [
            sum(map(sum, loop.lengths[:3])),
            sum(loop.lengths[3]),
        ]

    @pytest.mark.parametrize("order", ["before", "after", "between"])
    def test_it_may_be_enabled_before_or_after_prepare(self, order, tmp_path):
        accelerator = make_accelerator(tmp_path)
        if order == "before":
            enable(accelerator, **QUIET)
        model = accelerator.prepare(moe_model())
        if order == "between":
            enable(accelerator, **QUIET)
        optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), 0.1))
        if order == "after":
            enable(accelerator, **QUIET)
        accelerator.backward(model(input_ids=torch.ones(2, 5, dtype=torch.long)).logits.sum())
        optimizer.step()
        accelerator.end_training()
        (record,) = metric_records(tmp_path)
        assert record.metrics["train_perf/tokens"] == 10
        assert record.metrics["train_perf/optimizer_steps"] == 1
        assert total_loads(tmp_path).sum(axis=1).tolist() == [10 * TOP_K] * LAYERS

    def test_evaluation_and_frozen_models_do_not_count(self, tmp_path):
        accelerator = make_accelerator(tmp_path)
        enable(accelerator, **QUIET)
        teacher = accelerator.prepare(dense_model().requires_grad_(False))
        loop = Loop(accelerator)
        batch = {"input_ids": torch.ones(3, 7, dtype=torch.long)}

        def interleave(*_: float) -> None:
            teacher(**batch)
            loop.model.eval()
            loop.model(**batch)
            loop.model.train()
            with torch.no_grad():
                loop.model(**batch)

        loop.run(interleave)
        accelerator.end_training()
        rows = [record.metrics for record in metric_records(tmp_path)]
        assert sum(column(rows, "tokens")) == loop.tokens
        assert sum(column(rows, "estimated_flops")) == flops_of(join(loop.lengths))
        np.testing.assert_array_equal(total_loads(tmp_path), loop.recount.counts)
        assert hooks_of(teacher) == 0

    def test_a_model_that_prepare_compiles(self, tmp_path):
        accelerator = make_accelerator(tmp_path, dynamo_backend="eager")
        enable(accelerator, **QUIET)
        plain = Words()
        model, optimizer = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), 0.1))
        assert type(model).__name__ == "OptimizedModule"
        for width in (3, 5):
            accelerator.backward(model(input_ids=torch.ones(2, width, dtype=torch.long)))
            optimizer.step()
        accelerator.end_training()
        assert column([record.metrics for record in metric_records(tmp_path)], "tokens") == [6, 10]

    def test_weights_are_the_same_bits_with_and_without(self, tmp_path):
        weights = []
        for measured in (False, True):
            accelerator = make_accelerator(tmp_path / str(measured), gradient_accumulation_steps=2)
            if measured:
                enable(accelerator, moe_balance={"extended": True}, **QUIET)
            loop = Loop(accelerator, optimizer=torch.optim.AdamW)
            loop.run(lambda step, loss: accelerator.log({"loss": loss}, step=step), epochs=2)  # noqa: B023
            accelerator.end_training()
            weights.append(loop.model.state_dict())
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


class TestSeveralModels:
    def test_a_second_model_prepared_later_keeps_the_routers_of_the_first(self, tmp_path):
        accelerator = make_accelerator(tmp_path)
        metrics = enable(accelerator, every=10, **QUIET)
        first = Loop(accelerator)
        session = metrics.session
        first.run()
        second = Loop(accelerator, model=moe_model(seed=1), batch=4)
        first.run()
        second.run()
        assert metrics.session is session
        accelerator.end_training()
        rows = [record.metrics for record in metric_records(tmp_path)]
        assert sum(column(rows, "tokens")) == first.tokens + second.tokens
        assert sum(column(rows, "estimated_flops")) == flops_of(join(first.lengths + second.lengths))
        assert sum(column(rows, "optimizer_steps")) == 8 + 8 + 4
        loads: dict[str, np.ndarray] = {}
        for record in load_records(tmp_path):
            loads[record.stack] = loads.get(record.stack, np.zeros((LAYERS, EXPERTS), np.int64)) + record.counts
        assert len(loads) == 2
        np.testing.assert_array_equal(loads.pop(""), first.recount.counts)
        np.testing.assert_array_equal(*loads.values(), second.recount.counts)

    def test_two_models_in_one_step_with_an_optimizer_each(self, tmp_path):
        accelerator = make_accelerator(tmp_path)
        enable(accelerator, every=2, **QUIET)
        generator, critic = accelerator.prepare(moe_model(), moe_model(seed=1))
        optimizers = accelerator.prepare(*(torch.optim.SGD(m.parameters(), 0.1) for m in (generator, critic)))
        for width in (5, 6, 7):
            tokens = {"input_ids": torch.ones(2, width, dtype=torch.long)}
            loss = sum(model(**tokens).logits.sum() for model in (generator, critic))
            accelerator.backward(loss)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        accelerator.end_training()
        rows = [record.metrics for record in metric_records(tmp_path)]
        assert column(rows, "tokens") == [2 * 2 * width for width in (5, 6, 7)]
        assert column(rows, "optimizer_steps") == [2, 2, 2]

    def test_models_of_different_sizes_have_no_common_flops(self, tmp_path, caplog):
        accelerator = make_accelerator(tmp_path)
        enable(accelerator, every=100, **QUIET)
        first = Loop(accelerator)
        second = Loop(accelerator, model=moe_model(num_hidden_layers=1))
        first.run()
        second.run()
        accelerator.end_training()
        (record,) = metric_records(tmp_path)
        assert record.metrics["train_perf/tokens"] == first.tokens + second.tokens
        assert not any("flops" in name for name in record.metrics)
        assert messages(caplog) == ["models of different sizes are trained together: their FLOPs are left out"]


class TestSkippedSteps:
    def test_a_step_that_the_scaler_refuses_is_counted_apart(self, tmp_path):
        accelerator = make_accelerator(tmp_path)
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        enable(accelerator, **QUIET)
        loop = Loop(accelerator)
        other = accelerator.prepare(torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1))
        for number, batch in enumerate(itertools.islice(loop.loader, 4)):
            loss = loop.model(**batch).loss
            accelerator.backward(loss * float("inf") if number in (1, 2) else loss)
            loop.optimizer.step()
            loop.optimizer.zero_grad()
            assert accelerator.optimizer_step_was_skipped == (number in (1, 2))
        assert not other.step_was_skipped
        accelerator.end_training()
        rows = [record.metrics for record in metric_records(tmp_path)]
        assert column(rows, "skipped_steps") == [0, 1, 1, 0]
        assert column(rows, "optimizer_steps") == [1, 0, 0, 1]
        assert ["timeperf/optimizer_step" in row for row in rows] == [True, False, False, True]

    def test_only_the_optimizer_that_skipped_is_counted(self, tmp_path):
        accelerator = make_accelerator(tmp_path)
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        enable(accelerator, every=2, **QUIET)
        first, second = accelerator.prepare(nn.Linear(1, 1), nn.Linear(1, 1))
        pair = accelerator.prepare(*(torch.optim.SGD(model.parameters(), 0.1) for model in (first, second)))
        tokens = torch.ones(1, 1)
        accelerator.backward((first(tokens) * float("inf") + second(tokens)).sum())
        for optimizer in pair:
            optimizer.step()
        assert [optimizer.step_was_skipped for optimizer in pair] == [True, False]
        accelerator.end_training()
        (record,) = metric_records(tmp_path)
        assert record.metrics["train_perf/skipped_steps"] == 1
        assert record.metrics["train_perf/optimizer_steps"] == 1
