"""Ranks agree that training is over, or that it is not: always alike, and soon."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from support.distributed import Ranks

from areal_callbacks.core.reduce import reduce
from areal_callbacks.core.rendezvous import Rendezvous

pytestmark = pytest.mark.slow


def test_one_process_is_complete() -> None:
    assert Rendezvous(None).join()


def arrive(group: Any, delays: tuple[float | None, float | None], timeout: float) -> tuple[bool, float]:
    """Whether all came, and how long that took; None leaves."""
    import torch.distributed as dist

    from areal_callbacks.core import rendezvous

    delay, began = delays[dist.get_rank()], time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "TIMEOUT", timeout)
        mine = Rendezvous(group)
        time.sleep(delay or 0.0)
        if delay is None:
            mine.leave()
            return False, 0.0
        return mine.join(), time.monotonic() - began


@pytest.mark.parametrize("delays", [(0.0, 0.0), (0.0, 0.4), (0.4, 0.0)])
def test_all_wait_for_the_last(delays: Any, two_ranks: Ranks) -> None:
    assert [came for came, _ in two_ranks.run(arrive, delays, 60.0)] == [True, True]


@pytest.mark.parametrize("delays", [(0.0, None), (None, 0.0)])
def test_one_that_leaves_is_not_waited_for(delays: Any, two_ranks: Ranks) -> None:
    results = two_ranks.run(arrive, delays, 60.0)
    assert [came for came, _ in results] == [False, False]
    assert max(seconds for _, seconds in results) < 20


@pytest.mark.parametrize("delays", [(0.0, 1.0), (1.0, 0.0)])
def test_one_that_comes_too_late_finds_that_the_others_have_gone(delays: Any, two_ranks: Ranks) -> None:
    assert [came for came, _ in two_ranks.run(arrive, delays, 0.2)] == [False, False]


def join_again(group: Any) -> list[bool]:
    """One rank has had one training more, which it ended alone; a reduction of both brings them together again."""
    import torch.distributed as dist

    from areal_callbacks.core import rendezvous

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "TIMEOUT", 1.0)
        if dist.get_rank() == 0:
            Rendezvous(group).join()
        dist.barrier(group)
        apart = Rendezvous(group).join()
        reduce({}, group, "test")
        dist.barrier(group)
        return [apart, Rendezvous(group).join()]


def test_a_training_of_one_rank_costs_no_later_meeting(two_ranks: Ranks) -> None:
    assert two_ranks.run(join_again) == [[False, True]] * 2


def leave_in_child(group: Any) -> bool:
    """A forked child ends; its parent's rendezvous is not its own."""
    mine = Rendezvous(group)
    child = os.fork()
    if not child:
        mine.leave()
        os._exit(0)
    os.waitpid(child, 0)
    return mine.join()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_says_nothing(two_ranks: Ranks) -> None:
    assert two_ranks.run(leave_in_child) == [True, True]
