"""A GRPO run with the callback alone, recomputed from what went through that run's own methods."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from ppo.reference import below, specified
from tiny_trainer import fresh_accelerator

from areal_callbacks.examples.grpo_mismatch import NEW_TOKENS, RolloutEngine, make_prompts, make_trainer
from areal_callbacks.integrations.transformers import AReaLMetricsCallback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
    # TRL calls Transformers under the older names.
    pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing(_enable|_disable)?` is deprecated:FutureWarning"),
]

SMALL = {"per_device_train_batch_size": 8, "num_generations": 4}


@pytest.fixture(autouse=True)
def _eager():
    """TRL compiles its loss, which takes longer than the training here."""
    fresh_accelerator()
    with torch._dynamo.config.patch(disable=True):
        yield


class Capture:
    """Keeps what a trainer's methods are given and return in training; put in place before training starts."""

    def __init__(self, trainer):
        self.batches, self.losses, self.forwards = [], [], 0
        self.trainer = trainer
        for name in ("_generate_and_score_completions", "_compute_loss", "_get_per_token_logps_and_entropies"):
            setattr(trainer, name, self._around(getattr(trainer, name), getattr(self, name)))
        trainer.model.register_forward_pre_hook(self._count)
        self.attributes = dict(vars(trainer))

    def _around(self, original, seen):
        def wrapped(*args, **kwargs):
            result = original(*args, **kwargs)
            if self.trainer.model.training:
                seen(result, args)
            return result

        return wrapped

    def _count(self, *_):
        self.forwards += 1

    def _generate_and_score_completions(self, batch, args):
        kept = {name: value.clone() for name, value in batch.items() if isinstance(value, torch.Tensor)}
        self.batches.append((self.trainer.state.global_step, kept))

    def _get_per_token_logps_and_entropies(self, result, args):
        self.logp = result[0].detach().clone()

    def _compute_loss(self, loss, args):
        self.losses.append((self.trainer.state.global_step, dict(args[1]), self.logp))


def rows_of(trainer):
    """Step → what was logged for it."""
    return {row["step"]: row for row in trainer.state.log_history if "train_perf/tokens" in row and "loss" in row}


def joined(parts):
    """Tensors of several micro-batches, flattened into one array."""
    return np.concatenate([part.double().numpy().ravel() for part in parts])


@pytest.fixture(scope="module")
def aligned(tmp_path_factory):
    """TRL recomputes no log-probabilities: a batch is used up within the optimizer step that it was generated for."""
    with torch._dynamo.config.patch(disable=True):
        folder = tmp_path_factory.mktemp("grpo")
        trainer = make_trainer(str(folder), 3, [AReaLMetricsCallback()], report_to="tensorboard", **SMALL)
        capture = Capture(trainer)
        trainer.train()
        return trainer, capture, folder


def test_mismatch_of_the_first_window_is_recomputed_from_the_run(aligned):
    trainer, capture, _ = aligned
    rows = rows_of(trainer)
    assert sorted(rows) == [1, 2, 3]
    for step, row in rows.items():
        losses = [entry for entry in capture.losses if entry[0] == step - 1]
        assert len(losses) == 2
        assert all("old_per_token_logps" not in batch for _, batch, _ in losses)
        sampled = joined(batch["sampling_per_token_logps"] for _, batch, _ in losses)
        mask = joined(batch["completion_mask"] for _, batch, _ in losses) != 0
        expected = specified(joined(logp for *_, logp in losses), sampled, mask)
        found = below("ppo_actor/train_infer/", row)
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9, abs=1e-15)
        assert found["logp_abs_diff/avg"] > 1e-5  # bfloat16 is no float32


def test_staleness_is_that_of_the_rollout_engine(aligned):
    """The engine gets new weights every second step: ages 0, 1, 0."""
    for step, row in rows_of(aligned[0]).items():
        found = below("ppo_actor/update/version_stats/", row)
        age = float((step - 1) % 2)
        assert found["sample_staleness_theta_avg"] == found["sample_staleness_proximal_max"] == age
        assert found["stale_token_fraction"] == age
        assert found["n_valid_generated_tokens"] == row["ppo_actor/n_valid_tokens"]
        assert row[f"ppo_actor/train_infer/by_age/{int(age)}/logp_abs_diff"] == pytest.approx(
            row["ppo_actor/train_infer/logp_abs_diff/avg"]
        )


def test_lengths_rewards_and_advantages_are_those_of_the_batch(aligned):
    trainer, capture, _ = aligned
    for step, row in rows_of(trainer).items():
        (batch,) = (batch for at, batch in capture.batches if at == step - 1)
        completion, prompt = batch["completion_mask"], batch["prompt_mask"]
        expected = {
            "n_seqs": 16,
            "n_tokens": int(completion.sum() + prompt.sum()),
            "n_valid_tokens": int(completion.sum()),
            "prompt_len/avg": 4.0,
            "seq_len/avg": 4 + completion.sum(1).double().mean().item(),
            "no_eos_ratios/avg": row["completions/clipped_ratio"],
            "advantages/avg": (batch["advantages"].double().unsqueeze(1) * completion).sum().item()
            / completion.sum().item(),
            "task_reward/avg": row["reward"],
        }
        for sign, chosen in (("positive", batch["advantages"] > 0), ("zero", batch["advantages"] == 0)):
            part = (chosen.unsqueeze(1) & (completion == 1)).sum().item() / completion.sum().item()
            expected[f"advantage_{sign}_fraction"] = part
        found = below("ppo_actor/", row)
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert found["correct_n_seqs"] + found["incorrect_n_seqs"] == 16
        assert found["seq_len/max"] <= 4 + NEW_TOKENS
        assert row["train_perf/tokens"] == expected["n_tokens"]


