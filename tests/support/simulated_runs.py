"""Runs as they are exported, healthy with everything that healthy runs do, or sick from some export on.

Healthy is: slow first exports of every start, noise that persists for a while, single slow exports, learning-rate
schedules, resumptions, exports without some keys, evaluation, balance that is learnt or specialised, batches of any
size, scalers that search, policies whose answers grow and whose staleness varies.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from areal_callbacks.report.history import History, Series
from areal_callbacks.report.snapshots import Snapshot

Columns = dict[str, NDArray[np.float64]]
"""Key → a value for every export, NaN where it was not exported."""

EVERY = 10
_POLICY = "ppo_actor/"
_MISMATCH = f"{_POLICY}train_infer/"
_RESUMED = 3


class Simulation:
    """One run.

    Attributes:
        exports: how many.
        columns: what was exported; sick runs change it.
        counts: int64 ``[exports, layers, experts]``, None for a dense model.
        resumed: the export that a resumption begins with, None without one.
    """

    def __init__(self, seed: int, *, moe: bool, policy: bool, exports: int = 200) -> None:
        self.random = np.random.default_rng(seed)
        self.exports = exports
        self.moe, self.policy = moe, policy
        self.resumed = int(self.random.integers(20, exports)) if self.random.random() < 0.3 else None
        self.counts: NDArray[np.int64] | None = None
        self.columns: Columns = {}
        self._simulate_training()
        if moe:
            self.counts = _simulate_counts(self.random, exports)
        if policy:
            self._simulate_policy()

    # -- what healthy runs do

    def wander(self, level: float, noise: float, persistence: float = 0.5) -> NDArray[np.float64]:
        """Around ``level``, with normal noise of that relative size that persists from export to export."""
        shocks = self.random.standard_normal(self.exports) * noise * np.sqrt(1 - persistence**2)
        path = np.zeros(self.exports)
        for export in range(self.exports):
            path[export] = (persistence * path[export - 1] if export else 0.0) + shocks[export]
        return level * np.exp(path)

    def outliers(self, probability: float) -> NDArray[np.bool_]:
        """Exports at which something unusual happens for once."""
        return self.random.random(self.exports) < probability

    def _simulate_training(self) -> None:
        random, columns, exports = self.random, self.columns, self.exports
        ranks = int(random.choice([1, 2, 8, 64]))
        tokens = self.wander(1e6, random.uniform(0.0, 0.25), 0.2)
        rate = self.wander(5e4, random.uniform(0.005, 0.05), random.uniform(0.0, 0.9))
        rate[self.outliers(0.02)] *= 0.4  # a checkpoint on a slow disk, a noisy neighbour
        for start in (0, self.resumed):
            if start is not None:
                rate[start : start + _RESUMED] *= np.array([0.2, 0.5, 0.9])[: exports - start]
        seconds = tokens / rate
        columns["train_perf/tokens"], columns["train_perf/seconds"] = tokens, seconds
        columns["train_perf/tokens_per_second"] = rate
        columns["train_perf/optimizer_steps"] = np.full(exports, 10.0)
        if random.random() < 0.7:
            columns["train_perf/estimated_flops_per_second"] = rate * self.wander(6e9, 0.01)
        waiting = (ranks > 1) * random.uniform(0.0, 0.08) * self.wander(1.0, 0.5)  # of the time, for the slowest rank
        columns["train_perf/seconds_mean"] = seconds * (1 - waiting)
        columns["train_perf/slowest_rank"] = random.integers(0, ranks, exports).astype(float)
        wait = random.uniform(0.0, 0.08) * self.wander(1.0, 0.4)
        wait[self.outliers(0.02)] += 0.5
        columns["train_perf/data_wait_seconds"] = seconds * wait
        columns["timeperf/optimizer_step"] = seconds / 10 * self.wander(random.uniform(0.01, 0.2), 0.1)
        memory = np.maximum.accumulate(self.wander(40.0, random.uniform(0.0, 0.1), 0.0))
        columns["device_memory/peak_allocated_gib"] = memory
        columns["loss"] = 2.0 + 8.0 * np.exp(-np.arange(exports) / 30) + self.wander(0.1, 0.5)
        columns["grad_norm"] = self.wander(1.0, 0.5)
        columns["learning_rate"] = 1e-4 * np.minimum(np.arange(exports) / 10, 1.0)
        columns["eval_loss"] = np.where(np.arange(exports) % 10 == 9, columns["loss"], np.nan)
        if random.random() < 0.3:  # float16
            skipped = np.where(self.outliers(0.05), 1.0, 0.0)
            skipped[0] = 8.0
            columns["train_perf/skipped_steps"] = skipped
            columns["train_perf/optimizer_steps"] = 10.0 - skipped
            columns["grad_norm"][skipped > 0] = np.inf

    def _simulate_policy(self) -> None:
        random, columns, exports = self.random, self.columns, self.exports
        progress = np.arange(exports) / exports
        growth = random.uniform(0.6, 2.5) ** progress  # answers get longer or shorter
        columns[f"{_POLICY}prompt_len/avg"] = self.wander(200.0, 0.05, 0.0)
        answers = self.wander(800.0, random.uniform(0.02, 0.12)) * growth
        columns[f"{_POLICY}seq_len/avg"] = columns[f"{_POLICY}prompt_len/avg"] + answers
        columns[f"{_POLICY}task_reward/avg"] = progress + self.wander(0.1, 0.5)
        columns[f"{_POLICY}advantage_zero_fraction"] = np.clip(self.wander(0.35, 0.15) + 0.3 * progress, 0.0, 1.0)
        staleness = random.uniform(0.0, 4.0)
        columns[f"{_POLICY}update/version_stats/sample_staleness_theta_avg"] = staleness * self.wander(1.0, 0.2)
        clipped = self.wander(random.uniform(0.002, 0.15), 0.2)
        clipped[self.outliers(0.01)] = 0.5
        columns[f"{_POLICY}update/clip_ratio/avg"] = np.minimum(clipped, 1.0)
        drift = 1 + random.uniform(0.0, 1.0) * np.minimum(4 * progress, 1.0)  # the learning rate warms up
        gap = self.wander(random.uniform(0.004, 0.02), random.uniform(0.02, 0.2)) * drift
        columns[f"{_MISMATCH}logp_abs_diff/avg"] = gap
        columns[f"{_MISMATCH}ratio_outside_2"] = 0.1 * gap * self.wander(1.0, 0.3)
        columns["timeperf/rollout"] = self.wander(60.0, 0.2)

    # -- what is read

    def history(self) -> History:
        """As the reader gives it, with some exports that lack a key."""
        steps = list(range(EVERY, EVERY * self.exports + 1, EVERY))
        columns = {**self.columns, **({} if self.counts is None else _balance(self.counts))}
        present = ~self.outliers(0.03)
        series = {key: self._series(key, values, present) for key, values in columns.items()}
        resumed = [] if self.resumed is None else [steps[self.resumed]]
        return History("run", steps=steps, series=series, snapshots=_keep(self.counts, steps), resumed_at=resumed)

    def _series(self, key: str, values: NDArray[np.float64], present: NDArray[np.bool_]) -> Series:
        """Of evaluation there is a value now and then; a NaN of any other key was exported as such."""
        kept = ~np.isnan(values) if key == "eval_loss" else present
        return Series([int(place) for place in kept.nonzero()[0]], [float(value) for value in values[kept]])


def _simulate_counts(random: Generator, exports: int) -> NDArray[np.int64]:
    """Multinomial counts of experts whose popularity differs, wanders, and is learnt in a run from scratch."""
    layers, experts = int(random.integers(2, 7)), int(random.choice([8, 16, 64]))
    tokens = int(random.choice([2_000, 20_000, 200_000]))
    spread = random.uniform(0.02, 0.45 if experts == 64 else 0.35, layers)[:, None]
    popularity = spread * random.standard_normal((layers, experts))
    counts = np.zeros((exports, layers, experts), dtype=np.int64)
    from_scratch = random.random() < 0.3
    for export in range(exports):
        popularity = popularity * 0.99 + spread * np.sqrt(1 - 0.99**2) * random.standard_normal((layers, experts))
        scale = 1 + np.exp(-export / 10) if from_scratch else 1.0
        share = np.exp(scale * popularity)
        for layer in range(layers):
            counts[export, layer] = random.multinomial(tokens, share[layer] / share[layer].sum())
    return counts


def _balance(counts: NDArray[np.int64]) -> Columns:
    means = np.maximum(counts.mean(2), 1e-9)
    ratios = counts.max(2) / means
    return {f"moe_balance/layer_{layer}/max_over_ideal": ratios[:, layer] for layer in range(counts.shape[1])}


def _keep(counts: NDArray[np.int64] | None, steps: list[int]) -> list[Snapshot]:
    if counts is None:
        return []
    rows = [{("", layer): array("Q", row.tolist()) for layer, row in enumerate(export)} for export in counts]
    return [Snapshot(step, layers) for step, layers in zip(steps, rows)]


Sickness = Callable[[Simulation, int], None]
"""Makes a run sick from an export on."""
