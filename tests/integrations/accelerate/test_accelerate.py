"""enable(): its configuration, several accelerators, and how a measurement ends."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from support.readback import jsonl_rows, messages
from support.tiny_accelerate import QUIET, Loop, Rows, column, hooks_of, make_accelerator
from support.tiny_trainer import metric_records, moe_model
from support.wraps import find_wraps
from torch.utils.data import DataLoader

from areal_callbacks import stats_tracker
from areal_callbacks.integrations.accelerate import enable


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
        assert not find_wraps(accelerator) | find_wraps(loop.optimizer)
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


def test_a_count_that_fails_costs_the_tokens_and_not_the_training(tmp_path, caplog):
    def fail(**_):
        raise RuntimeError("broken")

    accelerator = make_accelerator(tmp_path)
    enable(accelerator, token_count_fn=fail, **QUIET)
    loop = Loop(accelerator, number=4)
    loop.run()
    accelerator.end_training()
    assert loop.steps == 2
    assert messages(caplog)[0] == "a batch could not be read: RuntimeError('broken')"
    assert not any("train_perf/tokens" in record.metrics for record in metric_records(tmp_path))
    assert all(record.metrics["train_perf/seconds"] > 0 for record in metric_records(tmp_path))
    assert all("moe_balance/worst_layer" in record.metrics for record in metric_records(tmp_path))
