"""The run has become slower than it was.

Compared is the median of the last five exports with the run's own past: the median of everything before them without
the first three exports of every start. It must be 15 % below that and three times as far below it as the past varies by
itself, at three exports in a row. One slow node of eight costs up to its share of 12.5 % only if the others do not wait
for it; what stays below 15 % is more often another mix of lengths than a fault. FLOP/s are compared where there are
any, because longer sequences take longer for good reasons; and a run whose steps have changed by as much in their
number of tokens has another workload, not a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from areal_callbacks.findings.bounds import leave_out_warm_up
from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, divide, read_first
from areal_callbacks.findings.windows import Past, compare_with_past, find_episode, smooth

DROP = 0.15
SEVERE_DROP = 0.5
SPREADS = 3.0
KEYS = (
    "train_perf/estimated_flops_per_second_per_device",
    "train_perf/estimated_flops_per_second",
    "train_perf/tokens_per_second_per_device",
    "train_perf/tokens_per_second",
)


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding, of the first key in ``KEYS`` that the run has."""
    key, points = read_first(history, KEYS)
    points = leave_out_warm_up(history, points)
    recent, same_work = smooth(points.values), _compare_work(history, points.steps)
    judged = compare_with_past(points.values, lambda at, past: same_work[at] and _is_slow(recent[at], past))
    episode = find_episode([one.is_off for one in judged])
    if episode is None:
        return
    past = judged[episode.found].past
    before, after = past.median if past else 0.0, recent[episode.last]
    drop = 1 - after / before
    yield Finding(
        rule="throughput_drop",
        severity="severe" if drop >= SEVERE_DROP else "warning",
        step=points.steps[episode.first],
        found_step=points.steps[episode.found],
        last_step=points.steps[episode.last],
        key=key,
        summary=f"throughput is {100 * drop:.0f} % below its past since step {points.steps[episode.first]:,}",
        advice="Look for a slow rank (slowest_rank), a busy disk or network, throttled clocks and other jobs on the"
        " nodes.",
        evidence={"before": before, "after": after, "change": -drop},
    )


def _is_slow(value: float, past: Past) -> bool:
    return value < (1 - DROP) * past.median and value < past.median - SPREADS * past.spread


def _compare_work(history: ExportedHistory, steps: Sequence[int]) -> list[bool]:
    """For each of ``steps`` whether an optimizer step has about as many tokens as before; yes where that is unknown."""
    work = divide(history, "train_perf/tokens", "train_perf/optimizer_steps")
    recent = smooth(work.values)
    pasts = [one.past for one in compare_with_past(work.values, lambda _at, _past: False)]
    same = {step: _is_same(value, past) for step, value, past in zip(work.steps, recent, pasts)}
    return [same.get(step, True) for step in steps]


def _is_same(value: float, past: Past | None) -> bool:
    return past is None or abs(value - past.median) < max(DROP * past.median, SPREADS * past.spread)
