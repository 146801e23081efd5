"""GRPO runs from outside: timing, exceptions, other losses, several ranks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from support.grpo_runs import SMALL, Capture, joined, rows_of
from support.ppo_reference import below, specified
from support.tiny_trainer import fresh_accelerator

from areal_callbacks import stats_tracker, workflow_context
from areal_callbacks.examples.grpo_mismatch import RolloutEngine, make_prompts, make_trainer
from areal_callbacks.integrations.transformers import AReaLMetricsCallback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
    # TRL calls Transformers under the older names.
    pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing(_enable|_disable)?` is deprecated:FutureWarning"),
]


@pytest.fixture(autouse=True)
def _eager():
    """TRL compiles its loss, which takes longer than the training here."""
    fresh_accelerator()
    with torch._dynamo.config.patch(disable=True):
        yield


WRAPPED = {
    "_generate_and_score_completions",
    "_generate",
    "_calculate_rewards",
    "_compute_loss",
    "_get_per_token_logps_and_entropies",
}


class SlowEngine(RolloutEngine):
    """Takes two seconds."""

    def __call__(self, prompts, trainer):
        time.sleep(2.0)
        return super().__call__(prompts, trainer)


def test_generation_is_timed_apart(tmp_path):
    trainer = make_trainer(str(tmp_path), 1, [AReaLMetricsCallback(ppo=False)], **SMALL)
    trainer.rollout_func = SlowEngine()
    trainer.train()
    (row,) = rows_of(trainer).values()
    assert row["timeperf/rollout"] >= 2.0
    assert row["train_perf/seconds"] < row["step_time"] - 1.9  # TRL's own time of the step, with generation
    assert not [name for name in row if name.startswith("ppo_actor")]


def test_reward_functions_record_into_their_phase(tmp_path):
    def reward(completions, **_):
        stats_tracker.get(workflow_context.stat_scope()).scalar(completions=float(len(completions)))
        return [float(len(completion)) for completion in completions]

    trainer = make_trainer(str(tmp_path), 2, [AReaLMetricsCallback()], **SMALL, per_device_eval_batch_size=8)
    trainer.reward_funcs = [reward]
    trainer.eval_dataset, trainer.args.eval_strategy, trainer.args.eval_steps = make_prompts(2), "steps", 1
    trainer.train()
    first, second = rows_of(trainer).values()
    assert first["rollout/completions"] == second["rollout/completions"] == 16.0
    assert "eval-rollout/completions" not in first
    assert second["eval-rollout/completions"] == 8.0


class BrokenEngine(RolloutEngine):
    """Fails at the second batch."""

    def __call__(self, prompts, trainer):
        if trainer.state.global_step == 1:
            raise RuntimeError("the engine is gone")
        return super().__call__(prompts, trainer)


def test_an_exception_passes_and_every_wrap_is_undone(tmp_path):
    trainer = make_trainer(str(tmp_path), 2, [AReaLMetricsCallback()], **SMALL)
    trainer.rollout_func = BrokenEngine()
    with pytest.raises(RuntimeError, match="the engine is gone"):
        trainer.train()
    assert not WRAPPED & vars(trainer).keys()


class BrokenReward:
    """Fails at the second batch."""

    __name__ = "broken_reward"

    def __init__(self):
        self.calls = 0

    def __call__(self, completions, **_):
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("the judge is gone")
        return [0.0] * len(completions)


def test_training_again_after_a_reward_function_raised(tmp_path):
    trainer = make_trainer(str(tmp_path), 2, [AReaLMetricsCallback()], **SMALL)
    trainer.reward_funcs = [BrokenReward()]
    with pytest.raises(RuntimeError, match="the judge is gone"):
        trainer.train()
    assert not WRAPPED & vars(trainer).keys()
    trainer.train()
    assert sorted(rows_of(trainer)) == [1, 2]
    for row in rows_of(trainer).values():
        assert row["ppo_actor/n_seqs"] == row["ppo_actor/incorrect_n_seqs"] == 16
        assert row["ppo_actor/advantage_zero_fraction"] == 1.0


class Unversioned(RolloutEngine):
    """Tells one version per completion instead of one per token."""

    def __call__(self, prompts, trainer):
        result = super().__call__(prompts, trainer)
        return result | {"versions": [versions[0] for versions in result["versions"]]}


def test_malformed_versions_cost_the_staleness_alone(tmp_path, caplog):
    trainer = make_trainer(str(tmp_path), 1, [AReaLMetricsCallback(ppo={"extended": False})], **SMALL)
    trainer.rollout_func = Unversioned()
    trainer.train()
    (row,) = rows_of(trainer).values()
    assert row["ppo_actor/train_infer/n_valid_tokens"] == row["ppo_actor/n_valid_tokens"] > 0
    assert row["ppo_actor/update/entropy/avg"] > 0
    assert not [name for name in row if "version" in name]
    assert [entry.message for entry in caplog.records if "rollout_func's versions" in entry.message]
    extensions = {"ratio_mean", "ess_fraction", "exact_match_fraction", "ratio_above_2", "logp_abs_diff/p99"}
    assert not extensions & below("ppo_actor/train_infer/", row).keys()


def test_a_batch_used_twice_within_a_step_is_compared_once(tmp_path):
    """Two passes, and two generations, before the optimizer steps: TRL recomputes nothing."""
    options = {**SMALL, "gradient_accumulation_steps": 8, "steps_per_generation": 2, "num_iterations": 2}
    trainer = make_trainer(str(tmp_path), 1, [AReaLMetricsCallback()], **options)
    capture = Capture(trainer)
    trainer.train()
    (row,) = rows_of(trainer).values()
    batches = [batch for _, batch in capture.batches]
    assert (len(batches), len(capture.losses)) == (2, 8)
    first = [capture.losses[index] for index in (0, 1, 4, 5)]
    sampled = joined(batch["sampling_per_token_logps"] for _, batch, _ in first)
    mask = joined(batch["completion_mask"] for _, batch, _ in first) != 0
    expected = specified(joined(logp for *_, logp in first), sampled, mask)
    found = below("ppo_actor/train_infer/", row)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9, abs=1e-15)
    tokens = sum(int(batch["completion_mask"].sum()) for batch in batches)
    assert row["ppo_actor/n_valid_tokens"] == found["n_valid_tokens"] == tokens
    assert row["ppo_actor/update/n_valid_tokens"] == 2 * tokens


def test_the_trainers_own_generation_has_known_versions_and_no_mismatch(tmp_path):
    """Two optimizer steps a batch: the second trains on tokens of the policy before the first."""
    options = {**SMALL, "gradient_accumulation_steps": 1, "steps_per_generation": 2}
    trainer = make_trainer(str(tmp_path), 2, [AReaLMetricsCallback()], **options)
    trainer.rollout_func = None
    trainer.train()
    ages = [row["ppo_actor/update/version_stats/sample_staleness_theta_avg"] for row in rows_of(trainer).values()]
    assert ages == [0.0, 1.0]
    assert not [name for row in rows_of(trainer).values() for name in row if name.startswith("ppo_actor/train_infer")]


def train_a_rank(_, folder):
    import torch.distributed as dist

    fresh_accelerator()
    torch._dynamo.config.disable = True
    trainer = make_trainer(folder, 1, [AReaLMetricsCallback()], **SMALL)
    trainer.train()
    (row,) = rows_of(trainer).values()
    local = trainer._buffered_inputs
    return dist.get_rank(), row, sum(int(batch["completion_mask"].sum()) for batch in local)


def test_two_ranks_pool(two_ranks, tmp_path):
    results = two_ranks.run(train_a_rank, str(tmp_path), timeout=150)
    tokens = sum(count for *_, count in results)
    for _, row, _ in results:
        assert row["ppo_actor/n_seqs"] == 32
        assert row["ppo_actor/train_infer/n_valid_tokens"] == row["ppo_actor/n_valid_tokens"] == tokens
        assert row["ppo_actor/task_reward/avg"] == pytest.approx(row["reward"], abs=1e-6)
    assert below("ppo_actor/", results[0][1]) == below("ppo_actor/", results[1][1])
    assert Path(tmp_path, "areal_metrics", "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "clipping"),
    [
        ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, True),
        ({"loss_type": "cispo"}, True),
        ({"loss_type": "sapo"}, False),
        ({"loss_type": "dapo", "mask_truncated_completions": True}, True),
    ],
)
def test_other_losses(tmp_path, caplog, options, clipping):
    trainer = make_trainer(str(tmp_path), 1, [AReaLMetricsCallback()], **SMALL, **options)
    trainer.train()
    (row,) = rows_of(trainer).values()
    found = {name.partition("/")[0] for name in below("ppo_actor/update/", row)}
    assert {"importance_weight", "entropy", "version_stats"} <= found
    assert ("clip_ratio" in found, "clipped_tokens" in found) == (clipping, clipping)
    assert ("actor_loss" in found) == (options["loss_type"] in ("grpo", "dapo"))
    assert not [entry for entry in caplog.records if "switched off" in entry.message]
