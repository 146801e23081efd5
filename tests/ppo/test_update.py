"""Advantages, staleness and the standard statistics of batches and updates."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.ppo_reference import below

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.advantages import log_advantage_stats
from areal_callbacks.ppo.diagnostics import PolicyDiagnostics
from areal_callbacks.ppo.staleness import log_version_stats
from areal_callbacks.ppo.update import Clip, combine_rewards, log_batch_stats, log_update_stats

VERSION_STATS = "ppo_actor/update/version_stats/"


# -- advantages


def test_hand_computed_advantages():
    tracker = StatsTracker()
    log_advantage_stats(torch.tensor([[2.0, -1.0, 7.0]]), torch.tensor([[1, 1, 0]]), tracker)
    assert tracker.export() == {
        "ppo_actor/advantage_positive_fraction": 0.5,
        "ppo_actor/advantage_negative_fraction": 0.5,
        "ppo_actor/advantage_zero_fraction": 0.0,
    }


def test_advantages_pool_tokens_and_show_nan():
    tracker = StatsTracker()
    log_advantage_stats(torch.tensor([1.0, 0.0, math.nan]), torch.tensor([True, True, False]), tracker)
    log_advantage_stats(torch.tensor([0.0, -0.0]), torch.ones(2, dtype=torch.bool), tracker)
    assert tracker.export()["ppo_actor/advantage_zero_fraction"] == 0.75
    log_advantage_stats(torch.tensor([math.nan, 1.0]), torch.ones(2, dtype=torch.bool), tracker)
    assert all(math.isnan(value) for value in tracker.export().values())


def test_advantages_of_another_shape_raise():
    with pytest.raises(ValueError, match=r"advantages has shape \[2, 1\], its mask \[2, 3\]"):
        log_advantage_stats(torch.zeros(2, 1), torch.ones(2, 3), StatsTracker())


# -- staleness

HAND_COMPUTED = {
    **{f"sample_staleness_{kind}_avg": 1.5 for kind in ("theta", "proximal")},
    **{f"sample_staleness_{kind}_min": 1.0 for kind in ("theta", "proximal")},
    **{f"sample_staleness_{kind}_max": 2.0 for kind in ("theta", "proximal")},
    "stale_token_fraction": 1.0,
    "future_token_fraction": 0.0,
    "n_valid_generated_tokens": 2.0,
}


@pytest.mark.parametrize(("mask", "shifted"), [([0, 0, 1, 1], False), ([0, 1, 1, 0], True), ([0, 1, 1, 1], True)])
def test_hand_computed_versions(mask, shifted):
    versions, mask = torch.tensor([[-1, -1, 3, 4]]), torch.tensor([mask])
    before = versions.clone(), mask.clone()
    tracker = StatsTracker()
    log_version_stats(versions, mask, 5, tracker, mask_at_predictions=shifted)
    assert below(VERSION_STATS, tracker.export()) == HAND_COMPUTED
    assert torch.equal(versions, before[0])
    assert torch.equal(mask, before[1])


def record_versions(group):
    import torch.distributed as dist

    tracker = StatsTracker()
    versions = torch.tensor([5, 5, 6]) if dist.get_rank() else torch.tensor([1])
    log_version_stats(versions, torch.ones_like(versions), 5, tracker)
    return tracker.export(reduce_group=group)


def test_versions_pool_over_ranks(two_ranks):
    for metrics in two_ranks.run(record_versions):
        found = below(VERSION_STATS, metrics)
        assert found["sample_staleness_theta_avg"] == 0.75  # ages 4, 0, 0, -1
        assert found["sample_staleness_theta_min"] == -1.0
        assert found["sample_staleness_proximal_max"] == 4.0
        assert found["stale_token_fraction"] == 0.25
        assert found["future_token_fraction"] == 0.25
        assert found["n_valid_generated_tokens"] == 4.0


def test_no_generated_token_gives_no_averages():
    tracker = StatsTracker()
    log_version_stats(torch.tensor([-1, 3]), torch.tensor([1, 0]), 5, tracker)
    assert tracker.export() == {VERSION_STATS + "n_valid_generated_tokens": 0.0}


# -- the batch


def test_batch_statistics():
    mask = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 1]])
    attention = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]])
    advantages = torch.tensor([[9.0, 9, 1, 2], [9, -4, math.nan, 9], [9, 9, 9, 0.5]])
    tracker = StatsTracker()
    PolicyDiagnostics(tracker).observe_rollout_batch(
        mask,
        attention_mask=attention,
        advantages=advantages,
        kl_rewards=advantages * 2,
        final_reward=advantages + 1,
        task_reward=torch.tensor([1.0, 0.0, 5.0]),
        scored=torch.tensor([True, True, False]),
        no_eos=torch.tensor([True, False, False]),
    )
    metrics = below("ppo_actor/", tracker.export())
    averages = {
        "advantages": (-0.125, -4.0, 2.0),
        "kl_rewards": (-0.25, -8.0, 4.0),
        "final_reward": (0.875, -3.0, 3.0),
        "task_reward": (0.5, 0.0, 1.0),
        "prompt_len": (2.0, 1.0, 3.0),
        "seq_len": (10 / 3, 2.0, 4.0),
        "no_eos_ratios": (1 / 3, 0.0, 1.0),
    }
    expected = {"n_seqs": 3, "n_tokens": 10, "n_valid_tokens": 4, "correct_n_seqs": 1, "incorrect_n_seqs": 1}
    for name, values in averages.items():
        expected |= {f"{name}/{statistic}": value for statistic, value in zip(("avg", "min", "max"), values)}
    expected |= {
        f"advantage_{sign}_fraction": part for sign, part in zip(("positive", "negative", "zero"), (0.75, 0.25, 0))
    }
    assert metrics == pytest.approx(expected)


def test_batch_without_an_attention_mask_counts_positions():
    tracker = StatsTracker()
    log_batch_stats(torch.ones(2, 3), tracker=tracker)
    assert tracker.export() == {"ppo_actor/n_seqs": 2.0, "ppo_actor/n_tokens": 6.0, "ppo_actor/n_valid_tokens": 6.0}


def test_rewards_of_another_shape_raise_and_leave_nothing():
    tracker = StatsTracker()
    with pytest.raises(ValueError, match=r"task_reward has shape \[3, 1\], its mask \[3\]"):
        log_batch_stats(torch.ones(3, 2), tracker=tracker, task_reward=torch.zeros(3, 1))
    assert tracker.export() == {}


def test_a_shape_that_shows_late_leaves_nothing_either():
    tracker, tokens = StatsTracker(), torch.zeros(3, 2)
    for wrong in ("trainer_logp", "rollout_logp", "versions"):
        given = {"trainer_logp": tokens, "rollout_logp": tokens, "versions": tokens, wrong: torch.zeros(3, 1)}
        with pytest.raises(ValueError, match=rf"{wrong} has shape \[3, 1\], its mask \[3, 2\]"):
            PolicyDiagnostics(tracker).observe_rollout_batch(torch.ones(3, 2), current_version=1, **given)
    assert tracker.export() == {}


def test_a_batch_without_rows_raises_because_sequences_could_not_be_counted():
    tracker = StatsTracker()
    with pytest.raises(ValueError, match=r"mask has shape \[5\], expected \[sequences, tokens\]"):
        log_batch_stats(torch.ones(5), tracker=tracker, advantages=torch.zeros(5))
    assert tracker.export() == {}


def test_advantages_per_sequence_are_every_tokens():
    tracker = StatsTracker()
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    PolicyDiagnostics(tracker).observe_rollout_batch(mask, advantages=torch.tensor([1.0, -1.0]))
    assert tracker.export()["ppo_actor/advantage_positive_fraction"] == 0.75
    with pytest.raises(ValueError, match=r"advantages has shape \[3\]"):
        PolicyDiagnostics(tracker).observe_rollout_batch(mask, advantages=torch.tensor([1.0, -1.0, 0.0]))


def test_reward_functions_combine_without_those_that_gave_none():
    rewards, scored = combine_rewards(
        torch.tensor([[1.0, 2.0], [math.nan, 4.0], [math.nan] * 2]), torch.tensor([1.0, 0.5])
    )
    assert rewards.tolist() == [2.0, 2.0, 0.0]
    assert scored.tolist() == [True, True, False]


# -- the update


def surrogate(ratio, advantage, lower, upper, dual):
    """PPO's objective for one token, negated."""
    value = min(ratio * advantage, min(max(ratio, lower), upper) * advantage)
    if dual is not None and advantage < 0:
        value = max(value, dual * advantage)
    return -value


