"""What observers raise stays with them."""

from __future__ import annotations

import inspect

import pytest

from areal_callbacks.safety.door import Observer, guarded


class Counter(Observer):
    family = "counter"

    def __init__(self, *, detaches=True):
        self.calls, self.detached, self._detaches = [], 0, detaches

    def detach(self):
        self.detached += 1
        if not self._detaches:
            raise OSError("no")

    @guarded
    def count(self, value: int, *, scale: int = 1) -> int:
        """Count."""
        self.calls.append(value)
        return 10 * scale // value

    @guarded
    def interrupt(self):
        raise KeyboardInterrupt


def test_a_guarded_method_works_as_written():
    assert Counter().count(2, scale=2) == 10
    assert Counter.count.__doc__ == "Count."
    assert list(inspect.signature(Counter.count).parameters) == ["self", "value", "scale"]


def test_a_failure_is_reported_once_and_switches_the_observer_off(caplog):
    counter = Counter()
    assert counter.count(0) is None
    assert counter.count(1) is None
    assert (counter.calls, counter.failed, counter.detached) == ([0], True, 1)
    (record,) = caplog.records
    assert "counter raised and is switched off: ZeroDivisionError" in record.getMessage()
    assert Counter().count(5) == 2


def test_not_even_detaching_may_raise(caplog):
    counter = Counter(detaches=False)
    assert counter.count(0) is None
    assert ["counter raised" in caplog.messages[0], "counter could not undo" in caplog.messages[1]] == [True, True]


def test_the_users_interrupt_passes():
    counter = Counter()
    with pytest.raises(KeyboardInterrupt):
        counter.interrupt()
    assert not counter.failed
