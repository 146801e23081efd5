"""Ways to make a simulated run sick: each is the reason for one rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from support.simulated_runs import Simulation

_POLICY = "ppo_actor/"


def lose_the_loss(run: Simulation, onset: int) -> None:
    run.columns["loss"][onset:] = np.nan


def collapse_an_expert(run: Simulation, onset: int) -> None:
    """Most of a layer's assignments go to one expert: as many as every token can give it at top-2."""
    assert run.counts is not None
    layer = run.counts[onset:, 1]
    moved = layer - layer // 3
    layer -= moved
    layer[:, 3] += moved.sum(1)


def starve_experts(run: Simulation, onset: int) -> None:
    assert run.counts is not None
    layer = run.counts[onset:, 0]
    quarter = layer.shape[1] // 4
    taken = layer[:, :quarter] - layer[:, :quarter] // 50
    layer[:, :quarter] -= taken
    layer[:, quarter:] += taken.sum(1)[:, None] // (layer.shape[1] - quarter)


def silence_a_layer(run: Simulation, onset: int) -> None:
    assert run.counts is not None
    run.counts[onset:, 1] = 0


def slow_down(run: Simulation, onset: int) -> None:
    """A quarter slower."""
    for key in ("seconds", "seconds_mean", "data_wait_seconds"):
        run.columns[f"train_perf/{key}"][onset:] /= 0.74
    for key in ("tokens_per_second", "estimated_flops_per_second"):
        if f"train_perf/{key}" in run.columns:
            run.columns[f"train_perf/{key}"][onset:] *= 0.74


def slow_a_rank(run: Simulation, onset: int) -> None:
    run.columns["train_perf/slowest_rank"][onset:] = 5.0
    run.columns["train_perf/seconds_mean"][onset:] = 0.75 * run.columns["train_perf/seconds"][onset:]


def wait_for_data(run: Simulation, onset: int) -> None:
    run.columns["train_perf/data_wait_seconds"][onset:] += 0.5 * run.columns["train_perf/seconds"][onset:]


def slow_the_optimizer(run: Simulation, onset: int) -> None:
    run.columns["timeperf/optimizer_step"][onset:] = run.columns["train_perf/seconds"][onset:] / 10 * 0.6


def skip_steps(run: Simulation, onset: int) -> None:
    skipped = run.columns.setdefault("train_perf/skipped_steps", np.zeros(run.exports))
    skipped[onset:] = run.random.binomial(10, 0.5, run.exports - onset)
    run.columns["train_perf/optimizer_steps"] = 10.0 - skipped


def leak_memory(run: Simulation, onset: int) -> None:
    leaked = np.maximum(np.arange(run.exports) - onset, 0) * 0.3
    memory = run.columns["device_memory/peak_allocated_gib"]
    run.columns["device_memory/peak_allocated_gib"] = np.maximum.accumulate(memory + leaked)


def drift_apart(run: Simulation, onset: int) -> None:
    """Ninefold within forty exports."""
    growth = 9.0 ** np.clip((np.arange(run.exports) - onset) / 40, 0.0, 1.0)
    run.columns[f"{_POLICY}train_infer/logp_abs_diff/avg"] = 0.015 * growth * run.wander(1.0, 0.1)
    run.columns[f"{_POLICY}train_infer/ratio_outside_2"] = np.minimum(0.002 * growth**2, 1.0)


def grow_stale(run: Simulation, onset: int) -> None:
    run.columns[f"{_POLICY}update/version_stats/sample_staleness_theta_avg"][onset:] = 12.0


def clip_most(run: Simulation, onset: int) -> None:
    run.columns[f"{_POLICY}update/clip_ratio/avg"][onset:] = run.wander(0.45, 0.1)[onset:]


def lose_the_signal(run: Simulation, onset: int) -> None:
    run.columns[f"{_POLICY}advantage_zero_fraction"][onset:] = run.random.uniform(0.85, 1.0, run.exports - onset)


def fall_silent(run: Simulation, onset: int) -> None:
    """Answers of a fifth of their length."""
    prompt, length = (run.columns[f"{_POLICY}{name}/avg"] for name in ("prompt_len", "seq_len"))
    length[onset:] = prompt[onset:] + 0.2 * (length[onset:] - prompt[onset:])


SICKNESSES: dict[str, tuple[Callable[[Simulation, int], None], int]] = {
    "nonfinite": (lose_the_loss, 2),
    "expert_collapse": (collapse_an_expert, 8),
    "starved_experts": (starve_experts, 8),
    "silent_layer": (silence_a_layer, 5),
    "throughput_drop": (slow_down, 10),
    "straggler": (slow_a_rank, 18),
    "data_wait": (wait_for_data, 8),
    "optimizer_share": (slow_the_optimizer, 8),
    "skipped_steps": (skip_steps, 8),
    "memory_growth": (leak_memory, 75),
    "mismatch": (drift_apart, 35),
    "staleness": (grow_stale, 8),
    "clip_ratio": (clip_most, 8),
    "zero_advantage": (lose_the_signal, 16),
    "length_collapse": (fall_silent, 8),
}
"""Rule → what makes a run sick, and the exports from its onset within which it has to be found."""
NEEDS_EXPERTS = ("expert_collapse", "starved_experts", "silent_layer")
NEEDS_POLICY = ("mismatch", "staleness", "clip_ratio", "zero_advantage", "length_collapse")