def recount(mask, new, old, advantages, entropy, dual, sequence_level):
    """The statistics of an update with bounds 0.8 and 1.3, token by token."""
    columns = {name: [] for name in ("importance_weight", "approx_kl", "new_logp", "old_logp", "entropy", "actor_loss")}
    low, high, twice = 0, 0, 0
    for row, valid in enumerate(mask.tolist()):
        tokens = [column for column, counts in enumerate(valid) if counts]
        gaps = [float(new[row, t]) - float(old[row, t]) for t in tokens]
        for token, gap in zip(tokens, gaps):
            ratio = math.exp(sum(gaps) / len(gaps) if sequence_level else gap)
            advantage = float(advantages[row, token])
            low += ratio < 0.8 and advantage < 0
            high += ratio > 1.3 and advantage > 0
            twice += dual is not None and ratio > dual and advantage < 0
            columns["importance_weight"].append(ratio)
            columns["approx_kl"].append(gap)
            columns["new_logp"].append(float(new[row, token]))
            columns["old_logp"].append(float(old[row, token]))
            columns["entropy"].append(float(entropy[row, token]))
            columns["actor_loss"].append(surrogate(ratio, advantage, 0.8, 1.3, dual))
    count = int(mask.sum())
    expected = {"n_valid_tokens": count, "clipped_tokens": low + high, "dual_clipped_tokens": twice}
    expected |= {"clip_ratio_low/avg": low / count, "clip_ratio_high/avg": high / count}
    expected |= {"clip_ratio/avg": (low + high) / count, "dual_clip_ratio/avg": twice / count}
    for name, values in columns.items():
        expected |= {f"{name}/avg": np.mean(values), f"{name}/min": min(values), f"{name}/max": max(values)}
    return expected


