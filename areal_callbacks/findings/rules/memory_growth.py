"""Device memory grows without end.

The peak of a healthy run is reached early: later ones come with longer batches, ever more rarely (the k-th of
independent batches is a record with probability 1/k) and by little. So the last sixty exports are divided into six:
each must have raised the peak by 1 % or more, all together by 10 %.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from areal_callbacks.findings.bounds import leave_out_warm_up
from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, read_points

PARTS, EXPORTS = 6, 10
RISE = 0.01
WHOLE_RISE = 0.1
_KEY = "device_memory/peak_allocated_gib"


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding."""
    points = leave_out_warm_up(history, read_points(history, _KEY))
    growing = [end for end in range(PARTS * EXPORTS, len(points.values)) if _grows(points.values, end)]
    if not growing:
        return
    first = growing[0] - PARTS * EXPORTS
    before, after = points.values[first], points.values[growing[-1]]
    yield Finding(
        rule="memory_growth",
        severity="warning",
        step=points.steps[first],
        found_step=points.steps[growing[0]],
        last_step=points.steps[growing[-1]],
        key=_KEY,
        summary=f"device memory grows: {before:.1f} GiB at step {points.steps[first]:,}, {after:.1f} GiB now",
        advice="Look for tensors that are kept with their graph (losses in a list, a cache that is never emptied) and"
        " for lengths that grow.",
        evidence={"before": before, "after": after},
    )


def _grows(values: Sequence[float], end: int) -> bool:
    """Whether every part of the exports before ``end`` has raised the peak."""
    ends = [max(values[: place + 1][-EXPORTS:]) for place in range(end - PARTS * EXPORTS, end + 1, EXPORTS)]
    rises = [later >= (1 + RISE) * earlier for earlier, later in itertools.pairwise(ends)]
    return all(rises) and ends[-1] >= (1 + WHOLE_RISE) * ends[0]
