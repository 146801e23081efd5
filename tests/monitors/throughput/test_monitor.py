"""One rank against hand computation: what it is given, what it cannot know, what fails."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from support.throughput_ranks import Rank, export, squares

from areal_callbacks.monitors.throughput.lengths import Lengths
from areal_callbacks.safety.reporting import logger


def test_arguments_that_tell_no_lengths(caplog: pytest.LogCaptureFixture) -> None:
    """Later intervals are whole again; totals that miss a part are not shown."""
    rank = Rank(estimator=squares)
    rank.monitor.begin()
    rank.end_forward(pixel_values=torch.zeros(2, 3))
    rank.clock.now += 1.0
    rank.monitor.end()
    assert export(rank) == {
        "train_perf/seconds": 1.0,
        "train_perf/seconds_mean": 1.0,
        "train_perf/seconds_min": 1.0,
        "train_perf/slowest_rank": 0.0,
        "train_perf/goodput": 1.0,
        "train_perf/total_seconds": 1.0,
    }
    rank.step([3], seconds=2.0)
    final = export(rank)
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
    rank.consume(input_ids=torch.zeros(1, 9))
    rank.end_forward(1, batch=2)
    assert calls == [((1,), {"batch": 2})]
    metrics = export(rank)
    assert metrics["train_perf/tokens"] == 7
    assert metrics["train_perf/estimated_flops"] == 12 + 20


@pytest.mark.parametrize("counted", [5, np.int64(5), torch.tensor(5)])
def test_a_single_length(counted: Any) -> None:
    rank = Rank(token_count_fn=lambda: counted)
    rank.end_forward()
    assert export(rank)["train_perf/tokens"] == 5


@pytest.mark.parametrize("counted", [[2.5], [-1], "five", torch.ones(2), None])
def test_lengths_that_are_none_cost_the_tokens_of_their_interval(
    counted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    given = [counted] * 3
    rank = Rank(token_count_fn=lambda: given.pop() if given else 5)
    for _ in range(3):
        rank.end_forward()
    assert "train_perf/tokens" not in export(rank)
    assert sum("could not be read" in record.message for record in caplog.records if record.name == logger.name) == 1
    rank.end_forward()
    assert export(rank)["train_perf/tokens"] == 5


def test_a_host_that_counts_is_believed() -> None:
    rank = Rank()
    rank.monitor.count([4, 5])
    rank.step([100], seconds=1.0)
    rank.monitor.count_inputs({"input_ids": torch.tensor([[7, 7, 0]]), "attention_mask": torch.tensor([[1, 1, 0]])})
    assert export(rank)["train_perf/tokens"] == 4 + 5 + 2


def test_lengths_given_by_the_host_may_change_afterwards() -> None:
    rank, lengths = Rank(), torch.tensor([4, 5])
    rank.monitor.count(Lengths(lengths, 9))
    lengths.zero_()
    assert export(rank)["train_perf/tokens"] == 9


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
    metrics = export(rank)
    assert metrics["train_perf/optimizer_steps"] == 1
    assert metrics["train_perf/skipped_steps"] == 1
    assert metrics["timeperf/optimizer_step"] == 0.5


@pytest.mark.parametrize("result", [OSError("no formula"), float("nan"), float("inf")])
def test_an_estimator_that_fails_costs_the_flops_only(result: Any, caplog: pytest.LogCaptureFixture) -> None:
    def estimate(length: int) -> float:
        if isinstance(result, Exception):
            raise result
        return float(result) * length

    rank = Rank(estimator=estimate)
    for _ in range(2):
        rank.step([3], seconds=1.0)
        metrics = export(rank)
        assert metrics["train_perf/tokens"] == 3
        assert not [name for name in metrics if "flops" in name]
    assert len([record for record in caplog.records if record.name == logger.name]) == 1


def test_totals_continue_in_another_run() -> None:
    first, second = Rank(estimator=squares), Rank(estimator=squares)
    first.step([3], seconds=1.0, optimizer=0.1)
    export(first)
    second.monitor.load_state_dict(json.loads(json.dumps(first.monitor.state_dict())))
    second.step([4], seconds=3.0, optimizer=0.1)
    metrics = export(second)
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
            rank.consume(input_ids=ids, **extra)
    counting = Rank(token_count_fn=lambda: ids[0])
    counting.end_forward()
    assert not rank.monitor.failed
    assert not counting.monitor.failed
