"""The interface of a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export, Run


@runtime_checkable
class MetricWriter(Protocol):
    """One place that exports are written to.

    The publisher calls ``open`` once before the first export, ``write`` once per export in their order, ``close`` once
    at the end, all on one thread. Any of them may raise: the writer is then reported once by its class name, closed and
    switched off. A tracker client is imported in ``open`` only; a run that the host created is neither begun nor ended.
    """

    def open(self, run: Run) -> None:
        """Get ready to write into ``run.output_dir`` or into a tracker."""

    def write(self, export: Export) -> None:
        """Write one export; keep no reference to it that is changed later."""

    def close(self) -> None:
        """Flush and release everything; also after a failed ``open`` or ``write``, never before ``open``."""
