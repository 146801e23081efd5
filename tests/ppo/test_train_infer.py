"""The specified train/rollout metrics, against hand computation and NumPy."""

from __future__ import annotations

import gc
import math
from types import FunctionType, ModuleType

import numpy as np
import pytest
import torch
from support.ppo_reference import THRESHOLDS, below, scales, specified

from areal_callbacks import stats_tracker
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.train_infer import _measured, log_train_inference_stats

SCOPE = "ppo_actor/train_infer/"
LN2, LN8 = math.log(2), math.log(8)


def measured(trainer, rollout, mask, **options):
    tracker = StatsTracker()
    log_train_inference_stats(
        torch.as_tensor(trainer), torch.as_tensor(rollout), torch.as_tensor(mask), tracker, **options
    )
    return below(SCOPE, tracker.export())


def test_hand_computed_example():
    trainer = torch.tensor([-LN2, -LN8, -LN2, -LN2], dtype=torch.float64)
    rollout = torch.tensor([-LN8, -LN2, -LN2, -LN2], dtype=torch.float64)
    expected = {
        "logp_diff/avg": 0.0,
        "logp_diff/min": -1.386294,
        "logp_diff/max": 1.386294,
        "logp_abs_diff/avg": 0.693147,
        "logp_diff_squared": 0.960906,
        "kl_k1": 0.0,
        "kl_k2": 0.480453,
        "kl_k3": 0.5625,
        "ratio_outside_1.5": 0.5,
        "ratio_outside_2": 0.5,
        "ratio_outside_3": 0.5,
        "ratio_outside_5": 0.0,
        "ratio_outside_10": 0.0,
        "trainer_nll": 1.039721,
        "rollout_nll": 1.039721,
        "ratio_mean": 1.5625,
        "ratio_mean_standard_error": 0.720107,
        "chi2": 3.515625,
        "ess_fraction": 0.540657,
        "n_valid_tokens": 4.0,
    }
    metrics = measured(trainer, rollout, torch.ones(4, dtype=torch.bool))
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-6)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("spread", [1e-4, 0.05, 3.0])
def test_matches_numpy_in_float64(dtype, spread):
    generator = torch.Generator().manual_seed(1)
    trainer = (-3 * torch.rand(7, 501, generator=generator)).to(dtype)
    rollout = (trainer.double() + spread * torch.randn(7, 501, generator=generator).double()).to(dtype)
    mask = torch.rand(7, 501, generator=generator) < 0.6
    metrics = measured(trainer, rollout, mask)
    arguments = trainer.double().numpy(), rollout.double().numpy(), mask.numpy()
    scale = scales(*arguments)
    for name, expected in specified(*arguments).items():
        assert abs(metrics[name] - expected) <= 1e-12 * scale.get(name, 1.0), name


