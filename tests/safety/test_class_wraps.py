"""Wraps of what a class offers without an instance."""

from __future__ import annotations

from collections.abc import Generator
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
