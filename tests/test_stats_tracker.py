"""The module functions, and the specification's examples as they are written there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch

from areal_callbacks import stats_tracker, workflow_context
from areal_callbacks.core.merge import merge_worker_stats


@pytest.fixture(autouse=True)
def _fresh_trackers():
    stats_tracker.collect_all()
    yield
    stats_tracker.collect_all()


# -- the specification's examples


def test_default_and_named_trackers():
    # Default tracker (training metrics)
    stats_tracker.scalar(learning_rate=0.001)

    # Named tracker (rollout metrics)
    stats_tracker.get("rollout").scalar(reward=0.5)

    assert stats_tracker.export_all() == {
        **{"learning_rate": 0.001, "learning_rate__count": 1.0},
        **{"rollout/reward": 0.5, "rollout/reward__count": 1.0},
    }


class RLVRWorkflow:
    async def _compute_rewards(self, resp, prompt_str, task_data):
        await asyncio.sleep(0)
        return task_data["reward"]

    async def _collect_samples(self, engine, req, prompt_str, task_data):
        resp = await engine.agenerate(req)
        reward = await self._compute_rewards(resp, prompt_str, task_data)

        # Log single scalar - appends to internal list
        # `workflow_context.stat_scope()` automatically differentiates evaluation/training scopes
        stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward)

        return resp, reward

    async def run(self, data, **extra_kwargs):
        num_turns, max_tokens, reward = data["num_turns"], data["max_tokens"], data["reward"]
        # `workflow_context.stat_scope()` automatically differentiates evaluation/training scopes
        stats_tracker.get(workflow_context.stat_scope()).scalar(
            num_turns=num_turns, max_tokens=max_tokens, reward=reward
        )
        return reward


def test_streaming_metrics_of_concurrent_episodes_and_evaluations():
    async def agenerate(req):
        await asyncio.sleep(0)
        return f"answer to {req}"

    async def main():
        workflow, engine = RLVRWorkflow(), SimpleNamespace(agenerate=agenerate)
        training = [workflow._collect_samples(engine, "q", "q", {"reward": reward}) for reward in (1.0, 0.0, 0.5)]
        with workflow_context.evaluation():
            evaluating = asyncio.create_task(workflow._collect_samples(engine, "q", "q", {"reward": 1.0}))
        await asyncio.gather(*training, evaluating)
        await workflow.run({"num_turns": 3, "max_tokens": 256, "reward": 1.0})

    asyncio.run(main())
    assert stats_tracker.export_all() == {
        **{"rollout/reward": 0.625, "rollout/reward__count": 4.0},
        **{"rollout/num_turns": 3.0, "rollout/num_turns__count": 1.0},
        **{"rollout/max_tokens": 256.0, "rollout/max_tokens__count": 1.0},
        **{"eval-rollout/reward": 1.0, "eval-rollout/reward__count": 1.0},
    }


def test_the_controller_merges_the_workers():
    exports = []
    for rewards in ([1.0], [0.0, 0.5]):
        for reward in rewards:
            stats_tracker.get("rollout").scalar(reward=reward)
        exports.append(stats_tracker.export_all())
    assert merge_worker_stats(exports) == {"rollout/reward": 0.5, "rollout/reward__count": 3.0}


def ppo_update(data):
    loss_mask = data["loss_mask"].bool()
    reward_score = data["rewards"]
    seqlens = data["seqlens"]

    # Define denominators (boolean masks)
    stats_tracker.denominator(
        n_seqs=torch.ones_like(reward_score, dtype=torch.bool),
        n_valid_tokens=loss_mask,
    )

    # Log tensor metrics with denominator reference
    stats_tracker.stat(
        advantages=data["advantages"],  # [batch, seq_len]
        kl_rewards=data["kl_rewards"],  # [batch, seq_len]
        denominator="n_valid_tokens",
    )

    stats_tracker.stat(
        task_reward=reward_score.float(),  # [batch]
        seq_len=seqlens.float(),  # [batch]
        denominator="n_seqs",
    )


def test_batch_metrics_of_a_ppo_update():
    ppo_update(
        {
            "loss_mask": torch.tensor([[0, 1, 1], [1, 0, 0]]),
            "rewards": torch.tensor([1.0, -1.0], dtype=torch.float16),
            "seqlens": torch.tensor([3, 1]),
            "advantages": torch.tensor([[9.0, 1.0, 2.0], [6.0, 9.0, 9.0]]),
            "kl_rewards": torch.zeros(2, 3),
        }
    )
    assert stats_tracker.export_all(reduce_group=None) == {
        **{"n_seqs": 2.0, "n_valid_tokens": 3.0},
        **{"advantages/avg": 3.0, "advantages/min": 1.0, "advantages/max": 6.0},
        **{"kl_rewards/avg": 0.0, "kl_rewards/min": 0.0, "kl_rewards/max": 0.0},
        **{"task_reward/avg": 0.0, "task_reward/min": -1.0, "task_reward/max": 1.0},
        **{"seq_len/avg": 2.0, "seq_len/min": 1.0, "seq_len/max": 3.0},
    }


def test_the_api_reference():
    mask, tensor = torch.tensor([1, 1, 0]), torch.tensor([0.1, 0.9, 7.0], dtype=torch.float64)
    stats_tracker.scalar(lr=0.001, eps=0.2)
    stats_tracker.denominator(valid=mask.bool())
    stats_tracker.stat(loss=tensor, denominator="valid")
    # Exports: {"loss/avg": 0.5, "loss/min": 0.1, "loss/max": 0.9}
    assert stats_tracker.export_all() == {
        **{"lr": 0.001, "lr__count": 1.0, "eps": 0.2, "eps__count": 1.0, "valid": 2.0},
        **{"loss/avg": 0.5, "loss/min": 0.1, "loss/max": 0.9},
    }


def test_scoping():
    loss_tensor = torch.tensor([1.0, 3.0])
    stats_tracker.denominator(valid=torch.ones(2, dtype=torch.bool))
    with stats_tracker.scope("ppo_actor"), stats_tracker.scope("update"):
        stats_tracker.stat(loss=loss_tensor, denominator="valid")
        # Key: "ppo_actor/update/loss/avg"
    assert stats_tracker.export_all()["ppo_actor/update/loss/avg"] == 2.0


def test_timing():
    actor, dataloader = SimpleNamespace(prepare_batch=lambda loader, workflow: list(loader)), [1, 2]
    with stats_tracker.record_timing("rollout"):
        batch = actor.prepare_batch(dataloader, None)
    # Key: "timeperf/rollout"
    assert batch == [1, 2]
    assert stats_tracker.export_all().keys() == {"timeperf/rollout", "timeperf/rollout__count"}


def test_named_trackers():
    group = None
    # Training metrics (default tracker)
    stats_tracker.scalar(grad_norm=1.5)

    # Rollout metrics
    stats_tracker.get("rollout").scalar(reward=0.8)

    # Evaluation metrics
    stats_tracker.get("eval-rollout").scalar(reward=0.9)

    # Export from all trackers
    all_stats = stats_tracker.export_all(reduce_group=group)
    assert {name: value for name, value in all_stats.items() if not name.endswith("__count")} == {
        **{"grad_norm": 1.5, "rollout/reward": 0.8, "eval-rollout/reward": 0.9}
    }


# -- what the examples do not show


def test_a_name_is_one_tracker_and_no_name_is_the_default():
    assert stats_tracker.get("rollout") is stats_tracker.get("/rollout/")
    stats_tracker.get().scalar(x=1.0)
    assert stats_tracker.export() == {"x": 1.0, "x__count": 1.0}


def test_export_of_the_default_tracker_leaves_the_named_ones():
    stats_tracker.scalar(a=1.0, b=2.0)
    stats_tracker.get("rollout").scalar(a=3.0)
    assert stats_tracker.export(key="a") == {"a": 1.0, "a__count": 1.0}
    assert stats_tracker.export_all() == {"b": 2.0, "b__count": 1.0, "rollout/a": 3.0, "rollout/a__count": 1.0}


def test_export_all_without_reset_keeps_everything():
    stats_tracker.scalar(a=1.0)
    assert stats_tracker.export_all(reset=False) == stats_tracker.export_all() == {"a": 1.0, "a__count": 1.0}
    assert stats_tracker.export_all() == {}


def test_equal_keys_of_two_trackers_are_pooled_and_not_overwritten():
    stats_tracker.get("rollout").scalar(reward=1.0)
    with stats_tracker.scope("rollout"):
        stats_tracker.scalar(reward=4.0)
        stats_tracker.scalar(reward=4.0)
    assert stats_tracker.export_all() == {"rollout/reward": 3.0, "rollout/reward__count": 3.0}


def test_equal_keys_of_two_kinds_are_left_out_with_one_message(caplog):
    for _ in range(2):
        stats_tracker.get("rollout").scalar(reward=1.0)
        with stats_tracker.scope("rollout"):
            stats_tracker.stat_compact(torch.ones(1, dtype=torch.bool), reward=torch.ones(1))
        assert stats_tracker.export_all() == {}
    (message,) = caplog.messages
    assert "'rollout/reward' as SCALAR" in message
    assert "'rollout/reward' as AVG_MIN_MAX" in message


def test_module_functions_share_the_default_tracker():
    @stats_tracker.scope_func_wrapper("wrapped")
    def work():
        stats_tracker.scalar(x=1.0)
        with stats_tracker.disable_scope():
            stats_tracker.scalar(y=2.0)

    work()
    assert stats_tracker.export() == {"wrapped/x": 1.0, "wrapped/x__count": 1.0, "y": 2.0, "y__count": 1.0}


@pytest.mark.parametrize("name", stats_tracker.__all__)
def test_public_names_exist(name):
    assert getattr(stats_tracker, name) is not None
