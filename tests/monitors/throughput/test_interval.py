"""The numbers of an interval against hand computation, of one rank and of several that are pooled."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.throughput_ranks import Rank, derive, export, reduce, squares


def test_one_rank() -> None:
    rank = Rank(estimator=squares, peak_flops=1000.0)
    rank.step([3, 5], seconds=2.0)
    rank.step([4], seconds=4.0, optimizer=0.5)
    flops = 3 * 4 + 5 * 6 + 4 * 5
    assert export(rank) == {
        "train_perf/tokens": 12,
        "train_perf/seconds": 6.0,
        "train_perf/seconds_mean": 6.0,
        "train_perf/seconds_min": 6.0,
        "train_perf/slowest_rank": 0,
        "train_perf/data_wait_seconds": 1000.0,
        "train_perf/goodput": 6 / 2006,
        "train_perf/tokens_per_second": 2.0,
        "train_perf/tokens_per_second_per_device": 2.0,
        "train_perf/estimated_flops": flops,
        "train_perf/estimated_flops_per_second": flops / 6,
        "train_perf/estimated_flops_per_second_per_device": flops / 6,
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
    metrics = export(fast, slow)
    assert metrics["train_perf/tokens"] == 10
    assert metrics["train_perf/seconds"] == 3.0
    assert metrics["train_perf/seconds_mean"] == 2.0
    assert metrics["train_perf/tokens_per_second"] == 10 / 3
    assert metrics["train_perf/estimated_flops"] == 2 * 6 + 42
    assert metrics["train_perf/peak_flops_per_second"] == 20.0
    assert metrics["train_perf/mfu"] == pytest.approx(54 / 3 / 20)
    assert metrics["train_perf/optimizer_steps"] == 1
    assert metrics["timeperf/optimizer_step"] == 0.75


def test_the_slowest_rank_and_what_ranks_wait_for() -> None:
    """Two reduced intervals that were logged as one: seconds of both, the rank of the longer one."""
    ranks = [Rank(rank=number) for number in range(3)]
    parts = []
    for durations in ((1.0, 4.0, 2.0), (3.0, 1.0, 2.0)):
        for rank, seconds in zip(ranks, durations):
            rank.step([4], seconds)
        parts.append(reduce(*ranks))
    first = derive(ranks[0], parts[0])
    assert first["train_perf/slowest_rank"] == 1
    assert first["train_perf/seconds_min"] == 1.0
    assert first["train_perf/goodput"] == 4.0 / 1004.0
    assert "train_perf/data_wait_seconds" not in first  # nothing was waited for before the only step
    assert derive(ranks[0], parts[1])["train_perf/slowest_rank"] == 0
    both = derive(ranks[0], parts[0].merge(parts[1]))
    assert both["train_perf/seconds"] == 4.0 + 3.0
    assert both["train_perf/slowest_rank"] == 1
    assert both["train_perf/seconds_min"] == 1.0 + 1.0
    assert both["train_perf/data_wait_seconds"] == 1000.0
    assert both["train_perf/goodput"] == 7.0 / (1004.0 + 1003.0)


def test_time_without_training_joins_the_wall_clock_of_the_next_interval() -> None:
    rank = Rank()
    rank.step([4], seconds=2.0)
    export(rank)
    rank.clock.now += 500.0
    assert export(rank) == {}
    rank.step([4], seconds=2.0)
    assert export(rank)["train_perf/goodput"] == 2.0 / (500.0 + 2.0 + 1000.0)


def test_rates_per_device_and_a_rank_that_only_approximates() -> None:
    """One rank drives three devices; the label stands as soon as one rank's part is approximate."""
    one, three = Rank(estimator=squares), Rank(estimator=squares, devices=3, is_approximate=True)
    one.step([2], seconds=2.0)
    three.step([6], seconds=4.0)
    metrics = export(one, three)
    assert metrics["train_perf/tokens_per_second_per_device"] == 8 / 4 / 4
    assert metrics["train_perf/estimated_flops_per_second_per_device"] == (6 + 42) / 4 / 4
    assert metrics["train_perf/flops_are_approximate"] == 1
    parts = []
    for _ in range(2):  # two intervals that are logged as one still have four devices
        one.step([4], seconds=1.0)
        three.step([4], seconds=1.0)
        parts.append(reduce(one, three))
    merged = one.monitor.derive(parts[0].merge(parts[1]))
    assert merged["train_perf/tokens_per_second_per_device"] == 16 / 2 / 4


def test_intervals_add_the_seconds_of_the_slowest_rank_of_each() -> None:
    """Two reduced intervals that were logged as one."""
    ranks = [Rank(peak_flops=7.0), Rank(peak_flops=7.0)]
    parts = []
    for seconds in ((1.0, 2.0), (5.0, 3.0)):
        for rank, duration in zip(ranks, seconds):
            rank.step([4], duration, optimizer=duration / 2)
        parts.append(reduce(*ranks))
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
    metrics = export(*observed)
    lengths = [length for steps in ranks for step in steps for length in step]
    assert metrics["train_perf/tokens"] == sum(lengths)
    assert observed[0].monitor.totals.flops == factor * sum(map(squares, lengths))
    assert metrics["train_perf/estimated_flops"] == float(factor * sum(map(squares, lengths)))
    assert metrics["train_perf/seconds"] == max(len(steps) for steps in ranks)


def test_a_rank_that_repeats_anothers_tokens_adds_its_time_alone() -> None:
    first, repeats = Rank(estimator=squares), Rank(estimator=squares, contributes_tokens=False)
    first.step([5, 3], seconds=1.0)
    repeats.step([5, 3], seconds=2.0)
    metrics = export(first, repeats)
    assert metrics["train_perf/tokens"] == 8
    assert metrics["train_perf/estimated_flops"] == 42
    assert metrics["train_perf/seconds"] == 2.0
    repeats.step([7], seconds=1.0)
    assert export(first, repeats)["train_perf/tokens"] == 0  # and keeps nothing of it for later


def test_what_one_rank_cannot_tell_is_left_out_for_all() -> None:
    knows, does_not = Rank(estimator=squares, peak_flops=1.0), Rank()
    for rank in (knows, does_not):
        rank.step([4], seconds=1.0)
    metrics = export(knows, does_not)
    assert metrics["train_perf/tokens"] == 8
    assert not [name for name in metrics if "flops" in name or "mfu" in name]


def test_an_interval_without_training_has_no_metrics() -> None:
    """Zero tokens would be a number that nobody measured; the totals wait for the next interval."""
    rank, idle = Rank(estimator=squares), Rank(estimator=squares)
    rank.step([4], seconds=1.0)
    assert export(rank)["train_perf/total_tokens"] == 4
    assert export(rank) == {}
    rank.monitor.has_optimizer = rank.monitor.may_skip = True
    assert export(rank) == {}
    rank.step([6], seconds=1.0)
    metrics = export(rank, idle)  # one rank is enough
    assert (metrics["train_perf/tokens"], metrics["train_perf/total_tokens"]) == (6, 10)


def test_an_interval_without_time_or_steps_has_no_rates() -> None:
    rank = Rank(estimator=squares)
    rank.monitor.has_optimizer = True
    rank.monitor.count([3])
    metrics = export(rank)
    assert metrics["train_perf/optimizer_steps"] == 0
    assert [name for name in metrics if "per_second" in name or name == "timeperf/optimizer_step"] == []
