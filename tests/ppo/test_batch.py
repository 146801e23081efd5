"""The record of a rollout batch: shapes that it takes and refuses, and its documentation."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from areal_callbacks.ppo.batch import PolicyBatch
from areal_callbacks.ppo.update import PolicyUpdate

PAGE = Path(__file__).parents[2] / "docs" / "ppo.md"

PER_TOKEN = ("trainer_logp", "rollout_logp", "versions", "kl_rewards", "final_reward")
PER_SEQUENCE = ("task_reward", "scored", "prompt_len", "seq_len", "no_eos")


def fields_of(record):
    return {field.name for field in dataclasses.fields(record)}


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 2), (2, 3), ()])
@pytest.mark.parametrize("name", PER_TOKEN)
def test_a_token_tensor_of_another_shape_raises(name, shape):
    with pytest.raises(ValueError, match=rf"{name} has shape \[.*\], its mask \[3, 2\]"):
        PolicyBatch(torch.ones(3, 2), **{name: torch.zeros(shape)})


@pytest.mark.parametrize("shape", [(2,), (3, 1), (1,), ()])
@pytest.mark.parametrize("name", PER_SEQUENCE)
def test_a_sequence_tensor_of_another_shape_raises(name, shape):
    with pytest.raises(ValueError, match=rf"{name} has shape \[.*\], expected \[3\]: one per sequence"):
        PolicyBatch(torch.ones(3, 2), **{name: torch.zeros(shape)})


@pytest.mark.parametrize("shape", [(6,), (2, 5), (3, 1, 5), (3, 1)])
def test_an_attention_mask_has_a_row_for_each_sequence_and_is_not_narrower(shape):
    with pytest.raises(ValueError, match=r"attention_mask has shape .*, expected \[3, 2 or more\]"):
        PolicyBatch(torch.ones(3, 2), attention_mask=torch.ones(shape))


def test_a_mask_without_rows_raises_because_sequences_could_not_be_counted():
    with pytest.raises(ValueError, match=r"mask has shape \[5\], expected \[sequences, tokens\]"):
        PolicyBatch(torch.ones(5))


def test_advantages_are_per_token_or_per_sequence():
    mask = torch.ones(2, 3)
    assert PolicyBatch(mask, advantages=torch.tensor([1.0, -2.0])).token_advantages.tolist() == [[1.0] * 3, [-2.0] * 3]
    given = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(PolicyBatch(mask, advantages=given).token_advantages, given)
    assert PolicyBatch(mask).token_advantages is None
    for shape in ((3,), (2, 1), (1, 3), ()):
        with pytest.raises(ValueError, match="advantages has shape"):
            PolicyBatch(mask, advantages=torch.zeros(shape))


def test_a_record_does_not_change():
    batch = PolicyBatch(torch.ones(3, 2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.advantages = torch.zeros(3, 7)
    with pytest.raises(ValueError, match="versions has shape"):
        dataclasses.replace(batch, versions=torch.zeros(3))


@pytest.mark.parametrize("record", [PolicyBatch, PolicyUpdate])
def test_every_field_is_documented(record):
    section = record.__doc__.partition("Attributes:")[2].partition("Raises:")[0]
    entries = dict(re.findall(r"^        (\w+): (.*)$", section, re.MULTILINE))
    fields = dataclasses.fields(record)
    assert [field.name for field in fields] == list(entries)
    tensors = [field.name for field in fields if "Tensor" in field.type]
    assert [name for name in tensors if not re.search(r"`\[.*\]`|shape of the mask", entries[name])] == []


def test_the_page_maps_fields_that_exist():
    table = PAGE.read_text(encoding="utf-8").partition("### Batches of other stacks")[2].partition("\n\n##")[0]
    batch = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    update = set(re.findall(r"^\| update: `(\w+)` \|", table, re.MULTILINE))
    assert {"mask", "trainer_logp", "rollout_logp", "advantages", "versions"} <= batch <= fields_of(PolicyBatch)
    assert {"new_logp", "old_logp"} <= update <= fields_of(PolicyUpdate)
