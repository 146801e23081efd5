"""Both observations together: what they record, what they refuse, what they cost."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from support.ppo_batches import held_bytes
from support.ppo_reference import below, specified

from areal_callbacks import stats_tracker
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.batch import PolicyBatch
from areal_callbacks.ppo.clip import Clip
from areal_callbacks.ppo.diagnostics import PolicyDiagnostics
from areal_callbacks.ppo.update import PolicyUpdate

PAGE = Path(__file__).parents[2] / "docs" / "ppo.md"


def test_a_batch_records_every_part():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    trainer_logp, rollout_logp = -torch.rand(2, 3), -torch.rand(2, 3)
    versions = torch.tensor([[3, 3, 4], [5, -1, -1]])
    tracker = StatsTracker()
    PolicyDiagnostics(tracker, extended=False).observe_rollout_batch(
        PolicyBatch(
            mask,
            trainer_logp=trainer_logp,
            rollout_logp=rollout_logp,
            advantages=torch.tensor([1.0, -1.0]),
            versions=versions,
            current_version=5,
        )
    )
    metrics = below("ppo_actor/", tracker.export())
    assert metrics["n_seqs"] == 2
    assert metrics["advantage_positive_fraction"] == metrics["update/version_stats/stale_token_fraction"] == 0.75
    expected = specified(trainer_logp.double().numpy(), rollout_logp.double().numpy(), mask.numpy())
    assert below("train_infer/", metrics) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("absent", ["trainer_logp", "rollout_logp", "versions", "current_version", "advantages"])
def test_what_is_missing_costs_only_its_own_metrics(absent):
    tokens = torch.zeros(2, 3)
    given = {"trainer_logp": tokens, "rollout_logp": tokens, "advantages": tokens, "versions": tokens.long()}
    given |= {"current_version": 1}
    del given[absent]
    tracker = StatsTracker()
    PolicyDiagnostics(tracker).observe_rollout_batch(PolicyBatch(torch.ones(2, 3), **given))
    names = below("ppo_actor/", tracker.export())
    found = {
        "train_infer/kl_k3": absent not in ("trainer_logp", "rollout_logp"),
        "train_infer/by_age/1/kl_k3": "logp" not in absent and "version" not in absent,
        "train_infer/by_advantage/zero/kl_k3": "logp" not in absent and absent != "advantages",
        "advantage_zero_fraction": absent != "advantages",
        "update/version_stats/stale_token_fraction": "version" not in absent,
        "n_seqs": True,
    }
    assert {name: name in names for name in found} == found


def test_parts_of_a_batch_can_be_recorded_alone():
    logp = torch.zeros(1, 2)
    batch = PolicyBatch(torch.ones(1, 2), trainer_logp=logp, rollout_logp=logp, versions=logp.long(), current_version=1)
    for observe, prefix in (("observe_mismatch", "train_infer/"), ("observe_versions", "update/version_stats/")):
        tracker = StatsTracker()
        getattr(PolicyDiagnostics(tracker), observe)(batch)
        metrics = tracker.export()
        assert metrics
        assert all(name.startswith(f"ppo_actor/{prefix}") for name in metrics)


def test_the_loop_of_the_page_runs():
    section = PAGE.read_text(encoding="utf-8").partition("## Your own loop")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    logp, ones = torch.zeros(4, 3), torch.ones(4, 3)
    names = {
        **{"mask": ones, "recomputed": logp, "sampled": logp, "advantages": torch.ones(4), "attention_mask": ones},
        **{"versions": ones.long(), "version": 2, "rewards": torch.ones(4), "policy": lambda part: part["old_logp"]},
        "minibatches": [{"mask": ones[rows], "old_logp": logp[rows], "advantages": ones[rows]} for rows in (0, 1)],
    }
    exec(code, names)
    metrics = below("ppo_actor/", stats_tracker.export_all())
    assert (metrics["n_seqs"], metrics["correct_n_seqs"], metrics["train_infer/n_valid_tokens"]) == (4, 4, 12)
    assert (metrics["update/n_valid_tokens"], metrics["update/actor_loss/avg"]) == (6, -1)
    assert metrics["update/version_stats/sample_staleness_theta_avg"] == 1


@pytest.mark.parametrize("shape", [(2, 3), (2, 0), (0, 3)])
def test_a_batch_without_valid_tokens_has_numbers_and_no_averages(shape):
    """Padding full of NaN, no columns, no rows."""
    mask, nan = torch.zeros(shape), torch.full(shape, math.nan)
    tracker = StatsTracker()
    diagnostics = PolicyDiagnostics(tracker)
    mismatch = {"trainer_logp": nan, "rollout_logp": nan, "versions": nan.long(), "current_version": 1}
    diagnostics.observe_rollout_batch(PolicyBatch(mask, advantages=nan[:, :1].sum(-1), **mismatch))
    diagnostics.observe_update(PolicyUpdate(mask, nan, nan, advantages=nan, clip=Clip(dual=3.0), sequence_level=True))
    assert below("ppo_actor/", tracker.export()) == {
        **{"n_seqs": shape[0], "n_tokens": mask.numel(), "n_valid_tokens": 0, "train_infer/n_valid_tokens": 0},
        **{"update/version_stats/n_valid_generated_tokens": 0, "update/n_valid_tokens": 0},
        **{"update/clipped_tokens": 0, "update/dual_clipped_tokens": 0},
    }


def observe_everything(diagnostics, make):
    """Both observations of two sequences with every field; ``make`` is given the shape of a tensor."""
    tokens, sequences = make(2, 6), make(2)
    diagnostics.observe_rollout_batch(
        PolicyBatch(
            tokens.bool(),
            **dict.fromkeys(("trainer_logp", "rollout_logp", "kl_rewards", "final_reward"), tokens),
            **dict.fromkeys(("advantages", "task_reward", "scored", "no_eos"), sequences),
            versions=tokens.long(),
            current_version=1,
            attention_mask=tokens.bool(),
        )
    )
    options = {"advantages": sequences, "entropy": tokens, "clip": Clip(dual=3.0), "sequence_level": True}
    diagnostics.observe_update(PolicyUpdate(tokens.bool(), tokens, tokens, **options))


@pytest.mark.parametrize("extended", [True, False])
def test_nothing_waits_for_the_device(extended):
    """Tensors without values raise on whatever would have to look at one."""
    diagnostics = PolicyDiagnostics(StatsTracker(), extended=extended)
    observe_everything(diagnostics, lambda *shape: torch.zeros(shape, device="meta"))


def test_retained_memory_does_not_grow_with_tokens():
    def retained(repetitions):
        tracker = StatsTracker()
        for _ in range(3):
            observe_everything(
                PolicyDiagnostics(tracker),
                lambda rows, *width: torch.rand(rows, *(repetitions * size for size in width)),
            )
        return held_bytes(tracker)

    assert 0 < retained(1) == retained(50_000) < 30_000
