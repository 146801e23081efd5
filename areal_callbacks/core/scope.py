"""The scope that names metrics: one per tracker, seen only by the thread or coroutine that entered it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar


class Scope:
    """A stack of name parts, kept as one ready prefix (``"ppo_actor/update/"``) for the hot path."""

    def __init__(self) -> None:
        self._prefix: ContextVar[str] = ContextVar("areal_callbacks_scope", default="")

    @property
    def prefix(self) -> str:
        """The entered scopes, joined and ending in a slash; empty outside every scope."""
        return self._prefix.get()

    @contextlib.contextmanager
    def enter(self, name: str) -> Iterator[None]:
        """Put ``name`` before every key inside the block.

        Raises:
            ValueError: the name is empty; slashes at its ends do not count.
        """
        part = name.strip("/")
        if not part:
            raise ValueError(f"a scope needs a name, got {name!r}")
        with self._replaced(f"{self.prefix}{part}/"):
            yield

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Name the keys inside the block as if no scope had been entered."""
        with self._replaced(""):
            yield

    def enclosing(self) -> Iterator[str]:
        """The prefixes from the innermost scope outwards; the last is empty."""
        prefix = self.prefix
        yield prefix
        while prefix:
            prefix = prefix[: prefix.rfind("/", 0, -1) + 1]
            yield prefix

    @contextlib.contextmanager
    def _replaced(self, prefix: str) -> Iterator[None]:
        previous = self._prefix.get()
        self._prefix.set(prefix)
        try:
            yield
        finally:  # not reset(token): a generator may be closed in another context than the one it started in
            self._prefix.set(previous)
