"""A GRPO run with the callback alone, recomputed from what went through that run's own methods."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support.grpo_runs import SMALL, Capture, joined, rows_of
from support.ppo_reference import below, specified
from support.tiny_trainer import fresh_accelerator

from areal_callbacks.examples.grpo_mismatch import NEW_TOKENS, make_prompts, make_trainer
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
        check_update(row, batch, logp)
        clipped += found["update/clipped_tokens"]
    assert clipped > 0


def check_update(row, batch, logp):
    """What a forward of the update recorded, against its tensors and against TRL's own metrics."""
    mask, update = batch["completion_mask"].bool(), below("ppo_actor/update/", row)
    gap = (logp.double() - batch["old_per_token_logps"].double())[mask].numpy()
    assert update["approx_kl/avg"] == pytest.approx(gap.mean(), rel=1e-9, abs=1e-15)
    assert update["importance_weight/max"] == pytest.approx(np.exp(gap).max())
    for name, theirs in {"clip_ratio": "region", "clip_ratio_low": "low", "clip_ratio_high": "high"}.items():
        assert update[f"{name}/avg"] == pytest.approx(row[f"clip_ratio/{theirs}_mean"], abs=1e-6)
    assert update["entropy/avg"] == pytest.approx(row["entropy"], rel=1e-5)
    advantages = batch["advantages"].unsqueeze(1).expand(mask.shape)[mask].numpy()
    assert update["dual_clipped_tokens"] == ((np.exp(gap) > 1.5) & (advantages < 0)).sum()
