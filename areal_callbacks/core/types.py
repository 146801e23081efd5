"""What the other modules share: how a metric reduces, what an export is, and what a run is."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal_callbacks.core.expert_loads import ExpertLoads
from areal_callbacks.core.file_names import REPORT_FILE

COUNT_SUFFIX = "__count"


class ReduceType(enum.Enum):
    """How the values of one key become the exported numbers (names and meaning as in AReaL).

    ============  =============================  ==========================================
    Type          Exported keys                  Value
    ============  =============================  ==========================================
    AVG_MIN_MAX   key/avg, key/min, key/max      mean and extrema over the masked elements
    AVG           key                            mean over the masked elements
    SUM           key                            sum over the masked elements
    MIN, MAX      key                            extremum over the masked elements
    SCALAR        key, key__count                mean and number of the recorded scalars
    DENOMINATOR   key                            number of true elements of the mask
    ============  =============================  ==========================================
    """

    AVG_MIN_MAX = "avg_min_max"
    AVG = "avg"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    SCALAR = "scalar"
    DENOMINATOR = "denominator"

    # Enum hashes in Python; keys that hold members are hashed by the thousand in an export.
    __hash__ = object.__hash__


@dataclass(frozen=True)
class Export:
    """One export: the same record on every rank.

    Attributes:
        step: the host's global step.
        metrics: specified name → number; holds no ``__count`` keys. Values may be NaN or infinite.
        expert_loads: routed assignments of the interval per stack, layer and expert; None without a recognised router.
        host: scalars that the host reported for the same step (loss, learning rate), under the host's own names.
        time: seconds since the epoch at which the numbers were reduced.
        expert_series: further values of single experts, by name, for trackers that show single experts.
    """

    step: int
    metrics: dict[str, float]
    expert_loads: ExpertLoads | None = None
    host: Mapping[str, float] = field(default_factory=dict)
    time: float = 0.0
    expert_series: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """What a writer is told when it opens.

    Attributes:
        output_dir: the folder of this run's files; may have to be made.
        config: JSON-serialisable configuration. Writers redact its secrets.
        name: a name for people, e.g. the output folder of the host.
        resumes: it continues an earlier training; None if the host does not tell.
    """

    output_dir: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    resumes: bool | None = None

    @property
    def report(self) -> Path:
        """Where the report of this run is written when the run closes, if one is wanted."""
        return self.output_dir / REPORT_FILE

    @property
    def finished_report(self) -> Path | None:
        """The report, once it is written."""
        return self.report if self.report.exists() else None
