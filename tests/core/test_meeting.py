"""Ranks agree that training is over, or part: always alike, and never for long."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from support.distributed import Ranks

from areal_callbacks.core.meeting import Meeting
from areal_callbacks.core.reduce import reduce

pytestmark = pytest.mark.slow


def test_one_process_is_complete() -> None:
    assert Meeting(None).come()


def arrive(group: Any, delays: tuple[float | None, float | None], patience: float) -> tuple[bool, float]:
    """Whether all came, and how long that took; None stays away."""
    import torch.distributed as dist

    from areal_callbacks.core import meeting

    delay, began = delays[dist.get_rank()], time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meeting, "PATIENCE", patience)
        mine = Meeting(group)
        time.sleep(delay or 0.0)
        if delay is None:
            mine.stay_away()
            return False, 0.0
        return mine.come(), time.monotonic() - began


@pytest.mark.parametrize("delays", [(0.0, 0.0), (0.0, 0.4), (0.4, 0.0)])
def test_all_wait_for_the_last(delays: Any, two_ranks: Ranks) -> None:
    assert [came for came, _ in two_ranks.run(arrive, delays, 60.0)] == [True, True]


@pytest.mark.parametrize("delays", [(0.0, None), (None, 0.0)])
def test_one_that_stays_away_is_not_waited_for(delays: Any, two_ranks: Ranks) -> None:
    results = two_ranks.run(arrive, delays, 60.0)
    assert [came for came, _ in results] == [False, False]
    assert max(seconds for _, seconds in results) < 20


@pytest.mark.parametrize("delays", [(0.0, 1.0), (1.0, 0.0)])
def test_one_that_comes_too_late_finds_that_the_others_have_gone(delays: Any, two_ranks: Ranks) -> None:
    assert [came for came, _ in two_ranks.run(arrive, delays, 0.2)] == [False, False]


def meet_again(group: Any) -> list[bool]:
    """One rank has had one training more, which it ended alone; a reduction of both brings them together again."""
    import torch.distributed as dist

    from areal_callbacks.core import meeting

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meeting, "PATIENCE", 1.0)
        if dist.get_rank() == 0:
            Meeting(group).come()
        dist.barrier(group)
        apart = Meeting(group).come()
        reduce({}, group, "test")
        dist.barrier(group)
        return [apart, Meeting(group).come()]


def test_a_training_of_one_rank_costs_no_later_meeting(two_ranks: Ranks) -> None:
    assert two_ranks.run(meet_again) == [[False, True]] * 2


def leave_in_child(group: Any) -> bool:
    """A forked child ends; its parent's meeting is not its own."""
    mine = Meeting(group)
    child = os.fork()
    if not child:
        mine.stay_away()
        os._exit(0)
    os.waitpid(child, 0)
    return mine.come()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_says_nothing(two_ranks: Ranks) -> None:
    assert two_ranks.run(leave_in_child) == [True, True]
