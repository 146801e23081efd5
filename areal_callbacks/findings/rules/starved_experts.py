"""Experts that get next to nothing to learn from, or nothing at all.

Judged are the counts of the last five exports together, in layers whose ideal load is at least 100 assignments then: an
expert that is chosen at random with the ideal probability would get none with a probability of e^-100. Starved is an
expert with less than a tenth of the ideal load. A layer is named if one expert is dead or 5 % are starved: pretrained
models have single experts for languages or formats that a fine-tuning set does not contain. A quarter starved is
severe: the layer has become a smaller one. What has ended is not reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from areal_callbacks.core.balance import count_starved
from areal_callbacks.core.names import STARVED_EXPERTS
from areal_callbacks.findings.finding import Finding, Layer
from areal_callbacks.findings.history import ExportedHistory, ExportedLoads
from areal_callbacks.findings.layers import name_for_people
from areal_callbacks.safety.text import tell_number

POOLED = 5
LEAST_IDEAL = 100
SHARE = 0.05
SEVERE_SHARE = 0.25


class _Hungry(NamedTuple):
    """A layer with starved experts."""

    layer: Layer
    starved: int
    dead: int
    experts: int


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding, with the layer that has the largest share of starved experts."""
    hungry = _find_hungry(history.snapshots[-POOLED:]) if len(history.snapshots) >= POOLED else []
    if not hungry:
        return
    worst = max(hungry, key=lambda one: (one.starved / one.experts, one.starved))
    starved, dead = sum(one.starved for one in hungry), sum(one.dead for one in hungry)
    first = _find_beginning(history, worst)
    yield Finding(
        rule="starved_experts",
        severity="severe" if worst.starved >= SEVERE_SHARE * worst.experts else "warning",
        step=history.snapshots[first].step,
        found_step=history.snapshots[min(first + POOLED, len(history.snapshots)) - 1].step,
        last_step=history.snapshots[-1].step,
        key=STARVED_EXPERTS,
        layer=worst.layer,
        summary=f"{tell_number(starved, 'expert')} in {tell_number(len(hungry), 'layer')}"
        f" {'is' if starved == 1 else 'are'} starved, {dead} of them dead;"
        f" {name_for_people(worst.layer)}: {worst.starved} of {worst.experts}",
        advice="Raise the balancing loss or the update rate of the router's bias; dead experts need a restart from a"
        " checkpoint, or new weights.",
        evidence={"starved": starved, "dead": dead, "layers": len(hungry)},
    )


def _find_hungry(snapshots: Sequence[ExportedLoads]) -> list[_Hungry]:
    return [one for layer in snapshots[-1].counts for one in [_pool(snapshots, layer)] if one is not None]


def _pool(snapshots: Sequence[ExportedLoads], layer: tuple[str, int]) -> _Hungry | None:
    """What a layer's counts together say; None for one that is well, or has too few."""
    counts = [sum(column) for column in zip(*(one.counts[layer] for one in snapshots if layer in one.counts))]
    if sum(counts) < LEAST_IDEAL * len(counts):
        return None
    starved, dead = count_starved(counts), counts.count(0)
    is_hungry = dead or starved >= max(1, math.ceil(SHARE * len(counts)))
    return _Hungry(Layer(*layer), starved, dead, len(counts)) if is_hungry else None


def _find_beginning(history: ExportedHistory, worst: _Hungry) -> int:
    """The first snapshot from which on the layer had at least half as many starved experts."""
    first = len(history.snapshots) - 1
    for position in range(first, -1, -1):
        counts = history.snapshots[position].counts.get(worst.layer, ())
        if 2 * count_starved(counts) < worst.starved:
            break
        first = position
    return first
