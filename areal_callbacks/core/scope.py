"""The scope that names metrics: one per tracker, seen only by the thread or coroutine that entered it."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import NamedTuple


class Scope:
    """A stack of name parts, kept as one ready prefix (``"ppo_actor/update/"``) for the hot path."""

    def __init__(self) -> None:
        self._innermost: ContextVar[_Frame] = ContextVar("areal_callbacks_scope", default=_OUTSIDE)

    @property
    def prefix(self) -> str:
        """The entered scopes, joined and ending in a slash; empty outside every scope."""
        return self._innermost.get().prefix

    def enter(self, name: str) -> ScopeBlock:
        """Put ``name`` before every key inside the block.

        Raises:
            ValueError: the name is empty; slashes at its ends do not count.
        """
        part = name.strip("/")
        if not part:
            raise ValueError(f"a scope needs a name, got {name!r}")
        return ScopeBlock(self._innermost, part)

    def disabled(self) -> ScopeBlock:
        """Name the keys inside the block as if no scope had been entered."""
        return ScopeBlock(self._innermost, None)

    def enclosing(self) -> Iterator[str]:
        """The prefixes from the innermost scope outwards; the last is empty."""
        prefix = self.prefix
        yield prefix
        while prefix:
            prefix = prefix[: prefix.rfind("/", 0, -1) + 1]
            yield prefix


class ScopeBlock:
    """A scope to enter with ``with``, as often as wanted and also inside itself; it holds no state of its own."""

    def __init__(self, innermost: ContextVar[_Frame], part: str | None) -> None:
        self._innermost = innermost
        self._part = part

    def __enter__(self) -> ScopeBlock:
        around = self._innermost.get()
        prefix = "" if self._part is None else f"{around.prefix}{self._part}/"
        self._innermost.set(_Frame(prefix, self, around))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the innermost block of this scope; nothing to leave where a generator is closed in another context."""
        frame: _Frame | None = self._innermost.get()
        while frame is not None and frame.block is not self:
            frame = frame.around
        if frame is not None and frame.around is not None:
            self._innermost.set(frame.around)


class _Frame(NamedTuple):
    """What names keys at one depth.

    Attributes:
        prefix: the whole prefix.
        block: who entered it; None outside every scope.
        around: the depth before.
    """

    prefix: str
    block: ScopeBlock | None
    around: _Frame | None


_OUTSIDE = _Frame("", None, None)
