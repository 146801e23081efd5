"""What an Accelerate loop of one process measures: accumulation, logging, several models, skipped steps, ends."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest
import torch
from support.readback import jsonl_rows, messages
from support.tiny_accelerate import Loop, Rows, flops_of, hooks_of, make_accelerator
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
from torch.utils.data import DataLoader

from areal_callbacks import stats_tracker
from areal_callbacks.integrations.accelerate import enable
from areal_callbacks.monitors.training_forward import TrainingForward

OURS = ("train_perf/", "moe_balance/", "timeperf/")
QUIET = {"report": False}


def ours(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name.startswith(OURS)}


def joined(steps: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(steps))


def column(rows: list[dict[str, float]], name: str) -> list[float]:
    return [row[f"train_perf/{name}"] for row in rows]


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
        assert sum(column(rows, "estimated_flops")) == flops_of(joined(loop.lengths))
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
        assert sum(column(rows, "estimated_flops")) == flops_of(joined(first.lengths + second.lengths))
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


class TestRows:
    def test_ours_share_the_row_of_the_loss_and_change_nothing_else(self, tmp_path):
        tracker = Rows()
        accelerator = make_accelerator(tmp_path, log_with=tracker)
        enable(accelerator, **QUIET)
        loop = Loop(accelerator, number=4)
        stats_tracker.scalar(loss=-1.0, mine=3.0)
        loss = torch.tensor(0.5)
        loop.run(lambda step, _: accelerator.log({"loss": loss, "note": "a"}, step, {"rows": {"extra": 1}}))
        accelerator.end_training()
        assert [step for step, _ in tracker.rows] == [1, 2]
        assert all(row["loss"] is loss and row["note"] == "a" and row["extra"] == 1 for _, row in tracker.rows)
        assert tracker.rows[0][1]["mine"] == 3.0
        assert [ours(row) for _, row in tracker.rows] == [ours(record.metrics) for record in metric_records(tmp_path)]
        assert [row["train_perf/tokens"] for _, row in tracker.rows] == [sum(lengths) for lengths in loop.lengths]

    @pytest.mark.parametrize("every", [1, 2, 3])
    def test_exports_between_two_log_calls_merge(self, every, tmp_path):
        tracker = Rows()
        accelerator = make_accelerator(tmp_path, log_with=tracker)
        enable(accelerator, every=every, flops={"peak_flops": 1e9}, **QUIET)
        loop = Loop(accelerator)

        def log(step: int, loss: float) -> None:
            stats_tracker.scalar(reward=float(step))
            if step % 5 == 0:
                accelerator.log({"loss": loss}, step=100 * step)

        loop.run(log)  # 8 steps
        accelerator.end_training()
        first = 5 // every * every  # what was reduced when the first row was logged
        parts = [loop.lengths[:first], loop.lengths[first:]]
        assert [step for step, _ in tracker.rows] == [500, 503]  # the tail is three steps later
        rows = [row for _, row in tracker.rows]
        assert column(rows, "tokens") == [sum(map(sum, part)) for part in parts]
        assert column(rows, "optimizer_steps") == [first, 8 - first]
        assert column(rows, "estimated_flops") == [flops_of(joined(part)) for part in parts]
        for row in rows:
            seconds = row["train_perf/seconds"]
            assert row["train_perf/tokens_per_second"] == pytest.approx(row["train_perf/tokens"] / seconds)
            assert row["train_perf/estimated_flops_per_second"] == pytest.approx(
                row["train_perf/estimated_flops"] / seconds
            )
            assert row["train_perf/mfu"] == pytest.approx(row["train_perf/estimated_flops"] / seconds / 1e9)
            assert row["timeperf/optimizer_step"] < seconds
        assert column(rows, "total_seconds")[-1] == pytest.approx(sum(column(rows, "seconds")))
        np.testing.assert_array_equal(total_loads(tmp_path), loop.recount.counts)
        recorded = [range(1, first), range(first, 9)]  # a step's value comes after its export
        assert [row["reward"] for row in rows] == [pytest.approx(np.mean(values)) for values in recorded]

    @pytest.mark.parametrize("given", [False, True])
    def test_a_loop_that_never_logs_gets_one_row_at_the_end(self, given, tmp_path):
        tracker = Rows()
        accelerator = make_accelerator(tmp_path, log_with=tracker)
        enable(accelerator, every=3, **QUIET)
        loop = Loop(accelerator)
        loop.run()
        if given:
            accelerator.log({"nothing": 1.0})  # without a step: so has the tail
            loop.run()
        accelerator.end_training()
        assert [step for step, _ in tracker.rows] == ([None, None] if given else [8])
        assert sum(row["train_perf/tokens"] for _, row in tracker.rows) == loop.tokens

    def test_evaluation_rows_before_the_first_export_stay_as_they_are(self, tmp_path):
        tracker = Rows()
        accelerator = make_accelerator(tmp_path, log_with=tracker)
        enable(accelerator, **QUIET)
        accelerator.log({"eval_loss": 1.0}, step=0)
        Loop(accelerator)
        accelerator.log({"eval_loss": 2.0}, step=0)
        accelerator.end_training()
        assert tracker.rows == [(0, {"eval_loss": 1.0}), (0, {"eval_loss": 2.0})]


class TestEnds:
    def test_end_training_leaves_nothing_behind(self, tmp_path):
        accelerator = make_accelerator(tmp_path)
        before = set(vars(accelerator))
        metrics = enable(accelerator, **QUIET)
        loop = Loop(accelerator)
        loop.recount.remove()
        loop.run()
        accelerator.end_training()
        self.assert_untouched(accelerator, before, loop)
        assert metrics.session is None

    def test_nothing_is_left_after_an_exception_either(self, tmp_path):
        accelerator = make_accelerator(tmp_path)
        before = set(vars(accelerator))

        def fail(*_: float) -> None:
            raise RuntimeError("no more")

        metrics = enable(accelerator, **QUIET)
        loop = Loop(accelerator)
        loop.recount.remove()
        with pytest.raises(RuntimeError, match="no more"), metrics:
            loop.run(fail)
        self.assert_untouched(accelerator, before, loop)
        (record,) = metric_records(tmp_path)  # what was reduced is not lost
        assert record.metrics["train_perf/tokens"] == sum(loop.lengths[0])

    def assert_untouched(self, accelerator, before, loop):
        assert set(vars(accelerator)) - before <= {"_is_accelerate_prepared"}
        assert not accelerator._save_model_state_pre_hook
        assert not accelerator._load_model_state_pre_hook
        assert hooks_of(loop.model) == 0
        assert "step" not in vars(loop.optimizer)
        inner = loop.optimizer.optimizer
        assert not inner._optimizer_step_pre_hooks
        assert not inner._optimizer_step_post_hooks

    def test_the_loop_goes_on_unmeasured_after_close(self, tmp_path):
        accelerator = make_accelerator(tmp_path)
        metrics = enable(accelerator, **QUIET)
        loop = Loop(accelerator)
        loop.run()
        metrics.close()
        metrics.close()
        loop.run()
        accelerator.log({"loss": 1.0})
        accelerator.end_training()
        assert len(metric_records(tmp_path)) == 8

    def test_a_tracker_that_fails_at_the_end_is_the_users_to_see(self, tmp_path):
        class Broken(Rows):
            def finish(self):
                raise OSError("the disk is full")

        accelerator = make_accelerator(tmp_path, log_with=Broken())
        enable(accelerator, **QUIET)
        loop = Loop(accelerator, number=2)
        loop.recount.remove()
        loop.run()
        with pytest.raises(OSError, match="the disk is full"):
            accelerator.end_training()
        assert hooks_of(loop.model) == 0

    def test_free_memory_frees_the_model_and_begins_a_new_training(self, tmp_path):
        accelerator = make_accelerator(tmp_path)
        metrics = enable(accelerator, **QUIET)
        loop = Loop(accelerator, number=4)
        loop.run()
        model, first = weakref.ref(loop.model), loop.lengths
        loop.model, loop.optimizer, loop.loader = accelerator.free_memory(loop.model, loop.optimizer, loop.loader)
        assert metrics.session is None
        del loop
        gc.collect()
        assert model() is None
        second = Loop(accelerator, number=4)
        second.run()
        accelerator.end_training()
        records = metric_records(tmp_path)
        rows = [record.metrics for record in records]
        assert [record.step for record in records] == [1, 2, 3, 4]
        assert column(rows, "tokens") == [sum(lengths) for lengths in first + second.lengths]
        assert column(rows, "total_tokens")[-1] == second.tokens


class TestConfiguration:
    def test_enabling_twice_is_enabling_once(self, tmp_path):
        accelerator = make_accelerator(tmp_path)
        metrics = enable(accelerator, every=3, **QUIET)
        assert enable(accelerator) is metrics
        assert metrics.config.every == 3
        loop = Loop(accelerator)
        loop.run()
        accelerator.end_training()
        assert sum(column([record.metrics for record in metric_records(tmp_path)], "tokens")) == loop.tokens

    def test_the_later_configuration_counts_until_something_is_measured(self, tmp_path, caplog):
        accelerator = make_accelerator(tmp_path)
        metrics = enable(accelerator, every=3, **QUIET)
        enable(accelerator, every=4, **QUIET)
        Loop(accelerator).run()
        enable(accelerator, every=4, **QUIET)
        assert messages(caplog) == []
        enable(accelerator, every=5, **QUIET)
        assert messages(caplog) == ["this accelerator is measured already: its configuration stays"]
        assert metrics.config.every == 4
        accelerator.end_training()
        assert [record.step for record in metric_records(tmp_path)] == [4, 8]

    def test_a_bad_key_is_an_error_at_once_and_changes_nothing(self, tmp_path):
        accelerator = make_accelerator(tmp_path)
        before = set(vars(accelerator))
        with pytest.raises(ValueError, match="evry"):
            enable(accelerator, evry=3)
        assert set(vars(accelerator)) == before

    def test_without_a_project_folder_a_dated_one_is_made(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        accelerator = make_accelerator()
        enable(accelerator, **QUIET)
        Loop(accelerator, number=2).run()
        accelerator.end_training()
        assert len(list(tmp_path.glob("areal_metrics/*/metrics.jsonl"))) == 1


class TestSeveralAccelerators:
    def test_each_measures_its_own_and_the_first_that_trains_gets_what_is_recorded(self, tmp_path):
        idle = make_accelerator(tmp_path)
        enable(idle, **QUIET)
        idle.prepare(moe_model(), DataLoader([torch.ones(1)]))  # evaluates only
        first, second = (type(idle)(cpu=True, project_dir=str(tmp_path)) for _ in range(2))
        loops = []
        for accelerator in (first, second):
            enable(accelerator, every=100, **QUIET)
            loops.append(Loop(accelerator, model=moe_model(seed=len(loops))))
        stats_tracker.scalar(reward=2.0)
        loops[0].run(epochs=2)
        loops[1].run()
        first.end_training()
        second.end_training()
        idle.end_training()
        (record,) = metric_records(tmp_path)
        assert record.metrics["train_perf/tokens"] == loops[0].tokens
        assert record.metrics["reward"] == 2.0
        (other,) = jsonl_rows(tmp_path / "areal_metrics_2").values()
        assert other["train_perf/tokens"] == loops[1].tokens
        assert "reward" not in other


class TestWhatCannotBeSeen:
    def test_a_loop_without_a_prepared_optimizer_is_told_so(self, tmp_path, caplog):
        accelerator = make_accelerator(tmp_path)
        enable(accelerator, **QUIET)
        accelerator.prepare(moe_model())
        accelerator.end_training()
        assert messages(caplog) == ["no optimizer was prepared: nothing was measured"]

    def test_deepspeed_steps_inside_backward(self, tmp_path, caplog):
        accelerator = make_accelerator(tmp_path, gradient_accumulation_steps=2)
        loop = Loop(accelerator)

        class Engine:
            """What Accelerate calls of DeepSpeed's engine, which is not installed here."""

            def backward(self, loss, sync_gradients):
                loss.backward()

        accelerator.state.distributed_type = "DEEPSPEED"
        accelerator.deepspeed_engine_wrapped = Engine()
        enable(accelerator, **QUIET)
        for batch in loop.loader:
            with accelerator.accumulate(loop.model):
                accelerator.backward(loop.model(**batch).loss)
        accelerator.end_training()
        rows = [record.metrics for record in metric_records(tmp_path)]
        assert len(rows) == 4
        assert sum(column(rows, "tokens")) == sum(int(batch["attention_mask"].sum()) for batch in loop.loader)
        assert not any("optimizer" in name for row in rows for name in row)
        assert messages(caplog) == ["DeepSpeed steps inside backward: optimizer steps are not timed or counted"]

    def test_megatron_lm_is_left_alone(self, tmp_path, caplog):
        accelerator = make_accelerator(tmp_path)
        loop = Loop(accelerator)
        loop.recount.remove()
        accelerator.state.distributed_type = "MEGATRON_LM"
        enable(accelerator, **QUIET)
        assert hooks_of(loop.model) == 0
        assert messages(caplog) == ["Accelerate's Megatron-LM engine hides its steps: nothing is measured"]

    def test_a_monitor_that_fails_does_not_stop_the_training(self, tmp_path, caplog, monkeypatch):
        accelerator = make_accelerator(tmp_path)
        enable(accelerator, **QUIET)
        loop = Loop(accelerator, number=4)

        def fail(*_):
            raise RuntimeError("broken")

        monkeypatch.setattr(TrainingForward, "_enter", fail)
        loop.run()
        accelerator.end_training()
        assert messages(caplog)[0] == "training_forward raised and is switched off: RuntimeError('broken')"
