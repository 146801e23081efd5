"""One expert of a layer takes far more than its share, or ever more of it.

With E experts, ``max_over_ideal`` lies between 1 (balance) and E (a single busy expert), or E / k if every token takes
k different ones; sqrt(E) is the middle of that on a logarithmic scale. Balanced routers stay near 1: Wang et al. 2024
(arXiv:2408.15664, table 2, whose MaxVio is this number minus one) report 1.04 and 1.5 to 1.7 for their two ways of
balancing. A specialised layer of a pretrained model can reach 3 to 5 of 128. The bound is 0.8 sqrt(E), at least 3: 3 of
8 experts, 6.4 of 64, 9.1 of 128, where with k = 8 more than every second token goes to that expert. The first twenty
exports are not judged: a router that is trained from scratch is balanced within them, or later.

Growth: two and a half times the lowest that twenty exports of the layer had in the median, once that is beyond half of
the bound, at least 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from areal_callbacks.findings.finding import Finding, Layer
from areal_callbacks.findings.history import ExportedHistory, Points
from areal_callbacks.findings.layers import name_for_people, read_layers
from areal_callbacks.findings.windows import Episode, find_episode, follow_best, smooth

GROWTH = 2.5
SEARCH = 20
"""Exports in which a router finds its balance."""
MOST = 4
"""Findings; of more layers the worst are named."""
_USUAL_EXPERTS = 128
_ADVICE = (
    "Raise the balancing loss or its update rate, check that the router trains in float32 and that its learning rate is"
    " not too high."
)


class _Collapse(NamedTuple):
    """What is said of a layer; ``past`` is NaN where it is not compared with its past."""

    episode: Episode
    value: float
    past: float


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding for a layer, and for four layers."""
    experts = count_experts(history)
    found = []
    for layer, key, points in read_layers(history):
        bound = choose_bound(experts.get(layer, _USUAL_EXPERTS))
        collapse = _find_excess(points, bound) or _find_growth(points, bound)
        if collapse is not None:
            found.append(_describe(key, layer, points, collapse, experts.get(layer)))
    yield from sorted(found, key=lambda finding: -finding.evidence["max_over_ideal"])[:MOST]


def count_experts(history: ExportedHistory) -> Mapping[tuple[str, int], int]:
    """(stack, layer) → its experts, as far as loads were kept."""
    return {layer: len(counts) for loads in history.snapshots[-1:] for layer, counts in loads.counts.items()}


def choose_bound(experts: int) -> float:
    """The ``max_over_ideal`` from which a layer of so many experts has collapsed."""
    return max(3.0, 0.8 * math.sqrt(experts))


def _find_excess(points: Points, bound: float) -> _Collapse | None:
    recent = smooth(points.values)
    episode = find_episode([value >= bound and at >= SEARCH for at, value in enumerate(recent)])
    return _Collapse(episode, max(recent[episode.first :]), math.nan) if episode else None


def _find_growth(points: Points, bound: float) -> _Collapse | None:
    recent, best = smooth(points.values), follow_best(points.values)
    least = max(2.0, bound / 2)
    grown = [past is not None and value >= max(least, GROWTH * past) for value, past in zip(recent, best)]
    episode = find_episode(grown)
    if episode is None:
        return None
    return _Collapse(episode, recent[episode.last], best[episode.found] or math.nan)


def _describe(key: str, layer: Layer, points: Points, collapse: _Collapse, experts: int | None) -> Finding:
    first, found, last = (points.steps[position] for position in collapse.episode)
    collapsed = math.isnan(collapse.past)
    name, said = name_for_people(layer), f"one expert takes {collapse.value:.1f} x the ideal load"
    grown = "" if collapsed else f", grown from {collapse.past:.1f} x"
    evidence = {"max_over_ideal": collapse.value}
    return Finding(
        rule="expert_collapse",
        severity="severe" if collapsed else "warning",
        step=first,
        found_step=found,
        last_step=last,
        key=key,
        layer=layer,
        summary=f"{name}: {said}{grown} since step {first:,}",
        advice=_ADVICE,
        evidence=evidence | ({"experts": experts} if experts else {}) | ({} if collapsed else {"past": collapse.past}),
    )
