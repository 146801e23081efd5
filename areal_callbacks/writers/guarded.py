"""Writers that cannot raise: the first failure of one is reported, and it is switched off."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, metadata
from typing import TYPE_CHECKING, Literal

from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.signals import hand_on
from areal_callbacks.safety.text import make_printable

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export, Run
    from areal_callbacks.writers.base import MetricWriter


class GuardedWriter:
    """Opens a writer at its first export and closes it once; none of this raises an ``Exception``.

    Args:
        writer: what is guarded.
        run: what it is told when it opens.
        key: of its messages, which are reported once for each publisher.
    """

    def __init__(self, writer: MetricWriter, run: Run, key: str) -> None:
        self.name = type(getattr(writer, "writer", writer)).__name__
        self._writer = writer
        self._run = run
        self._key = f"{key}: {self.name} {id(writer)}"
        self._state: Literal["new", "open", "off"] = "new"

    def write(self, export: Export) -> None:
        """Open at the first call, then write; a failure closes the writer and switches it off."""
        if self._state == "new":
            self._state = "open"
            if not self._attempt("open", self._writer.open, self._run):
                self.close()
        if self._state == "open" and not self._attempt("write", self._writer.write, export):
            self.close()

    def close(self) -> None:
        """Close an open writer and switch it off."""
        if self._state == "open":
            self._attempt("close", self._writer.close)
        self._state = "off"

    def _attempt(self, action: str, call: Callable[..., None], *args: object) -> bool:
        try:
            call(*args)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tracker must not end the training
            hand_on(error)
            problem = f"{type(error).__name__}: {make_printable(error)}{_suggest_extra(error)}"
            report_once(self._key, f"{self.name} failed to {action} and is switched off: {problem}")
            return False
        return True


class WriterGroup:
    """Several guarded writers, driven in turn.

    Attributes:
        busy: names the one at work.
    """

    def __init__(self, writers: Iterable[MetricWriter], run: Run, key: str) -> None:
        self._writers = [GuardedWriter(writer, run, key) for writer in writers]
        self.busy = "the background thread"

    def __len__(self) -> int:
        return len(self._writers)

    def __str__(self) -> str:
        return ", ".join(writer.name for writer in self._writers)

    def write(self, export: Export) -> None:
        """Write one export everywhere."""
        for writer in self._writers:
            self.busy = writer.name
            writer.write(export)

    def close(self) -> None:
        """Close all; again does nothing."""
        for writer in self._writers:
            self.busy = writer.name
            writer.close()


def _suggest_extra(error: BaseException) -> str:
    """How to install a missing tracker: the extra that brings it is called like its package."""
    if not isinstance(error, ModuleNotFoundError) or error.name not in _list_extras():
        return ""
    return f"; pip install 'areal-callbacks[{error.name}]'"


def _list_extras() -> list[str]:
    try:
        return metadata("areal-callbacks").get_all("Provides-Extra") or []
    except PackageNotFoundError:  # run from a source tree
        return []
