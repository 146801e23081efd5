"""A layer routes nothing while others of its stack do.

Its ``max_over_ideal`` is 0 then. Three exports in a row: an export may hold so few forwards that a conditional layer is
skipped in all of them. A stack that is silent as a whole (no pictures in this data) is none of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, Points
from areal_callbacks.findings.layers import name_for_people, read_layers
from areal_callbacks.findings.windows import find_episode


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """One finding for every silent layer."""
    layers = list(read_layers(history))
    busy = {(layer.stack, step) for layer, _, points in layers for step, value in zip(*points) if value > 0}
    for layer, key, points in layers:
        silent = [value == 0 and (layer.stack, step) in busy for step, value in zip(*points)]
        episode = find_episode(silent)
        if episode is not None:
            first, found, last = (points.steps[position] for position in episode)
            yield Finding(
                rule="silent_layer",
                severity="severe",
                step=first,
                found_step=found,
                last_step=last,
                key=key,
                layer=layer,
                summary=f"{name_for_people(layer)} routes nothing since step {first:,}",
                advice="Its router is not called or its counts are not seen: look for a frozen, skipped or replaced"
                " layer, and run areal-callbacks verify.",
                evidence={"exports": _count_silent(points)},
            )


def _count_silent(points: Points) -> int:
    return points.values.count(0.0)
