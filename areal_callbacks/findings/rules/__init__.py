"""The rules, by the names of their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from areal_callbacks.findings.finding import Finding
from areal_callbacks.findings.history import ExportedHistory
from areal_callbacks.findings.rules import (
    clip_ratio,
    data_wait,
    expert_collapse,
    length_collapse,
    memory_growth,
    mismatch,
    nonfinite,
    optimizer_share,
    silent_layer,
    skipped_steps,
    staleness,
    starved_experts,
    straggler,
    throughput_drop,
    zero_advantage,
)

RULES: dict[str, Callable[[ExportedHistory], Iterator[Finding]]] = {
    "nonfinite": nonfinite.judge,
    "expert_collapse": expert_collapse.judge,
    "starved_experts": starved_experts.judge,
    "silent_layer": silent_layer.judge,
    "throughput_drop": throughput_drop.judge,
    "straggler": straggler.judge,
    "data_wait": data_wait.judge,
    "optimizer_share": optimizer_share.judge,
    "skipped_steps": skipped_steps.judge,
    "memory_growth": memory_growth.judge,
    "mismatch": mismatch.judge,
    "staleness": staleness.judge,
    "clip_ratio": clip_ratio.judge,
    "zero_advantage": zero_advantage.judge,
    "length_collapse": length_collapse.judge,
}
