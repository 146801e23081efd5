"""The optimizer's step takes much of the training time.

It reads and writes a few numbers per weight, a forward and backward do 6 FLOPs per weight and token: with thousands of
tokens a step it takes a few per cent, also sharded. From 40 % on, in the median of five exports, it is not fused, runs
on the CPU, or steps after every few tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from areal_callbacks.findings.bounds import find_excess, leave_out_warm_up
from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory, Points, divide, read_points

SHARE = 0.4
_KEY = "timeperf/optimizer_step"


def judge(history: ExportedHistory) -> Iterator[Finding]:
    """At most one finding."""
    seconds = dict(zip(*read_points(history, _KEY)))
    rates = divide(history, "train_perf/optimizer_steps", "train_perf/seconds")
    shares = [(step, rate * seconds[step]) for step, rate in zip(*rates) if step in seconds]
    points = Points([step for step, _ in shares], [share for _, share in shares])
    excess = find_excess(leave_out_warm_up(history, points), SHARE)
    if excess is not None:
        yield Finding(
            rule="optimizer_share",
            severity="warning",
            **excess.steps,
            key=_KEY,
            summary=f"the optimizer takes {100 * excess.value:.0f} % of the training time since step {excess.step:,}",
            advice="Use a fused optimizer, keep its states on the device, shard them, or accumulate more gradients per"
            " step.",
            evidence={"share": excess.value},
        )