@pytest.mark.parametrize("tokens", [1, 65_535, 65_536, 65_537, 200_003])
def test_pieces_of_any_size_and_batches_are_one_population(tokens):
    generator = torch.Generator().manual_seed(tokens)
    trainer = -3 * torch.rand(tokens, generator=generator)
    rollout = trainer + 0.3 * torch.randn(tokens, generator=generator)
    mask = torch.rand(tokens, generator=generator) < 0.7
    mask[0] = True
    tracker = StatsTracker()
    for part in zip(*(tensor.split((tokens + 2) // 3) for tensor in (trainer, rollout, mask))):
        log_train_inference_stats(*part, tracker)
    expected = specified(trainer.numpy(), rollout.numpy(), mask.numpy())
    whole, parts = measured(trainer, rollout, mask), below(SCOPE, tracker.export())
    for name, value in expected.items():
        assert whole[name] == pytest.approx(value, rel=1e-11, abs=1e-14), name
        assert parts[name] == pytest.approx(value, rel=1e-11, abs=1e-14), name
    assert parts.keys() == whole.keys()
    assert parts["logp_abs_diff/p99"] == whole["logp_abs_diff/p99"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_masked_padding_changes_nothing(value):
    trainer, rollout = torch.randn(3, 40) - 3, torch.randn(3, 40) - 3
    mask = torch.zeros(3, 40, dtype=torch.bool)
    mask[:, :25] = True
    clean = measured(trainer[:, :25], rollout[:, :25], mask[:, :25])
    trainer[:, 25:] = value
    rollout[:, 30:] = -value
    assert measured(trainer, rollout, mask) == pytest.approx(clean, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("trainer", "rollout"), [(-math.inf, -1.0), (-1.0, -math.inf), (math.inf, math.inf)])
def test_infinite_logps_are_not_finite(trainer, rollout):
    metrics = measured([-1.0, trainer, -1.0, -2.0], [-1.0, rollout, -1.0, -2.0], [True, True, True, False])
    expected = specified([-1.0, trainer, -1.0, -2.0], [-1.0, rollout, -1.0, -2.0], [True, True, True, False])
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, nan_ok=True)
    assert metrics["nonfinite_logp_fraction"] == pytest.approx(1 / 3)


def test_overflow_counts_finite_inputs_only():
    trainer = torch.tensor([0.0, 0.0, 0.0, math.inf, 1e308], dtype=torch.float64)
    rollout = torch.tensor([-709.0, -709.79, -1e6, -1.0, -1e308], dtype=torch.float64)
    metrics = measured(trainer, rollout, torch.ones(5, dtype=torch.bool))
    assert metrics["kl_k3_overflow_fraction"] == pytest.approx(0.6)
    assert metrics["nonfinite_logp_fraction"] == pytest.approx(0.2)
    assert measured(trainer[:2], rollout[:2], [True, True])["kl_k3"] == math.inf


def test_tails_are_strict():
    at_threshold = torch.log(torch.tensor(2.0, dtype=torch.float64))
    metrics = measured(at_threshold.repeat(2), torch.zeros(2, dtype=torch.float64), [True, True])
    assert metrics["ratio_outside_1.5"] == 1.0
    assert metrics["ratio_outside_2"] == 0.0


def test_k3_is_precise_for_small_gaps():
    metrics = measured(torch.tensor([1e-4], dtype=torch.float64), torch.tensor([0.0], dtype=torch.float64), [True])
    assert metrics["kl_k3"] == pytest.approx(1e-8 / 2 + 1e-12 / 6, rel=1e-7)


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
    assert measured(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)) == {
        "n_valid_tokens": 0.0
    }
    assert measured(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.bool)) == {"n_valid_tokens": 0.0}


def test_inputs_are_only_read_and_gradients_stay_out():
    trainer = torch.randn(2, 5, requires_grad=True)
    rollout, mask = torch.randn(2, 5), torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 0, 1]])
    before = trainer.detach().clone(), rollout.clone(), mask.clone()
    metrics = measured(trainer, rollout, mask)
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


@pytest.mark.parametrize("extended", [True, False])
def test_nothing_waits_for_the_device(extended):
    """Tensors without values raise on whatever would have to look at one."""
    values, mask = torch.zeros(4, 8, device="meta"), torch.ones(4, 8, dtype=torch.bool, device="meta")
    log_train_inference_stats(
        values,
        values,
        mask,
        StatsTracker(),
        extended=extended,
        versions=values.long(),
        current_version=3,
        advantages=values,
    )


def test_the_way_of_devices_without_short_cuts_finds_the_same():
    """Padding stays in place there and is replaced; on a CPU only valid tokens are looked at."""
    generator = torch.Generator().manual_seed(5)
    trainer = -3 * torch.rand(700, generator=generator).double()
    rollout = trainer + torch.randn(700, generator=generator).double()
    mask = torch.rand(700, generator=generator) < 0.6
    rollout[100:150] = trainer[100:150]
    chosen = trainer[mask], rollout[mask]
    trainer[~mask], rollout[~mask] = math.nan, math.inf
    for padded, alone in zip(
        _measured(mask, trainer, rollout, extended=True), _measured(None, *chosen, extended=True), strict=True
    ):
        torch.testing.assert_close(padded, alone, rtol=1e-13, atol=1e-13)


def held_bytes(root):
    """Memory of all tensors that can be reached from an object."""
    seen, waiting, storages = set(), [root], {}
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        else:
            waiting.extend(gc.get_referents(item))
    return sum(storages.values())


def test_retained_memory_does_not_grow_with_tokens():
    def retained(tokens):
        tracker = StatsTracker()
        for _ in range(3):
            logp = -torch.rand(2, tokens)
            log_train_inference_stats(logp, logp - 0.01, torch.ones(2, tokens, dtype=torch.bool), tracker)
        return held_bytes(tracker)

    assert 0 < retained(10) == retained(500_000) < 20_000


def test_numpy_reference_is_the_hand_computed_example():
    values = specified([-LN2, -LN8, -LN2, -LN2], [-LN8, -LN2, -LN2, -LN2], np.ones(4))
    assert values["kl_k3"] == pytest.approx(0.5625)
    assert values["ratio_outside_3"] == 0.5