def test_the_same_numbers_reach_tensorboard_and_the_file(aligned):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer, _, folder = aligned
    lines = [json.loads(line) for line in (folder / "areal_metrics" / "metrics.jsonl").read_text().splitlines()]
    in_file = {
        line["step"]: line["metrics"] for line in lines if line["kind"] == "metrics" and "loss" in line["metrics"]
    }
    (events,) = folder.rglob("events.out.tfevents.*")
    accumulator = EventAccumulator(str(events)).Reload()
    for name in (
        "ppo_actor/train_infer/kl_k3",
        "ppo_actor/update/entropy/avg",
        "ppo_actor/train_infer/logp_abs_diff/p99",
    ):
        logged = {step: row[name] for step, row in rows_of(trainer).items()}
        assert {step: metrics[name] for step, metrics in in_file.items()} == logged
        assert {event.step: event.value for event in accumulator.Scalars(name)} == pytest.approx(logged, rel=1e-6)


def test_every_wrap_is_undone(aligned):
    trainer, capture, _ = aligned
    for name in ("_generate_and_score_completions", "_compute_loss", "_get_per_token_logps_and_entropies"):
        assert vars(trainer)[name] is capture.attributes[name]
    assert "_calculate_rewards" not in vars(trainer)
    assert "_generate" not in vars(trainer)


def test_updates_are_bit_identical_without_the_callback_and_no_forward_is_added(aligned, tmp_path):
    trainer, capture, _ = aligned
    state = torch.get_rng_state()
    plain = make_trainer(str(tmp_path), 3, [], **SMALL)
    bare = Capture(plain)
    plain.train()
    assert capture.forwards == bare.forwards
    for (name, mine), theirs in zip(trainer.model.named_parameters(), plain.model.parameters()):
        assert torch.equal(mine, theirs), name
    torch.set_rng_state(state)


def test_recomputed_log_probabilities_are_compared_before_the_first_update(tmp_path):
    """Two passes over a batch that lasts two optimizer steps: TRL recomputes the old log-probabilities."""
    options = {
        **SMALL,
        "gradient_accumulation_steps": 1,
        "num_iterations": 2,
        "learning_rate": 2e-2,
        "epsilon": 0.05,
        "delta": 1.5,
        "per_device_eval_batch_size": 8,
    }
    trainer = make_trainer(str(tmp_path), 4, [AReaLMetricsCallback()], **options)
    trainer.eval_dataset, trainer.args.eval_strategy, trainer.args.eval_steps = make_prompts(2), "steps", 1
    capture = Capture(trainer)
    trainer.train()
    assert [row for row in trainer.state.log_history if "eval_reward" in row]
    rows = rows_of(trainer)
    clipped = 0.0
    for step, row in rows.items():
        found = below("ppo_actor/", row)
        generated = [batch for at, batch in capture.batches if at == step - 1]
        assert len(generated) == step % 2
        for batch in generated:
            arguments = (batch[name] for name in ("old_per_token_logps", "sampling_per_token_logps", "completion_mask"))
            expected = specified(*(tensor.double().numpy() for tensor in arguments))
            mismatch = below("train_infer/", found)
            assert {name: mismatch[name] for name in expected} == pytest.approx(expected, rel=1e-9, abs=1e-15)
            assert found["n_seqs"] == 8
        if not generated:
            assert not [name for name in found if name.startswith(("train_infer", "n_seqs", "task_reward"))]
        ((_, batch, logp),) = (entry for entry in capture.losses if entry[0] == step - 1)
        mask = batch["completion_mask"].bool()
        gap = (logp.double() - batch["old_per_token_logps"].double())[mask].numpy()
        update = below("update/", found)
        assert update["approx_kl/avg"] == pytest.approx(gap.mean(), rel=1e-9, abs=1e-15)
        assert update["importance_weight/max"] == pytest.approx(np.exp(gap).max())
        assert update["clip_ratio/avg"] == pytest.approx(row["clip_ratio/region_mean"], abs=1e-6)
        assert update["clip_ratio_low/avg"] == pytest.approx(row["clip_ratio/low_mean"], abs=1e-6)
        assert update["clip_ratio_high/avg"] == pytest.approx(row["clip_ratio/high_mean"], abs=1e-6)
        assert update["entropy/avg"] == pytest.approx(row["entropy"], rel=1e-5)
        advantages = batch["advantages"].unsqueeze(1).expand(mask.shape)[mask].numpy()
        assert update["dual_clipped_tokens"] == ((np.exp(gap) > 1.5) & (advantages < 0)).sum()
        clipped += update["clipped_tokens"]
    assert clipped > 0


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
    assert not [
        name for name in vars(trainer) if name in ("_generate_and_score_completions", "_compute_loss", "_generate")
    ]


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
