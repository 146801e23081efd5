"""Wraps of methods without an instance, of coroutine functions and of generator functions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from areal_callbacks.safety.patches import Patches


class Host:
    @staticmethod
    def plain(value: int) -> int:
        return value + 1

    @classmethod
    def named(cls, value: int) -> str:
        return f"{cls.__name__}{value}"


class Sub(Host):
    pass


@pytest.mark.parametrize("name", ["plain", "named"])
def test_static_and_class_methods_are_wrapped_and_restored(name: str) -> None:
    expected = [getattr(owner, name)(4) for owner in (Host, Host(), Sub, Sub())]
    before, seen, patches = vars(Host)[name], [], Patches("test")

    def around(*args: Any) -> Generator[None, Any]:
        result = yield
        seen.append((args, result))

    patches.wrap(Host, name, around)
    assert [getattr(owner, name)(4) for owner in (Host, Host(), Sub, Sub())] == expected
    assert [result for _, result in seen] == expected
    assert type(vars(Host)[name]) is type(before)
    patches.undo()
    assert vars(Host)[name] is before


class Lazy:
    async def awaited(self, value: int) -> int:
        await asyncio.sleep(0)
        return value + 1

    def yielded(self, value: int) -> Iterator[int]:
        yield value
        yield value + 1


def test_coroutine_and_generator_functions_stay_what_they_are() -> None:
    host, calls, patches = Lazy(), [], Patches("test")

    def around(*args: Any) -> Generator[None, Any]:
        calls.append(args)
        yield

    for owner in (host, Lazy):
        patches.wrap(owner, "awaited", around)
        patches.wrap(owner, "yielded", around)
        assert inspect.iscoroutinefunction(owner.awaited)
        assert inspect.isgeneratorfunction(owner.yielded)
    assert asyncio.run(host.awaited(3)) == 4
    assert list(host.yielded(3)) == [3, 4]
    assert calls == [(host, 3), (3,)] * 2, "the wrap of the class, then that of its instance"
    patches.undo()
    assert not {"awaited", "yielded"} & vars(host).keys()
