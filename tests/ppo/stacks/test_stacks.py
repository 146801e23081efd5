"""Batches of other stacks, in exactly the shapes that their released sources have; expected values by hand.

Three sequences: prompts of 2, 3 and 1 tokens; the second has an answer of an environment between two generated tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.ppo_reference import below
from torch import Tensor

from areal_callbacks import PolicyBatch, PolicyDiagnostics
from areal_callbacks.core.tracker import StatsTracker

PROMPTS = [2, 3, 1]
MASKS = [[1, 1], [1, 0, 1], [1]]
RESPONSES = [len(mask) for mask in MASKS]
TRAINER = [[-1.0, -2.0], [-1.0, 9.0, -3.0], [-1.0]]
ROLLOUT = [[-1.5, -2.0], [-1.0, 9.0, -1.0], [-1.0]]
ADVANTAGES = [1.0, -1.0, 0.0]
REWARDS = [1.0, 0.0, 2.0]
EXPECTED = {
    "n_seqs": 3,
    "n_tokens": 12,
    "n_valid_tokens": 5,
    "prompt_len/avg": 2.0,
    "seq_len/avg": 4.0,
    "seq_len/max": 6.0,
    "advantage_positive_fraction": 2 / 5,
    "advantage_negative_fraction": 2 / 5,
    "advantage_zero_fraction": 1 / 5,
    "task_reward/avg": 1.0,
    "correct_n_seqs": 2,
    "train_infer/n_valid_tokens": 5,
    "train_infer/logp_diff/min": -2.0,
    "train_infer/logp_diff/max": 0.5,
    "train_infer/kl_k1": (2.0 - 0.5) / 5,
    "train_infer/exact_match_fraction": 3 / 5,
}


def record(batch: PolicyBatch) -> dict[str, float]:
    diagnostics = PolicyDiagnostics(StatsTracker())
    diagnostics.observe_rollout_batch(batch)
    assert diagnostics.tracker is not None
    return below("ppo_actor/", diagnostics.tracker.export())


def check(batch: PolicyBatch, **more: float) -> None:
    found = record(batch)
    assert {name: found.get(name) for name in {**EXPECTED, **more}} == pytest.approx({**EXPECTED, **more})


def pad(rows: list[Any], width: int, left: list[int] | None = None) -> Tensor:
    """Rows from an offset on, zeros around: ``[3, width]``."""
    padded = torch.zeros(len(rows), width)
    for index, row in enumerate(rows):
        begin = 0 if left is None else left[index]
        padded[index, begin : begin + len(row)] = torch.tensor(row, dtype=torch.float32)
    return padded


def last_token(values: list[float]) -> list[list[float]]:
    return [[0.0] * (length - 1) + [value] for value, length in zip(values, RESPONSES)]


def spread(values: list[float]) -> list[list[float]]:
    return [[value] * length for value, length in zip(values, RESPONSES)]


# -- verl 0.9.1


def verl_padded() -> dict[str, Tensor]:
    """Of the classic trainer: prompts of 4 padded on the left, responses of 3 on the right."""
    attention = pad([[1] * (p + r) for p, r in zip(PROMPTS, RESPONSES)], 7, [4 - prompt for prompt in PROMPTS]).long()
    return {
        "prompts": torch.zeros(3, 4, dtype=torch.long),
        "responses": torch.zeros(3, 3, dtype=torch.long),
        "attention_mask": attention,
        "response_mask": pad(MASKS, 3).long(),
        "old_log_probs": pad(TRAINER, 3),
        "rollout_log_probs": pad(ROLLOUT, 3),
        "advantages": pad(spread(ADVANTAGES), 3),
        "token_level_scores": pad(last_token(REWARDS), 3),
        "token_level_rewards": pad(last_token(REWARDS), 3) - 0.25 * pad(MASKS, 3),
    }


def nested(rows: list[list[float]]) -> Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def verl_transfer_queue() -> dict[str, Tensor]:
    """Of the default trainer: jagged, without an attention mask, scores as ``rm_scores``."""
    return {
        "prompts": nested([[7.0] * length for length in PROMPTS]),
        "responses": nested([[7.0] * length for length in RESPONSES]),
        "response_mask": nested(MASKS),
        "old_log_probs": nested(TRAINER),
        "rollout_log_probs": nested(ROLLOUT),
        "advantages": nested(spread(ADVANTAGES)),
        "rm_scores": nested(last_token(REWARDS)),
    }


@dataclass
class DataProto:
    batch: dict[str, Tensor]


@pytest.mark.parametrize("wrap", [DataProto, lambda batch: batch])
def test_verl(wrap: Any) -> None:
    kl = {"kl_rewards/avg": -0.25, "final_reward/max": 1.75, "no_eos_ratios/avg": 1 / 3}
    check(PolicyDiagnostics.from_verl(wrap(verl_padded())), **kl)


def test_verl_from_the_transfer_queue() -> None:
    batch = verl_transfer_queue()
    check(PolicyDiagnostics.from_verl(batch), **{"final_reward/max": 2.0})
    padded = {name: values.to_padded_tensor(0) for name, values in batch.items()}
    lengths = {"prompt_length": torch.tensor(PROMPTS).float(), "response_length": torch.tensor(RESPONSES).float()}
    check(PolicyDiagnostics.from_verl({**padded, **lengths}))


def test_verl_versions_of_trajectories() -> None:
    versions = torch.tensor([4, 3, 4])
    batch = PolicyDiagnostics.from_verl(verl_transfer_queue(), versions=versions, current_version=4)
    check(batch, **{"update/version_stats/sample_staleness_theta_avg": 2 / 5})


def test_a_tensordict_is_a_mapping_too() -> None:
    tensordict = pytest.importorskip("tensordict")
    check(PolicyDiagnostics.from_verl(DataProto(tensordict.TensorDict(verl_padded(), batch_size=3))))


# -- OpenRLHF 0.11.2


@dataclass
class Experience:
    """The fields of ``openrlhf.trainer.ppo_utils.experience.Experience`` that are read."""

    attention_mask: Tensor
    action_mask: Tensor
    action_log_probs: Tensor
    rollout_log_probs: Tensor
    advantages: Tensor
    rewards: Tensor
    truncated: Tensor


def test_openrlhf() -> None:
    """Prompt and response from the left, actions at the positions that predict: one less than the sequence."""
    begins = [prompt - 1 for prompt in PROMPTS]
    experience = Experience(
        attention_mask=pad([[1] * (p + r) for p, r in zip(PROMPTS, RESPONSES)], 6).long(),
        action_mask=pad(MASKS, 5, begins).bool(),
        action_log_probs=pad(TRAINER, 5, begins),
        rollout_log_probs=pad(ROLLOUT, 5, begins),
        advantages=pad(spread(ADVANTAGES), 5, begins),
        rewards=torch.tensor(REWARDS),
        truncated=torch.tensor([False, True, False]),
    )
    check(PolicyDiagnostics.from_openrlhf(experience), **{"no_eos_ratios/avg": 1 / 3})


# -- slime 0.3.1


def slime(**changes: Any) -> dict[str, Any]:
    return {
        "loss_masks": [torch.tensor(mask, dtype=torch.int) for mask in MASKS],
        "total_lengths": [prompt + response for prompt, response in zip(PROMPTS, RESPONSES)],
        "response_lengths": RESPONSES,
        "log_probs": [torch.tensor(row) for row in TRAINER],
        "rollout_log_probs": [torch.tensor(row) for row in ROLLOUT],
        "advantages": [torch.tensor(row) for row in spread(ADVANTAGES)],
        "raw_reward": REWARDS,
        "truncated": [0, 1, 0],
        **changes,
    }


def test_slime() -> None:
    check(PolicyDiagnostics.from_slime(slime()), **{"no_eos_ratios/avg": 1 / 3})
    check(PolicyDiagnostics.from_slime(slime(loss_masks=MASKS, rollout_log_probs=ROLLOUT)))


def test_slime_versions_are_texts_of_generation_calls() -> None:
    """One that is not known token by token, or no number, is not counted."""
    versions = [["000004"], ["2", "3"], ["default"]]
    stats = "update/version_stats/"
    batch = PolicyDiagnostics.from_slime(slime(), weight_versions=versions, current_version=5)
    check(batch, **{f"{stats}n_valid_generated_tokens": 2, f"{stats}sample_staleness_theta_avg": 1.0})


# -- NeMo-RL 0.7.0


def nemo_rl(**changes: Tensor) -> dict[str, Tensor]:
    """At the tokens, prompts on the left; the advantage is that of the sample everywhere."""
    return {
        "input_ids": torch.zeros(3, 6, dtype=torch.long),
        "input_lengths": torch.tensor([p + r for p, r in zip(PROMPTS, RESPONSES)]),
        "token_mask": pad(MASKS, 6, PROMPTS),
        "sample_mask": torch.ones(3),
        "prev_logprobs": pad(TRAINER, 6, PROMPTS),
        "generation_logprobs": pad(ROLLOUT, 6, PROMPTS),
        "advantages": torch.tensor(ADVANTAGES).unsqueeze(-1).expand(3, 6),
        **changes,
    }


def test_nemo_rl() -> None:
    repeated = {"total_reward": torch.tensor(REWARDS), "truncated": torch.tensor([False, True, False])}
    check(PolicyDiagnostics.from_nemo_rl(nemo_rl(), repeated_batch=repeated), **{"no_eos_ratios/avg": 1 / 3})


def test_nemo_rl_leaves_masked_samples_out_of_the_loss_alone() -> None:
    masked = nemo_rl(sample_mask=torch.tensor([1.0, 0.0, 1.0]))
    versions = torch.tensor([1, 1, 2])
    found = record(PolicyDiagnostics.from_nemo_rl(masked, versions=versions, current_version=2))
    names = ("n_seqs", "n_valid_tokens", "prompt_len/avg", "update/version_stats/sample_staleness_theta_avg")
    assert [found[name] for name in names] == pytest.approx([3, 3, 2.0, 2 / 3])


# -- what a batch lacks


@pytest.mark.parametrize(
    ("adapt", "batch", "name"),
    [
        (PolicyDiagnostics.from_verl, {}, "response_mask"),
        (PolicyDiagnostics.from_slime, {}, "loss_masks"),
        (PolicyDiagnostics.from_nemo_rl, {}, "token_mask"),
    ],
)
def test_a_batch_without_a_mask_is_refused(adapt: Any, batch: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"the batch has no {name}"):
        adapt(batch)


def test_only_the_mask_is_needed() -> None:
    mask = pad(MASKS, 3)
    assert record(PolicyDiagnostics.from_verl({"response_mask": mask})).keys() == {
        "n_seqs",
        "n_tokens",
        "n_valid_tokens",
    }
    assert record(PolicyDiagnostics.from_slime({"loss_masks": MASKS}))["n_valid_tokens"] == 5
    assert record(PolicyDiagnostics.from_nemo_rl({"token_mask": pad(MASKS, 6, PROMPTS)}))["n_valid_tokens"] == 5
