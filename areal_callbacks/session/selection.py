"""Which of the metrics hosts and trackers get."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from areal_callbacks.core.names import MOE_BALANCE

if TYPE_CHECKING:
    from areal_callbacks.config import MetricsConfig
    from areal_callbacks.core.types import Export, Run
    from areal_callbacks.writers.base import MetricWriter

Select = Callable[["Export"], "Export"]

_LAYER = re.compile(rf"{MOE_BALANCE}/(?:.+/)?layer_\d+/")


def make_selection(config: MetricsConfig) -> Select | None:
    """Leaves out of an export what ``include``, ``exclude`` and ``per_layer`` say; None if they leave nothing out."""
    if not config.include and not config.exclude and config.per_layer:
        return None

    def is_wanted(name: str) -> bool:
        if not config.per_layer and _LAYER.match(name):
            return False
        included = not config.include or any(fnmatchcase(name, pattern) for pattern in config.include)
        return included and not any(fnmatchcase(name, pattern) for pattern in config.exclude)

    def select(export: Export) -> Export:
        return replace(export, metrics=_filter(export.metrics, is_wanted))

    return select


def _filter(metrics: Mapping[str, float], is_wanted: Callable[[str], bool]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if is_wanted(name)}


class SelectingWriter:
    """Gives a writer a part of the metrics.

    Attributes:
        writer: as given.
    """

    def __init__(self, writer: MetricWriter, select: Select) -> None:
        self.writer = writer
        self.open: Callable[[Run], None] = writer.open
        self.close: Callable[[], None] = writer.close
        self._select = select

    def write(self, export: Export) -> None:
        """Write the part of an export."""
        self.writer.write(self._select(export))


def select_for(writers: Iterable[MetricWriter], select: Select | None) -> list[MetricWriter]:
    """The writers, given what ``select`` leaves of every export."""
    return [writer if select is None else SelectingWriter(writer, select) for writer in writers]
