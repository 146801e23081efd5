"""The record of a training forward: shapes that it takes and refuses."""

from __future__ import annotations

import pytest
import torch

from areal_callbacks.ppo.update import PolicyUpdate


@pytest.mark.parametrize("shape", [(4,), (3, 1), (1, 4), (4, 3), ()])
@pytest.mark.parametrize("name", ["new_logp", "old_logp", "entropy", "loss"])
def test_a_tensor_of_another_shape_raises(name, shape):
    logp = {"new_logp": torch.zeros(3, 4), "old_logp": torch.zeros(3, 4)}
    with pytest.raises(ValueError, match=rf"{name} has shape \[.*\], its mask \[3, 4\]"):
        PolicyUpdate(torch.ones(3, 4), **{**logp, name: torch.zeros(shape)})


@pytest.mark.parametrize("shape", [(4,), (1,), (3, 1), (1, 4), ()])
def test_advantages_of_another_shape_raise(shape):
    logp = torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"advantages has shape \[.*\], its mask \[3, 4\]"):
        PolicyUpdate(torch.ones(3, 4), logp, logp, advantages=torch.zeros(shape))


def test_any_number_of_dimensions():
    logp = torch.zeros(2, 3, 4)
    update = PolicyUpdate(torch.ones(2, 3, 4), logp, logp, advantages=torch.arange(6.0).reshape(2, 3))
    assert update.token_advantages[1, 2].tolist() == [5.0] * 4
    flat = PolicyUpdate(torch.ones(4), logp[0, 0], logp[0, 0], advantages=torch.ones(4))
    assert flat.token_advantages.shape == (4,)
