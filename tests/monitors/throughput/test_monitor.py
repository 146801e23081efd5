"""Throughput against hand computation: one rank on a moved clock, several ranks merged as the reduction merges them."""

from __future__ import annotations

import functools
import json
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from areal_callbacks.core.records import Records
from areal_callbacks.monitors.throughput.lengths import Lengths
from areal_callbacks.monitors.throughput.monitor import ThroughputMonitor
from areal_callbacks.monitors.throughput.timer import WallTimer
from areal_callbacks.safety.reporting import logger


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Rank:
    """A monitor, its clock, and steps of a given duration."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        timers = (WallTimer(clock=self.clock), WallTimer(clock=self.clock))
        self.monitor = ThroughputMonitor(torch.device("cpu"), timers=timers, **options)

    def step(self, lengths: list[int], seconds: float, optimizer: float | None = None) -> None:
        width = max([1, *lengths])
        mask = torch.tensor([[1] * length + [0] * (width - length) for length in lengths])
        self.monitor.begin()
        self.monitor.on_inputs((), {"input_ids": mask, "attention_mask": mask}, last=False)
        self.clock.now += seconds - (optimizer or 0.0)
        if optimizer is not None:
            self.monitor.optimizer_begin()
            self.clock.now += optimizer
            self.monitor.optimizer_end()
        self.monitor.end()
        self.clock.now += 1000.0  # evaluation, checkpoints, waiting for data


def exported(*ranks: Rank) -> dict[str, float]:
    """What all ranks together export; the totals are those of the first."""
    return derived(ranks[0], reduced(*ranks))


def reduced(*ranks: Rank) -> Records:
    return functools.reduce(Records.merge_rank, [rank.monitor.collect() for rank in ranks])


def derived(rank: Rank, records: Records) -> dict[str, float]:
    rank.monitor.accumulate(records)
    return rank.monitor.derive(records)


def squares(length: int) -> int:
    return length * (length + 1)


def test_one_rank() -> None:
    rank = Rank(estimator=squares, peak_flops=1000.0)
    rank.step([3, 5], seconds=2.0)
    rank.step([4], seconds=4.0, optimizer=0.5)
    flops = 3 * 4 + 5 * 6 + 4 * 5
    assert exported(rank) == {
        "train_perf/tokens": 12,
        "train_perf/seconds": 6.0,
        "train_perf/seconds_mean": 6.0,
        "train_perf/tokens_per_second": 2.0,
        "train_perf/estimated_flops": flops,
        "train_perf/estimated_flops_per_second": flops / 6,
        "train_perf/peak_flops_per_second": 1000.0,
        "train_perf/mfu": flops / 6 / 1000,
        "train_perf/optimizer_steps": 1,
        "train_perf/total_tokens": 12,
        "train_perf/total_seconds": 6.0,
        "train_perf/cumulative_tokens_per_second": 2.0,
        "train_perf/cumulative_estimated_flops_per_second": flops / 6,
        "timeperf/optimizer_step": 0.5,
    }


def test_ranks_add_tokens_and_wait_for_the_slowest() -> None:
    fast, slow = Rank(estimator=squares, peak_flops=10.0), Rank(estimator=squares, peak_flops=10.0)
    fast.step([2, 2], seconds=1.0, optimizer=0.25)
    slow.step([6], seconds=3.0, optimizer=0.75)
    metrics = exported(fast, slow)
    assert metrics["train_perf/tokens"] == 10
    assert metrics["train_perf/seconds"] == 3.0
    assert metrics["train_perf/seconds_mean"] == 2.0
    assert metrics["train_perf/tokens_per_second"] == 10 / 3
    assert metrics["train_perf/estimated_flops"] == 2 * 6 + 42
    assert metrics["train_perf/peak_flops_per_second"] == 20.0
    assert metrics["train_perf/mfu"] == pytest.approx(54 / 3 / 20)
    assert metrics["train_perf/optimizer_steps"] == 1
    assert metrics["timeperf/optimizer_step"] == 0.75


def test_intervals_add_the_seconds_of_the_slowest_rank_of_each() -> None:
    """Two reduced intervals that were logged as one."""
    ranks = [Rank(peak_flops=7.0), Rank(peak_flops=7.0)]
    parts = []
    for seconds in ((1.0, 2.0), (5.0, 3.0)):
        for rank, duration in zip(ranks, seconds):
            rank.step([4], duration, optimizer=duration / 2)
        parts.append(reduced(*ranks))
        ranks[0].monitor.accumulate(parts[-1])
    metrics = ranks[0].monitor.derive(parts[0].merge(parts[1]))
    assert metrics["train_perf/seconds"] == 2.0 + 5.0
    assert metrics["train_perf/seconds_mean"] == (1.0 + 2.0 + 5.0 + 3.0) / 2
    assert metrics["train_perf/tokens"] == metrics["train_perf/total_tokens"] == 16
    assert metrics["train_perf/total_seconds"] == 7.0
    assert metrics["train_perf/peak_flops_per_second"] == 14.0
    assert metrics["train_perf/optimizer_steps"] == 2
    assert metrics["timeperf/optimizer_step"] == (1.0 + 2.5) / 2


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(1, 2**60),
)
def test_any_split_over_ranks_is_exact(ranks: list[list[list[int]]], factor: int) -> None:
    """Integers past 2**53 are exact: they travel in two parts."""
    observed = [Rank(estimator=lambda length: factor * squares(length)) for _ in ranks]
    for rank, steps in zip(observed, ranks):
        for lengths in steps:
            rank.step(lengths, seconds=1.0)
    metrics = exported(*observed)
    lengths = [length for steps in ranks for step in steps for length in step]
    assert metrics["train_perf/tokens"] == sum(lengths)
    assert observed[0].monitor.totals.flops == factor * sum(map(squares, lengths))
    assert metrics["train_perf/estimated_flops"] == float(factor * sum(map(squares, lengths)))
    assert metrics["train_perf/seconds"] == max(len(steps) for steps in ranks)


def test_a_rank_that_repeats_anothers_tokens_adds_its_time_alone() -> None:
    first, repeats = Rank(estimator=squares), Rank(estimator=squares, contributes_tokens=False)
    first.step([5, 3], seconds=1.0)
    repeats.step([5, 3], seconds=2.0)
    metrics = exported(first, repeats)
    assert metrics["train_perf/tokens"] == 8
    assert metrics["train_perf/estimated_flops"] == 42
    assert metrics["train_perf/seconds"] == 2.0
    repeats.step([7], seconds=1.0)
    assert exported(first, repeats)["train_perf/tokens"] == 0  # and keeps nothing of it for later


def test_what_one_rank_cannot_tell_is_left_out_for_all() -> None:
    knows, does_not = Rank(estimator=squares, peak_flops=1.0), Rank()
    for rank in (knows, does_not):
        rank.step([4], seconds=1.0)
    metrics = exported(knows, does_not)
    assert metrics["train_perf/tokens"] == 8
    assert not [name for name in metrics if "flops" in name or "mfu" in name]


def test_arguments_that_tell_no_lengths(caplog: pytest.LogCaptureFixture) -> None:
    """Later intervals are whole again; totals that miss a part are not shown."""
    rank = Rank(estimator=squares)
    rank.monitor.begin()
    assert not rank.monitor.on_inputs((), {"pixel_values": torch.zeros(2, 3)}, last=False)
    assert not rank.monitor.on_inputs((), {"pixel_values": torch.zeros(2, 3)}, last=True)
    rank.clock.now += 1.0
    rank.monitor.end()
    assert exported(rank) == {
        "train_perf/seconds": 1.0,
        "train_perf/seconds_mean": 1.0,
        "train_perf/total_seconds": 1.0,
    }
    rank.step([3], seconds=2.0)
    final = exported(rank)
    assert final["train_perf/tokens"] == 3
    assert final["train_perf/tokens_per_second"] == 1.5
    assert not [name for name in final if "total_tokens" in name or "cumulative" in name]
    (record,) = [record for record in caplog.records if record.name == logger.name]
    assert "token_count_fn" in record.getMessage()


@pytest.mark.parametrize(
    "counted",
    [
        [3, 4],
        (length for length in (3, 4)),
        np.array([3, 4]),
        torch.tensor([[3], [4]], dtype=torch.int32),
        Lengths(torch.tensor([3, 4]), 9),
    ],
)
def test_what_token_count_fn_may_return(counted: Any) -> None:
    calls = []

    def count(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        return counted

    rank = Rank(estimator=squares, token_count_fn=count)
    rank.monitor.begin()
    assert not rank.monitor.on_inputs((), {"input_ids": torch.zeros(1, 9)}, last=False)
    assert rank.monitor.on_inputs((1,), {"batch": 2}, last=True)
    assert calls == [((1,), {"batch": 2})]
    metrics = exported(rank)
    assert metrics["train_perf/tokens"] == 7
    assert metrics["train_perf/estimated_flops"] == 12 + 20


@pytest.mark.parametrize("counted", [5, np.int64(5), torch.tensor(5)])
def test_a_single_length(counted: Any) -> None:
    rank = Rank(token_count_fn=lambda: counted)
    rank.monitor.on_inputs((), {}, last=True)
    assert exported(rank)["train_perf/tokens"] == 5


@pytest.mark.parametrize("counted", [[2.5], [-1], "five", torch.ones(2), None])
def test_lengths_that_are_none_switch_the_monitor_off(counted: Any, caplog: pytest.LogCaptureFixture) -> None:
    rank = Rank(token_count_fn=lambda: counted)
    for _ in range(3):
        rank.monitor.on_inputs((), {}, last=True)
    assert rank.monitor.failed
    assert len([record for record in caplog.records if record.name == logger.name]) == 1


def test_a_host_that_counts_is_believed() -> None:
    rank = Rank()
    rank.monitor.count([4, 5])
    rank.step([100], seconds=1.0)
    rank.monitor.count_inputs({"attention_mask": torch.tensor([[1, 1, 0]])})
    assert exported(rank)["train_perf/tokens"] == 4 + 5 + 2


def test_lengths_given_by_the_host_may_change_afterwards() -> None:
    rank, lengths = Rank(), torch.tensor([4, 5])
    rank.monitor.count(Lengths(lengths, 9))
    lengths.zero_()
    assert exported(rank)["train_perf/tokens"] == 9


def test_optimizer_steps_that_did_not_happen_are_not_timed() -> None:
    rank = Rank()
    rank.monitor.optimizer_begin()
    rank.clock.now += 50.0  # no end: the step was skipped
    rank.monitor.optimizer_begin()
    rank.clock.now += 0.5
    rank.monitor.optimizer_end()
    rank.monitor.optimizer_begin()
    rank.clock.now += 50.0
    rank.monitor.optimizer_skipped()
    metrics = exported(rank)
    assert metrics["train_perf/optimizer_steps"] == 1
    assert metrics["train_perf/skipped_steps"] == 1
    assert metrics["timeperf/optimizer_step"] == 0.5


def test_an_interval_without_time_or_steps_has_no_rates() -> None:
    rank = Rank(estimator=squares)
    assert exported(rank) == {
        "train_perf/tokens": 0,
        "train_perf/seconds": 0,
        "train_perf/seconds_mean": 0,
        "train_perf/estimated_flops": 0,
        "train_perf/total_tokens": 0,
        "train_perf/total_seconds": 0,
    }
    rank.monitor.has_optimizer = True
    metrics = exported(rank)
    assert metrics["train_perf/optimizer_steps"] == 0
    assert "timeperf/optimizer_step" not in metrics


@pytest.mark.parametrize("result", [OSError("no formula"), float("nan"), float("inf")])
def test_an_estimator_that_fails_costs_the_flops_only(result: Any, caplog: pytest.LogCaptureFixture) -> None:
    def estimate(length: int) -> float:
        if isinstance(result, Exception):
            raise result
        return float(result) * length

    rank = Rank(estimator=estimate)
    for _ in range(2):
        rank.step([3], seconds=1.0)
        metrics = exported(rank)
        assert metrics["train_perf/tokens"] == 3
        assert not [name for name in metrics if "flops" in name]
    assert len([record for record in caplog.records if record.name == logger.name]) == 1


def test_totals_continue_in_another_run() -> None:
    first, second = Rank(estimator=squares), Rank(estimator=squares)
    first.step([3], seconds=1.0, optimizer=0.1)
    exported(first)
    second.monitor.load_state_dict(json.loads(json.dumps(first.monitor.state_dict())))
    second.step([4], seconds=3.0, optimizer=0.1)
    metrics = exported(second)
    assert metrics["train_perf/total_tokens"] == 7
    assert metrics["train_perf/total_seconds"] == 4.0
    assert metrics["train_perf/cumulative_estimated_flops_per_second"] == (12 + 20) / 4
    assert second.monitor.totals.optimizer_steps == 2
    with pytest.raises(ValueError, match="seconds"):
        second.monitor.load_state_dict({"tokens": 3})
    assert second.monitor.totals.tokens == 7


def test_a_step_waits_for_no_device() -> None:
    """On a device without values, whatever reads one raises, which would switch the monitor off."""
    rank = Rank()
    ids = torch.zeros(2, 6, dtype=torch.long, device="meta")
    for extra in ({}, {"attention_mask": ids}, {"position_ids": ids}, {"cu_seq_lens_q": ids[0]}):
        for _ in range(40):
            rank.monitor.on_inputs((), {"input_ids": ids, **extra}, last=False)
    counting = Rank(token_count_fn=lambda: ids[0])
    counting.monitor.on_inputs((), {}, last=True)
    assert not rank.monitor.failed
    assert not counting.monitor.failed
