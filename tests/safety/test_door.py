"""The original is called exactly once, as it was called; whatever happens on our side stays there."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from typing import Any

import pytest

from areal_callbacks.safety.door import Call, Result, attempt, guarded_entry, pass_through


class Original:
    """The host's function."""

    def __init__(self, outcome: object = "result") -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._outcome = outcome

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


def passed(around: Callable[..., Any], original: Original) -> tuple[Any, list[BaseException]]:
    failures: list[BaseException] = []
    return pass_through(around, original, Call((1,), {"x": 2}), failures.append), failures


def watching(*args: Any, **kwargs: Any) -> Generator[None, Any]:
    yield


def not_interested(*args: Any, **kwargs: Any) -> Generator[None, Any]:
    if args:
        return
    yield


def raising_before(*args: Any, **kwargs: Any) -> Generator[None, Any]:
    raise ValueError("before")
    yield


def raising_after(*args: Any, **kwargs: Any) -> Generator[None, Any]:
    yield
    raise ValueError("after")


def yielding_twice(*args: Any, **kwargs: Any) -> Generator[None, Any]:
    yield
    yield


def with_other_parameters(y: int) -> Generator[None, Any]:
    yield


def raising_on_exceptions(*args: Any, **kwargs: Any) -> Generator[None, Any]:
    try:
        yield
    except Exception:
        raise KeyError("ours") from None


def swallowing(*args: Any, **kwargs: Any) -> Generator[None, Any]:
    try:
        yield
    except BaseException:
        return


OURS = [watching, not_interested, raising_before, raising_after, yielding_twice, with_other_parameters]
BAD = [raising_before, raising_after, with_other_parameters]


@pytest.mark.parametrize("around", [*OURS, raising_on_exceptions, swallowing])
def test_the_original_is_called_once_with_its_arguments_and_its_result_passes(around):
    original = Original()
    result, failures = passed(around, original)
    assert result == "result"
    assert original.calls == [((1,), {"x": 2})]
    assert bool(failures) == (around in BAD)


@pytest.mark.parametrize("around", [*OURS, raising_on_exceptions, swallowing])
@pytest.mark.parametrize(
    "error", [KeyError("theirs"), StopIteration(3), SystemExit(2), KeyboardInterrupt(), GeneratorExit()]
)
def test_the_originals_exception_passes_unchanged(around, error):
    original = Original(error)
    with pytest.raises(type(error)) as caught:
        passed(around, original)
    assert caught.value is error
    assert len(original.calls) == 1
    assert (error.__cause__, error.__context__) == (None, None)
    files = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert around.__name__ not in files


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_meant_for_the_process_passes_our_code(error, when):
    def around(*args: Any, **kwargs: Any) -> Generator[None, Any]:
        if when == "before":
            raise error
        yield
        raise error

    with pytest.raises(type(error)):
        passed(around, Original())


def test_other_arguments_and_another_result_where_a_wrap_is_made_for_that():
    def around(value: int, x: int) -> Generator[Call, str, Result]:
        result = yield Call((value + 1,), {"x": x + 1})
        return Result(result.upper())

    original = Original()
    assert passed(around, original) == ("RESULT", [])
    assert original.calls == [((2,), {"x": 3})]


def test_none_can_be_another_result():
    def around(*args: Any, **kwargs: Any) -> Generator[None, Any, Result]:
        yield
        return Result(None)

    assert passed(around, Original())[0] is None


def test_an_attempt_that_fails_is_one_message(caplog):
    for _ in range(2):
        assert attempt("key", "it did not work", int, "x") is None
    assert attempt("key", "it did not work", int, "3") == 3
    (message,) = caplog.messages
    assert message.startswith("it did not work: ValueError")


class Session:
    def __init__(self) -> None:
        self.calls = 0

    @guarded_entry
    def export(self, step: int) -> int:
        """Export."""
        self.calls += 1
        return 6 // step

    @guarded_entry
    def interrupt(self) -> None:
        raise KeyboardInterrupt


def test_a_public_entry_that_fails_is_one_message_and_runs_again(caplog):
    session = Session()
    assert [session.export(step) for step in (0, 0, 3)] == [None, None, 2]
    assert session.calls == 3
    (message,) = caplog.messages
    assert message.startswith("Session.export() failed, training goes on: ZeroDivisionError")
    with pytest.raises(KeyboardInterrupt):
        session.interrupt()
