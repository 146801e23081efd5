"""A ``with`` block runs as the host wrote it, whatever happens on our side of it."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from areal_callbacks.safety.door import guarded_block


class Session:
    def __init__(self, failing: str = "") -> None:
        self.failing, self.seen = failing, []

    @guarded_block
    def excluded(self, name: str) -> Generator[None]:
        """Exclude."""
        self._reach("before")
        try:
            yield
        finally:
            self.seen.append(name)
            self._reach("after")

    @guarded_block
    def interrupted(self) -> Generator[None]:
        raise KeyboardInterrupt
        yield

    def _reach(self, place: str) -> None:
        if self.failing == place:
            raise ValueError(place)


@pytest.mark.parametrize("failing", ["", "before", "after"])
def test_the_block_runs_once_and_a_failure_is_one_message(failing, caplog):
    session, runs = Session(failing), []
    for _ in range(2):
        with session.excluded("rollout"):
            runs.append(1)
    assert len(runs) == 2
    assert session.seen == ([] if failing == "before" else ["rollout", "rollout"])
    expected = [f"Session.excluded() failed, training goes on: ValueError('{failing}')"]
    assert caplog.messages == (expected if failing else [])


@pytest.mark.parametrize("failing", ["", "before", "after"])
@pytest.mark.parametrize("error", [RuntimeError("host"), StopIteration(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_exception_of_the_block_passes_unchanged(failing, error):
    error.__cause__ = cause = OSError()
    with pytest.raises(type(error)) as caught, Session(failing).excluded("rollout"):
        raise error
    assert caught.value is error
    assert (error.__cause__, error.__context__) == (cause, None)


def test_a_block_inside_another_and_a_decorated_function_that_calls_itself():
    session = Session()

    @session.excluded("function")
    def count(depth: int) -> int:
        return depth and 1 + count(depth - 1)

    with session.excluded("outer"), session.excluded("inner"):
        assert count(2) == 2
    assert session.seen == ["function", "function", "function", "inner", "outer"]


def test_the_users_interrupt_passes():
    with pytest.raises(KeyboardInterrupt), Session().interrupted():
        pass
