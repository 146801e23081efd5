"""Sizes, lengths, rewards and advantages of a batch, against hand computation."""

from __future__ import annotations

import math

import pytest
import torch
from support.ppo_reference import below

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.batch import PolicyBatch
from areal_callbacks.ppo.batch_stats import log_batch_stats


def record(batch):
    tracker = StatsTracker()
    log_batch_stats(batch, tracker)
    return below("ppo_actor/", tracker.export())


def test_batch_statistics():
    advantages = torch.tensor([[9.0, 9, 1, 2], [9, -4, math.nan, 9], [9, 9, 9, 0.5]])
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
    assert record(
        PolicyBatch(
            torch.tensor([[0, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 1]]),
            attention_mask=torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]]),
            advantages=advantages,
            kl_rewards=advantages * 2,
            final_reward=advantages + 1,
            task_reward=torch.tensor([1.0, 0.0, 5.0]),
            scored=torch.tensor([True, True, False]),
            no_eos=torch.tensor([True, False, False]),
        )
    ) == pytest.approx(expected)


def test_an_attention_mask_may_be_wider_than_the_mask():
    """Prompts before the responses, as most stacks have them; lengths that are given are not derived."""
    mask, attention = torch.tensor([[1, 1], [1, 0]]), torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]])
    derived = record(PolicyBatch(mask, attention_mask=attention))
    assert (derived["n_tokens"], derived["prompt_len/avg"], derived["seq_len/avg"]) == (6, 1.5, 3)
    lengths = {"prompt_len": torch.tensor([7, 9]), "seq_len": torch.tensor([10.0, 20.0])}
    given = record(PolicyBatch(mask, attention_mask=attention, **lengths))
    assert (given["n_tokens"], given["prompt_len/avg"], given["seq_len/avg"]) == (6, 8, 15)


def test_the_prompt_ends_with_the_first_generated_token():
    """Answers of an environment between two turns are no prompt."""
    attention = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]])
    mask = torch.tensor([[0, 0, 1, 0, 0, 1], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]])
    found = record(PolicyBatch(mask, attention_mask=attention))
    assert [found[f"prompt_len/{part}"] for part in ("min", "max")] == [2, 3]
    assert found["prompt_len/avg"] == pytest.approx((2 + 2 + 3) / 3)


@pytest.mark.parametrize("told_by_versions", [True, False])
def test_the_prompt_of_a_mask_at_the_predicting_positions(told_by_versions):
    attention, mask = torch.ones(1, 6), torch.tensor([[0, 0, 1, 1, 1, 0]])
    versions = torch.tensor([[-1, -1, -1, 4, 4, 5]])
    how = {"versions": versions} if told_by_versions else {"mask_at_predictions": True}
    assert record(PolicyBatch(mask, attention_mask=attention, **how))["prompt_len/avg"] == 3
    narrower = PolicyBatch(mask[:, :-1], attention_mask=attention)  # begins with what predicts the second token
    assert record(narrower)["prompt_len/avg"] == 3


def test_all_sequences_are_scored_if_nothing_else_is_said():
    metrics = record(PolicyBatch(torch.ones(3, 1), task_reward=torch.tensor([1.0, 0.0, -2.0])))
    assert (metrics["correct_n_seqs"], metrics["incorrect_n_seqs"], metrics["task_reward/min"]) == (1, 2, -2)


def test_batch_without_an_attention_mask_counts_positions():
    assert record(PolicyBatch(torch.ones(2, 3))) == {"n_seqs": 2.0, "n_tokens": 6.0, "n_valid_tokens": 6.0}
