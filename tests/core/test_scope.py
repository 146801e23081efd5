"""Scopes belong to the thread or coroutine that entered them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading

import pytest

from areal_callbacks.core.scope import Scope
from areal_callbacks.core.tracker import StatsTracker


def keys(tracker):
    return {name for name in tracker.export() if not name.endswith("__count")}


def test_scopes_nest_and_end_also_after_an_exception():
    tracker = StatsTracker()
    with tracker.scope("ppo_actor"):
        with contextlib.suppress(KeyError), tracker.scope("update"):
            tracker.scalar(a=1.0)
            raise KeyError
        tracker.scalar(b=1.0)
    tracker.scalar(c=1.0)
    assert keys(tracker) == {"ppo_actor/update/a", "ppo_actor/b", "c"}


@pytest.mark.parametrize("name", ["", "/", "//"])
def test_a_scope_needs_a_name(name):
    with pytest.raises(ValueError, match="a scope needs a name"), StatsTracker().scope(name):
        pass


def test_disable_scope_names_keys_as_if_no_scope_had_been_entered():
    tracker = StatsTracker("rollout")
    with tracker.scope("a"):
        with tracker.disable_scope():
            tracker.scalar(x=1.0)
            with tracker.scope("b"):
                tracker.scalar(y=1.0)
        tracker.scalar(z=1.0)
    assert keys(tracker) == {"rollout/x", "rollout/b/y", "rollout/a/z"}


def test_the_scopes_of_two_trackers_are_their_own():
    first, second = StatsTracker("first"), StatsTracker("second")
    with first.scope("deep"):
        second.scalar(x=1.0)
        first.scalar(x=1.0)
    assert keys(first) | keys(second) == {"first/deep/x", "second/x"}


def test_enclosing_prefixes_lead_outwards():
    scope = Scope()
    with scope.enter("a/b"), scope.enter("c"):
        assert list(scope.enclosing()) == ["a/b/c/", "a/b/", "a/", ""]


def test_threads_do_not_see_each_others_scopes():
    tracker, barrier = StatsTracker(), threading.Barrier(2)

    def work(name):
        with tracker.scope(name):
            barrier.wait()
            tracker.scalar(x=1.0)
            barrier.wait()

    with tracker.scope("main"):
        threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tracker.scalar(x=1.0)
    assert keys(tracker) == {"one/x", "two/x", "main/x"}


def test_coroutines_do_not_see_each_others_scopes():
    tracker = StatsTracker()

    async def episode(name):
        with tracker.scope(name):
            await asyncio.sleep(0)
            tracker.scalar(reward=1.0)
            await asyncio.sleep(0)
        tracker.scalar(done=1.0)

    async def main():
        with tracker.scope("rollout"):
            await asyncio.gather(episode("a"), episode("b"), episode("c"))

    asyncio.run(main())
    assert keys(tracker) == {"rollout/a/reward", "rollout/b/reward", "rollout/c/reward", "rollout/done"}


def test_a_scope_closed_in_another_context_does_not_raise():
    tracker = StatsTracker()

    async def records():
        with tracker.scope("stream"):
            yield tracker.scalar(x=1.0)

    async def main():
        stream = records()
        await asyncio.create_task(anext(stream))
        await stream.aclose()

    async def anext(stream):
        return await stream.__anext__()

    asyncio.run(main())
    assert keys(tracker) == {"stream/x"}


def test_closing_a_generator_elsewhere_leaves_the_scopes_there():
    tracker = StatsTracker()

    def records():
        with tracker.scope("stream"):
            yield tracker.scalar(x=1.0)

    stream = records()
    contextvars.Context().run(next, stream)
    with tracker.scope("outer"):
        stream.close()
        tracker.scalar(y=1.0)
    assert keys(tracker) == {"stream/x", "outer/y"}


# -- one scope object


def test_a_scope_can_be_entered_again_and_inside_itself():
    tracker = StatsTracker()
    update = tracker.scope("update")
    for name in "ab":
        with update:
            tracker.scalar(**{name: 1.0})
    with update, tracker.scope("inner"), update as again:
        tracker.scalar(c=1.0)
        assert again is update
    with pytest.raises(KeyError), update:
        raise KeyError
    tracker.scalar(d=1.0)
    assert keys(tracker) == {"update/a", "update/b", "update/inner/update/c", "d"}


def test_no_scope_can_be_entered_again_and_inside_itself():
    tracker = StatsTracker("rollout")
    nothing, part = tracker.disable_scope(), tracker.scope("part")
    with part, nothing, part:
        tracker.scalar(a=1.0)
        with nothing, nothing:
            tracker.scalar(b=1.0)
        tracker.scalar(c=1.0)
    with pytest.raises(KeyError), part, nothing:
        raise KeyError
    tracker.scalar(d=1.0)
    assert keys(tracker) == {"rollout/part/a", "rollout/b", "rollout/part/c", "rollout/d"}


def test_threads_and_coroutines_may_share_a_scope_object():
    tracker = StatsTracker()
    update, barrier = tracker.scope("update"), threading.Barrier(2)

    def work(name):
        barrier.wait()
        with update:
            barrier.wait()
            tracker.scalar(**{name: 1.0})
        barrier.wait()
        tracker.scalar(**{f"after_{name}": 1.0})

    async def episode(name):
        with update:
            await asyncio.sleep(0)
            tracker.scalar(**{name: 1.0})
            await asyncio.sleep(0)
        tracker.scalar(**{f"after_{name}": 1.0})

    async def main():
        with update:
            await asyncio.gather(episode("c"), episode("d"))

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(main())
    assert keys(tracker) == {
        *("update/a", "update/b", "after_a", "after_b"),
        *("update/update/c", "update/update/d", "update/after_c", "update/after_d"),
    }


# -- decorators


def test_scope_func_wrapper_wraps_functions():
    tracker = StatsTracker()

    @tracker.scope_func_wrapper("update")
    def update(value, *, twice=False):
        """Doc."""
        tracker.scalar(loss=value * (2 if twice else 1))
        return value

    assert update(1.0, twice=True) == 1.0
    assert (update.__name__, update.__doc__) == ("update", "Doc.")
    assert tracker.export() == {"update/loss": 2.0, "update/loss__count": 1.0}


def test_scope_func_wrapper_wraps_coroutine_functions_until_they_return():
    tracker = StatsTracker()

    @tracker.scope_func_wrapper("rollout")
    async def episode(value):
        await asyncio.sleep(0)
        tracker.scalar(reward=value)
        return value

    async def main():
        return await asyncio.gather(episode(1.0), episode(3.0))

    assert inspect.iscoroutinefunction(episode)
    assert asyncio.run(main()) == [1.0, 3.0]
    tracker.scalar(outside=1.0)
    assert tracker.export() == {
        **{"rollout/reward": 2.0, "rollout/reward__count": 2.0, "outside": 1.0, "outside__count": 1.0}
    }
