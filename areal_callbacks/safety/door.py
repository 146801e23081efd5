"""The door between the host's code and ours: whatever happens on our side, the host's side goes on as without us.

One promise, kept here and nowhere else: what the host calls is called exactly once, with the arguments it was given;
its result or its exception passes unchanged; an exception of ours is reported once and switches off what raised it.
``SystemExit``, ``KeyboardInterrupt``, ``GeneratorExit`` and what its signal handlers raise are the host's, also where
they arrive in our code.

======================================  =====================================================================
What stands at the host's code          Passes through
======================================  =====================================================================
a method that is replaced               :meth:`Patches.wrap <areal_callbacks.safety.patches.Patches.wrap>`,
                                        which runs an :data:`Around` with :func:`pass_through`
a hook of a module or an optimizer      :class:`~areal_callbacks.safety.hooks.Hook`
an event of a callback, a monitor       :func:`guarded`
a public entry of a session             :func:`guarded_entry`
the same for a ``with`` block           :func:`guarded_block`
======================================  =====================================================================
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.signals import hand_on
from areal_callbacks.safety.text import tell_error

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self", bound="Observer")


class Call(NamedTuple):
    """Other arguments for the original than those it was given, for the few wraps whose purpose that is."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Result(NamedTuple):
    """Another result than the original's, for the few wraps whose purpose that is."""

    value: Any


Steps: TypeAlias = Generator[Call | None, Any, Result | None]

Around: TypeAlias = Callable[..., Steps]
"""What runs around an original: a generator function with the original's parameters.

Up to its ``yield`` it runs before the original; the ``yield`` returns the original's result, or raises its exception.
Yielding a :class:`Call` gives the original other arguments, returning a :class:`Result` the caller another result.
Returning before the ``yield`` means that there is nothing to do afterwards.
"""


def end_on_error(end: Callable[[], object]) -> Around:
    """What runs ``end`` if the original raises, whose exception passes."""

    def around(*args: Any, **kwargs: Any) -> Steps:  # noqa: ARG001 - whatever the original takes
        try:
            yield None
        except BaseException:
            end()
            raise
        return None

    return around


def pass_through(around: Around, original: Callable[..., R], call: Call, failed: Callable[[BaseException], None]) -> R:
    """Call ``original`` exactly once, with ``around`` around it.

    Args:
        around: what runs before and after.
        original: the host's.
        call: the arguments that the host gave.
        failed: told what ``around`` raised by itself; the original is then called, or its result returned, as if there
            were no ``around``.
    """
    steps, call = _begin(around, call, failed)
    try:
        result = original(*call.args, **call.kwargs)
    except BaseException as error:
        if steps is not None:
            _tell(steps, error, failed)
        raise
    return result if steps is None else _end(steps, result, failed)


def _begin(around: Around, call: Call, failed: Callable[[BaseException], None]) -> tuple[Steps | None, Call]:
    try:
        steps = around(*call.args, **call.kwargs)
        given = next(steps)
        return steps, call if given is None else Call(given.args, given.kwargs)
    except StopIteration:
        return None, call
    except Exception as error:  # noqa: BLE001 - it is ours and not the host's
        hand_on(error)
        failed(error)
        return None, call


def _end(steps: Steps, result: R, failed: Callable[[BaseException], None]) -> R:
    try:
        return _finish(steps, result)
    except Exception as error:  # noqa: BLE001 - it is ours and not the host's
        hand_on(error)
        failed(error)
        return result


def _finish(steps: Steps, result: R) -> R:
    try:
        steps.send(result)
    except StopIteration as stop:
        given: Result | None = stop.value
        return result if given is None else given.value
    return result


def _tell(steps: Steps, error: BaseException, failed: Callable[[BaseException], None]) -> None:
    """Let the generator see what the original raised, and leave that exception as it was."""
    traceback, context = error.__traceback__, error.__context__
    try:
        steps.throw(error)
    except StopIteration:
        pass
    except BaseException as raised:
        if raised is error or raised.__cause__ is error:  # a generator cannot pass StopIteration on as it is
            return
        if not isinstance(raised, Exception):
            raise
        hand_on(raised)
        failed(raised)
    finally:
        error.__traceback__, error.__context__ = traceback, context


class Observer:
    """Something attached to a run that must not be able to harm it.

    Attributes:
        family: its name in exports and messages.
        failed: it raised at run time and no longer takes part.
    """

    family: str
    failed: bool = False

    def detach(self) -> None:
        """Undo every hook."""

    def fail(self, error: BaseException) -> None:
        """Report the error once, undo the hooks, do nothing from now on."""
        self.failed = True
        report_once(f"{self.family}:failed", f"{self.family} raised and is switched off: {tell_error(error)}")
        attempt(f"{self.family}:detach", f"{self.family} could not undo its hooks", self.detach)


def attempt(key: str, problem: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call a function of ours; if it raises, report ``problem`` once under ``key`` and return None."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - it is ours and not the host's
        hand_on(error)
        report_once(key, f"{problem}: {tell_error(error)}")
        return None


def guarded(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R | None]:
    """Make a method of an :class:`Observer` unable to raise: it returns None after a failure, and from then on."""

    @functools.wraps(method)
    def guard(self: Self, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if self.failed:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it is ours and not the host's
            hand_on(error)
            self.fail(error)
            return None

    return cast("Callable[Concatenate[Self, P], R | None]", guard)


def guarded_entry(method: Callable[P, R]) -> Callable[P, R | None]:
    """Make a public method unable to raise: a failure is reported once, and None returned.

    The next call runs again: an entry that other ranks enter, too, must not be left out by one of them.
    """

    @functools.wraps(method)
    def guard(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it is ours and not the host's
            hand_on(error)
            _report_entry(method, args, error)
            return None

    return guard


def guarded_block(method: Callable[P, Steps]) -> Callable[P, GuardedBlock]:
    """Make a public method with one ``yield`` a context manager that cannot raise: what is inside runs in any case.

    A failure before or after the block is reported once; an exception of the block passes unchanged.
    """

    @functools.wraps(method)
    def guard(*args: P.args, **kwargs: P.kwargs) -> GuardedBlock:
        return GuardedBlock(method, Call(args, kwargs), functools.partial(_report_entry, method, args))

    return guard


class GuardedBlock(contextlib.ContextDecorator):
    """A ``with`` block of the host, with ``around`` around it; see :func:`guarded_block`."""

    def __init__(self, around: Around, call: Call, failed: Callable[[BaseException], None]) -> None:
        self._around, self._given, self._failed = around, call, failed
        self._steps: Steps | None = None

    def __enter__(self) -> None:
        self._steps, _ = _begin(self._around, self._given, self._failed)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        steps, self._steps = self._steps, None
        if steps is None:
            return
        if error is None:
            _end(steps, None, self._failed)
        else:
            _tell(steps, error, self._failed)

    def _recreate_cm(self) -> GuardedBlock:
        """One for each call of a decorated function, which may call itself."""
        return GuardedBlock(self._around, self._given, self._failed)


def _report_entry(method: Callable[..., Any], args: tuple[Any, ...], error: BaseException) -> None:
    name = f"{type(args[0]).__name__}.{method.__name__}"
    report_once(f"entry:{name}", f"{name}() failed, training goes on: {tell_error(error)}")
