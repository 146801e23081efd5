"""Metrics derived from sums that were added over batches, ranks and intervals."""

from __future__ import annotations

import math

import pytest
import torch

from areal_callbacks import stats_tracker
from areal_callbacks.core.formulas import Formula, formula
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.ratios import token_ratios
from areal_callbacks.ppo.train_infer import log_train_inference_stats
from areal_callbacks.session import MetricsSession

D = (0.0, 1.0, -0.5, 2.0)


def ratio_statistics(d):
    ratios = [math.exp(value) for value in d]
    squares = sum(ratio**2 for ratio in ratios)
    return {
        "ppo_actor/train_infer/chi2": squares / len(d) - 1,
        "ppo_actor/train_infer/ess_fraction": sum(ratios) ** 2 / (len(d) * squares),
    }


def record(d, tracker=None):
    trainer = torch.tensor(d, dtype=torch.float64)
    log_train_inference_stats(trainer, torch.zeros_like(trainer), torch.ones(len(d), dtype=torch.bool), tracker)


def export_a_rank(group, rank_with_nothing):
    """Two exports: the first meets new keys, the second the packed reduction."""
    import torch.distributed as dist

    exports = []
    for _ in range(2):
        if dist.get_rank() != rank_with_nothing:
            record(D[:1] if dist.get_rank() else D[1:])
        exports.append(stats_tracker.export_all(reduce_group=group))
    return exports


@pytest.mark.parametrize(("absent", "pooled"), [(None, D), (0, D[:1]), (1, D[1:])])
def test_ranks_pool_their_sums_also_with_one_that_has_none(two_ranks, absent, pooled):
    expected = ratio_statistics(pooled)
    for exports in two_ranks.run(export_a_rank, absent):
        for metrics in exports:
            assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-12)


def test_intervals_that_a_host_could_not_log_merge(tmp_path):
    session = MetricsSession(throughput=False, moe_balance=False, output_dir=tmp_path)
    record(D[:2], session.tracker)
    session.reduce()
    record(D[2:])
    export = session.export(1)
    session.close()
    expected = ratio_statistics(D)
    assert {name: export.metrics[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    assert not [name for name in export.metrics if "formula" in name or "ratios" in name]


def test_sums_stay_or_go_with_their_export():
    tracker = StatsTracker("actor")
    tracker.sums(token_ratios, torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64), "a")
    tracker.scalar(other=1.0)
    kept = tracker.export(reset=False)
    assert kept["actor/a/ratio_mean"] == 1.0
    assert tracker.export("a") == {f"actor/a/{name}": value for name, value in token_ratios.derive([2, 0, 0]).items()}
    assert tracker.export() == {"actor/other": 1.0, "actor/other__count": 1.0}


def test_wrong_sums_raise():
    tracker = StatsTracker()
    for sums in (torch.zeros(3), torch.zeros(4, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"takes float64 sums of shape \[3\]"):
            tracker.sums(token_ratios, sums)
    assert tracker.export() == {}


@formula(width=1)
def impossible(sums):
    return {"value": 1 / (sums[0] - sums[0])}


def test_a_formula_that_fails_costs_only_itself(caplog):
    tracker = StatsTracker()
    nowhere = Formula("no.such.module:name", 1, impossible.derive)
    for rule in (impossible, nowhere):
        tracker.sums(rule, torch.ones(1, dtype=torch.float64), "broken")
    tracker.scalar(loss=2.0)
    assert tracker.export() == {"loss": 2.0, "loss__count": 1.0}
    assert len([entry for entry in caplog.records if "could not be derived" in entry.message]) == 2