@pytest.mark.parametrize("dual", [None, 2.0])
@pytest.mark.parametrize("sequence_level", [False, True])
def test_update_statistics(dual, sequence_level):
    generator = torch.Generator().manual_seed(3)
    shape = (4, 25)
    new, old = (-2 * torch.rand(shape, generator=generator) for _ in range(2))
    advantages, entropy = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    mask = torch.rand(shape, generator=generator) < 0.6
    new[~mask] = math.nan
    tracker = StatsTracker()
    options = {"advantages": advantages, "entropy": entropy, "clip": Clip(0.8, 1.3, dual)}
    log_update_stats(mask, new, old, tracker=tracker, sequence_level=sequence_level, **options)
    metrics = below("ppo_actor/update/", tracker.export())
    expected = recount(mask, new, old, advantages, entropy, dual, sequence_level)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-10)
    assert expected["clipped_tokens"] > 0


def test_losses_without_clipping_record_no_clipping():
    tracker = StatsTracker()
    logp, mask = torch.zeros(1, 2), torch.ones(1, 2)
    PolicyDiagnostics(tracker).observe_update(mask, logp, logp, advantages=torch.ones(1), loss=torch.ones(1, 2))
    names = {name.split("/")[2] for name in tracker.export()}
    assert names == {"n_valid_tokens", "importance_weight", "approx_kl", "new_logp", "old_logp", "actor_loss"}


@pytest.mark.parametrize("shape", [(2, 3), (2, 0), (0, 3)])
def test_a_batch_without_valid_tokens_has_numbers_and_no_averages(shape):
    """Padding full of NaN, no columns, no rows."""
    mask, nan = torch.zeros(shape), torch.full(shape, math.nan)
    tracker = StatsTracker()
    diagnostics = PolicyDiagnostics(tracker)
    diagnostics.observe_rollout_batch(
        mask, trainer_logp=nan, rollout_logp=nan, advantages=nan[:, :1].sum(-1), versions=nan.long(), current_version=1
    )
    diagnostics.observe_update(mask, nan, nan, advantages=nan, clip=Clip(dual=3.0), sequence_level=True)
    assert below("ppo_actor/", tracker.export()) == {
        **{"n_seqs": shape[0], "n_tokens": mask.numel(), "n_valid_tokens": 0, "train_infer/n_valid_tokens": 0},
        **{"update/version_stats/n_valid_generated_tokens": 0, "update/n_valid_tokens": 0},
        **{"update/clipped_tokens": 0, "update/dual_clipped_tokens": 0},
    }


def test_every_observation_leaves_the_device_alone():
    """Tensors without values raise on whatever would have to look at one."""
    logp = torch.zeros(2, 4, device="meta")
    sequences = torch.zeros(2, device="meta")
    diagnostics = PolicyDiagnostics(StatsTracker())
    diagnostics.observe_rollout_batch(
        logp.bool(),
        trainer_logp=logp,
        rollout_logp=logp,
        advantages=sequences,
        versions=logp.long(),
        current_version=1,
        attention_mask=logp.bool(),
        task_reward=sequences,
    )
    diagnostics.observe_update(logp.bool(), logp, logp, advantages=sequences, clip=Clip(dual=3.0))
