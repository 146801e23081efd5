"""The train/rollout mismatch as a whole: ranks, shapes, trackers, documentation."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from support.ppo_batches import SCOPE, make_batch, measure
from support.ppo_reference import THRESHOLDS, below

from areal_callbacks import stats_tracker
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.train_infer import log_train_inference_stats

POOLED = {
    "logp_diff/avg": 0.5,
    "logp_diff_squared": 1.0,
    "kl_k1": -0.5,
    "kl_k2": 0.5,
    "kl_k3": 1.097264,
    "ratio_outside_1.5": 0.25,
    "ratio_outside_5": 0.25,
    "ratio_outside_10": 0.0,
    "trainer_nll": 1.75,
    "rollout_nll": 2.25,
    "nonfinite_logp_fraction": 0.0,
    "n_valid_tokens": 4.0,
}


def record_a_rank(group, with_nan):
    """Rank 0 has one token and NaN padding, rank 1 three tokens that agree, and perhaps a NaN."""
    import torch.distributed as dist

    if dist.get_rank() == 0:
        trainer, rollout = torch.tensor([[-1.0, math.nan]]), torch.tensor([[-3.0, -1.0]])
        mask = torch.tensor([[True, False]])
    else:
        trainer, rollout = torch.tensor([[-2.0, -2.0, -2.0, math.nan]]), torch.full((1, 4), -2.0)
        mask = torch.tensor([[True, True, True, with_nan]])
    log_train_inference_stats(trainer, rollout, mask)
    return stats_tracker.export_all(reduce_group=group)


def test_ranks_with_unequal_tokens_are_pooled(two_ranks):
    for metrics in two_ranks.run(record_a_rank, False):
        found = below(SCOPE, metrics)
        assert {name: found[name] for name in POOLED} == pytest.approx(POOLED, abs=1e-6)


def test_a_valid_nan_on_one_rank_shows_on_all(two_ranks):
    for metrics in two_ranks.run(record_a_rank, True):
        found = below(SCOPE, metrics)
        assert found["nonfinite_logp_fraction"] == pytest.approx(0.2)
        for threshold in THRESHOLDS:
            assert math.isnan(found[f"ratio_outside_{threshold}"])
            assert math.isnan(found[f"ratio_above_{threshold}"])
            assert math.isnan(found[f"sequence_ratio_outside_{threshold}"])
        assert math.isnan(found["logp_abs_diff/p50"])
        assert math.isnan(found["logp_diff/max"])
        assert found["n_valid_tokens"] == 5.0


@pytest.mark.parametrize("shape", [(1,), (1, 4), (3, 1), (4, 3), ()])
def test_a_shape_that_is_not_the_masks_raises_and_leaves_nothing(shape):
    tracker = StatsTracker()
    right, wrong = torch.zeros(3, 4), torch.zeros(shape)
    mask = torch.ones(3, 4, dtype=torch.bool)
    for arguments in ((wrong, right), (right, wrong)):
        with pytest.raises(ValueError, match=r"has shape .*, its mask \[3, 4\]"):
            log_train_inference_stats(*arguments, mask, tracker)
    with pytest.raises(ValueError, match="advantages has shape"):
        log_train_inference_stats(right, right, mask, tracker, advantages=wrong)
    assert tracker.export() == {}


def test_no_valid_token_gives_no_averages():
    assert measure((torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))) == {
        "n_valid_tokens": 0.0
    }
    assert measure((torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.bool))) == {"n_valid_tokens": 0.0}


def test_inputs_are_only_read_and_gradients_stay_out():
    trainer = torch.randn(2, 5, requires_grad=True)
    rollout, mask = torch.randn(2, 5), torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 0, 1]])
    before = trainer.detach().clone(), rollout.clone(), mask.clone()
    metrics = measure((trainer, rollout, mask))
    assert metrics["n_valid_tokens"] == 6.0
    for tensor, copy in zip((trainer, rollout, mask), before):
        assert torch.equal(tensor, copy)
    assert trainer.grad is None


def test_names_ignore_the_current_scope_and_keep_the_trackers_name():
    tracker = StatsTracker("mine")
    with tracker.scope("ppo_actor"):
        log_train_inference_stats(torch.zeros(1), torch.zeros(1), torch.ones(1, dtype=torch.bool), tracker)
    assert tracker.export()["mine/ppo_actor/train_infer/n_valid_tokens"] == 1.0


def test_default_tracker_and_its_plain_export():
    log_train_inference_stats(torch.zeros(4), torch.full((4,), -1.0), torch.ones(4, dtype=torch.bool))
    metrics = stats_tracker.export_all()
    assert metrics[SCOPE + "logp_diff/avg"] == 1.0
    assert metrics[SCOPE + "ratio_mean"] == pytest.approx(math.e)
    assert all(isinstance(value, float) for value in metrics.values())


def test_switched_off_only_the_specified_metrics_remain():
    assert set(measure(make_batch(2, 10, 8), extended=False)) == {
        *(f"logp_{kind}/{statistic}" for kind in ("diff", "abs_diff") for statistic in ("avg", "min", "max")),
        *(f"ratio_outside_{threshold}" for threshold in (1.5, 2, 3, 5, 10)),
        *("logp_diff_squared", "trainer_nll", "rollout_nll", "kl_k1", "kl_k2", "kl_k3"),
        *("nonfinite_logp_fraction", "kl_k3_overflow_fraction", "n_valid_tokens"),
    }


def test_the_documented_table_is_what_is_exported():
    trainer, rollout, mask = make_batch(9, 200, 9)
    steps = torch.arange(200).expand(9, 200)
    metrics = measure((trainer, rollout, mask), versions=steps % 4, current_version=3, advantages=steps % 3 - 1.0)
    documented = set()
    for line in log_train_inference_stats.__doc__.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) == 3 and not cells[0].startswith(("=", "Key")):
            for key in cells[0].split(", "):
                documented |= expanded(key.strip())
    assert documented == set(metrics)


def expanded(key):
    key = key.replace("{t}", "{1.5,2,3,5,10}").replace("{…}", "{logp_abs_diff,kl_k3}")
    match = re.search(r"\{([^}]*)\}", key)
    if match is None:
        return {key}
    return {
        name for choice in match[1].split(",") for name in expanded(key[: match.start()] + choice + key[match.end() :])
    }


def test_one_token_without_a_log_probability_does_not_blind_the_others():
    trainer, rollout, mask = make_batch(4, 50, seed=3)
    damaged = rollout.clone()
    row, column = (int(index) for index in mask.nonzero()[7])
    damaged[row, column] = torch.nan
    without = mask.clone()
    without[row, column] = False
    expected = measure((trainer, rollout, without), extended=False)
    found = measure((trainer, damaged, mask))
    assert found["nonfinite_logp_fraction"] == pytest.approx(1 / int(mask.sum()))
    assert np.isnan([found["kl_k3"], found["logp_diff/avg"], found["ratio_outside_2"]]).all()
    finite = {name.removeprefix("finite/"): value for name, value in found.items() if name.startswith("finite/")}
    for irregular in ("nonfinite_logp_fraction", "kl_k3_overflow_fraction"):
        del expected[irregular]
    assert finite == pytest.approx(expected, rel=1e-12)


def test_the_finite_tokens_are_all_where_none_is_missing():
    found = measure(make_batch(3, 20, seed=1))
    finite = {name: value for name, value in found.items() if name.startswith("finite/")}
    assert finite == {name: found[name.removeprefix("finite/")] for name in finite}
    assert len(finite) == 18


def test_no_finite_token_gives_no_finite_averages():
    found = measure(([[float("nan"), -1.0]], [[-1.0, -1.0]], [[1, 0]]))
    assert {name: value for name, value in found.items() if name.startswith("finite/")} == {"finite/n_valid_tokens": 0}


@pytest.mark.parametrize("mask", [[[0, 0, 1, 1]], [[0, 1, 1, 0]]])
def test_ages_are_those_of_the_tokens_also_where_the_mask_is_at_the_predicting_positions(mask):
    versions = torch.tensor([[-1, -1, 5, 3]])
    trainer, rollout = torch.zeros(1, 4), torch.tensor(mask).cumsum(-1) * -1.0  # |d| is 1, then 2
    found = measure((trainer, rollout, mask), versions=versions, current_version=5)
    assert (found["by_age/0/logp_abs_diff"], found["by_age/2/logp_abs_diff"]) == (1.0, 2.0)
