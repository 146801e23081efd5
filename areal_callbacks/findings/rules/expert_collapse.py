"""One expert of a layer takes far more than its share, or ever more of it.

With E experts, ``max_over_ideal`` lies between 1 (balance) and E (a single busy expert), or E / k if every token takes
k different ones; sqrt(E) is the middle of that on a logarithmic scale. Balanced routers stay near 1: Wang et al. 2024
(arXiv:2408.15664, table 2, whose MaxVio is this number minus one) report 1.04 and 1.5 to 1.7 for their two ways of
balancing. A specialised layer of a pretrained model can reach 3 to 5 of 128. The bound is 0.7 sqrt(E), at least 2.5:
2.5 of 8 experts, 5.6 of 64, 7.9 of 128, where with k = 8 every second token goes to that expert.

Growth: twice the lowest that twenty exports of the layer had in the median, once that is beyond half of the bound, at
least 2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from areal_callbacks.core.names import MAX_OVER_IDEAL, MOE_BALANCE
from areal_callbacks.findings.finding import Finding, Layer
from areal_callbacks.findings.history import ExportedHistory, Points, read_points
from areal_callbacks.findings.windows import Episode, find_episode, follow_best, smooth

GROWTH = 2.0
_KEY = re.compile(rf"{MOE_BALANCE}/(?:(?P<stack>.+)/)?layer_(?P<layer>\d{{1,6}})/{MAX_OVER_IDEAL}")
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
    """At most one finding for every layer."""
    experts = count_experts(history)
    for key in history.series:
        match = _KEY.fullmatch(key)
        if match:
            layer = Layer(match["stack"] or "", int(match["layer"]))
            points = read_points(history, key)
            bound = choose_bound(experts.get(layer, _USUAL_EXPERTS))
            collapse = _find_excess(points, bound) or _find_growth(points, bound)
            if collapse is not None:
                yield _describe(key, layer, points, collapse, experts.get(layer))


def count_experts(history: ExportedHistory) -> Mapping[tuple[str, int], int]:
    """(stack, layer) → its experts, as far as loads were kept."""
    return {layer: len(counts) for loads in history.snapshots[-1:] for layer, counts in loads.counts.items()}


def choose_bound(experts: int) -> float:
    """The ``max_over_ideal`` from which a layer of so many experts has collapsed."""
    return max(2.5, 0.7 * math.sqrt(experts))


def _find_excess(points: Points, bound: float) -> _Collapse | None:
    recent = smooth(points.values)
    episode = find_episode([value >= bound for value in recent])
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
    name = f"layer {layer.layer}" + (f" of {layer.stack}" if layer.stack else "")
    said = f"one expert takes {collapse.value:.1f} x the ideal load"
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
