"""What a signal handler of the host raises reaches the host, wherever in our code it arrives."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from areal_callbacks.safety.door import Call, Observer, attempt, guarded, guarded_block, guarded_entry, pass_through
from areal_callbacks.safety.hooks import Hook
from areal_callbacks.writers.guarded import GuardedWriter


class TimeIsUp(Exception):  # noqa: N818 - a host may call it what it likes
    """A time limit of the host."""


def function(number: int, frame: Any) -> None:
    raise TimeIsUp


def with_options(option: str, number: int, frame: Any) -> None:
    raise TimeIsUp(option)


class Trainer:
    """Of a host, with handlers of every kind."""

    def method(self, number: int, frame: Any) -> None:
        raise TimeIsUp

    def __call__(self, number: int, frame: Any) -> None:
        raise TimeIsUp


HANDLERS: list[Any] = [function, functools.partial(with_options, "limit"), Trainer().method, Trainer()]


@pytest.fixture(params=HANDLERS, ids=["function", "partial", "method", "object"])
def handler(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR2, request.param)
    yield
    signal.signal(signal.SIGUSR2, before)


def ours(*_: Any) -> None:
    """Code of ours, in the middle of which the signal comes."""
    signal.raise_signal(signal.SIGUSR2)


class Monitor(Observer):
    family = "monitor"

    @guarded
    def event(self) -> None:
        ours()

    @guarded_entry
    def entry(self) -> None:
        ours()

    @guarded_block
    def block(self) -> Generator[None]:
        ours()
        yield


def _enter(monitor: Monitor) -> None:
    with monitor.block():
        pass


def _before(*_: Any) -> Generator[None]:
    ours()
    yield


def _after(*_: Any) -> Generator[None]:
    yield
    ours()


def _around(around: Callable[..., Any], monitor: Monitor) -> None:
    pass_through(around, int, Call((), {}), monitor.fail)


class _Writer:
    open = write = close = ours


PLACES: dict[str, Callable[[Monitor], Any]] = {
    "event": Monitor.event,
    "entry": Monitor.entry,
    "block": _enter,
    "attempt": lambda monitor: attempt("key", "problem", ours),
    "hook": lambda monitor: Hook(monitor, ours)(),
    "before": functools.partial(_around, _before),
    "after": functools.partial(_around, _after),
    "writer": lambda monitor: GuardedWriter(_Writer(), None, "key").write(None),  # type: ignore[arg-type]
}


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("place", PLACES)
def test_it_passes_our_code(place: str, caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor()
    with pytest.raises(TimeIsUp):
        PLACES[place](monitor)
    assert not monitor.failed
    assert caplog.messages == []


@pytest.mark.usefixtures("handler")
def test_an_exception_of_ours_stays_ours(caplog: pytest.LogCaptureFixture) -> None:
    assert attempt("key", "problem", int, "word") is None
    with pytest.raises(TimeIsUp):
        attempt("key", "problem", ours)
    assert len(caplog.messages) == 1


def test_other_threads_run_no_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: pytest.fail("asked for handlers"))
    thread = threading.Thread(target=attempt, args=("key", "problem", int, "word"))
    thread.start()
    thread.join()
