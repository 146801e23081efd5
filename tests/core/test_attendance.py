"""Ranks that are measured find out, soon and always alike, whether all are."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
from support.distributed import Ranks
from support.fake_ranks import rank_of

from areal_callbacks.core.attendance import Attendance
from areal_callbacks.topology import Topology


def test_without_a_store_in_common_nobody_waits() -> None:
    with rank_of(1, 4):
        assert Attendance(Topology.data_parallel().world).is_complete()


def come(group: Any, delays: tuple[float | None, float | None], timeout: float) -> tuple[bool, bool] | None:
    """Whether all are measured, and whether this rank found out first; a delay of None is a rank that is not."""
    import torch.distributed as dist

    from areal_callbacks.core import rendezvous

    delay = delays[dist.get_rank()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "TIMEOUT", timeout)
        if delay is None:
            return None
        time.sleep(delay)
        mine = Attendance(group)
        return mine.is_complete(), mine.is_first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delays", "timeout", "expected"),
    [
        ((0.0, 0.0), 60.0, [(True, False), (True, False)]),
        ((0.0, 0.4), 60.0, [(True, False), (True, False)]),
        ((0.0, None), 0.2, [(False, True), None]),
        ((None, 0.0), 0.2, [None, (False, True)]),
        ((0.0, 4.0), 0.2, [(False, True), (False, False)]),
        ((4.0, 0.0), 0.2, [(False, False), (False, True)]),
    ],
)
def test_all_or_none_are_complete(delays: Any, timeout: float, expected: Any, two_ranks: Ranks) -> None:
    assert two_ranks.run(come, delays, timeout) == expected


def come_at_random(group: Any, trials: int) -> list[tuple[bool, bool]]:
    """Ranks that come, ask and give up at about the same time."""
    import torch.distributed as dist

    from areal_callbacks.core import rendezvous
    from areal_callbacks.core.reduce import reduce

    chance = random.Random(dist.get_rank())
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "TIMEOUT", 0.003)
        for _ in range(trials):
            dist.barrier(group)
            time.sleep(chance.random() * 0.01)
            mine = Attendance(group)
            found.append((mine.is_complete(), mine.is_first))
            dist.barrier(group)
            mine.leave()
            if found[-1][0]:
                reduce({}, group, "test")
    return found


@pytest.mark.slow
def test_ranks_never_disagree(two_ranks: Ranks) -> None:
    pairs = list(zip(*two_ranks.run(come_at_random, 200), strict=True))
    for (is_complete, is_first), (is_complete_there, is_first_there) in pairs:
        assert is_complete == is_complete_there
        assert is_first + is_first_there == (not is_complete)
    assert {is_complete for (is_complete, _), _ in pairs} == {True, False}


def come_again(group: Any) -> list[bool | None]:
    """Trainings of both ranks, of one, of the other and of both."""
    import torch.distributed as dist

    from areal_callbacks.core import rendezvous
    from areal_callbacks.core.reduce import reduce

    found: list[bool | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "TIMEOUT", 0.2)
        for measured in [(0,), (0, 1), (1,), (0,), (0, 1), (1,), (0, 1)]:
            dist.barrier(group)
            is_measured = dist.get_rank() in measured
            mine = [Attendance(group) for _ in range(1 + dist.get_rank())] if is_measured else []
            if len(measured) == 2:
                dist.barrier(group)  # the gradients
            answers = {each.is_complete() for each in mine}
            assert len(answers) <= 1
            found.append(answers.pop() if answers else None)
            if found[-1]:
                reduce({}, group, "test")
            for each in mine:
                each.leave()
                each.leave()
    return found


@pytest.mark.slow
def test_each_training_is_decided_anew(two_ranks: Ranks) -> None:
    first, second = two_ranks.run(come_again)
    assert first == [False, True, None, False, True, None, True]
    assert second == [None, True, False, None, True, False, True]


def measure(_group: Any, folder: str, delays: tuple[float | None, float | None]) -> tuple[list[Any], list[str]]:
    """The exports of a session on every rank with a delay, and its messages."""
    import logging

    import torch.distributed as dist
    from support.sessions import step
    from support.tiny_trainer import moe_model

    from areal_callbacks import stats_tracker
    from areal_callbacks.core import rendezvous
    from areal_callbacks.integrations.fsdp import track
    from areal_callbacks.safety import reporting

    delay = delays[dist.get_rank()]
    if delay is None:
        return [], []
    messages: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "TIMEOUT", 0.2)
        patch.setattr(reporting, "_reported", {})
        patch.setattr(
            logging.getLogger("areal_callbacks"), "handle", lambda record: messages.append(record.getMessage())
        )
        time.sleep(delay)
        model = moe_model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        exports = []
        with track(model, optimizer, output_dir=folder, report=False) as metrics:
            for number, lengths in enumerate([(3, 5), (4,)]):
                step(metrics, model, optimizer, *lengths)
                stats_tracker.scalar(shared=1.0 + dist.get_rank())
                stats_tracker.scalar(own=3.0 + dist.get_rank(), reduce_group=dist.group.WORLD)
                exports.append(metrics.export(number).metrics)
            step(metrics, model, optimizer, 7)
            if None not in delays:
                dist.barrier()  # the host's own
    return [(row["train_perf/tokens"], row["shared"], row["own"]) for row in exports], messages


ALONE = "not every rank is measured: the numbers are those of this rank alone"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_measured_alone_has_its_own_numbers(rank: int, two_ranks: Ranks, tmp_path: Any) -> None:
    from support.sessions import read_rows

    delays = (0.0, None) if rank == 0 else (None, 0.0)
    exports, messages = two_ranks.run(measure, str(tmp_path), delays)[rank]
    assert exports == [(8, 1 + rank, 3 + rank), (4, 1 + rank, 3 + rank)]
    assert [message for message in messages if "areal" not in message] == [ALONE]
    assert [row["train_perf/tokens"] for _, row in read_rows(tmp_path)] == [8, 4, 7]


@pytest.mark.slow
def test_one_of_the_ranks_that_are_left_alone_writes(two_ranks: Ranks, tmp_path: Any) -> None:
    from support.sessions import read_rows

    (first, _), (second, _) = two_ranks.run(measure, str(tmp_path), (0.0, 5.0))
    assert [first, second] == [[(8, 1, 3), (4, 1, 3)], [(8, 2, 4), (4, 2, 4)]]
    assert [row["shared"] for _, row in read_rows(tmp_path) if "shared" in row] == [1, 1]
