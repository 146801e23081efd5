"""The recurrent forms that the counts are taken of compute what the models compute."""

from __future__ import annotations

import importlib

import pytest
import torch
from support.recurrent_forms import delta_rule, mamba2_scan, mamba_scan


def modeling(name: str):
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_delta_rule() -> None:
    query, key = torch.randn(2, 9, 2, 6), torch.randn(2, 9, 2, 6)
    value, beta, g = torch.randn(2, 9, 4, 8), torch.rand(2, 9, 4), -torch.rand(2, 9, 4)
    arguments = {"g": g, "beta": beta, "use_qk_l2norm_in_kernel": True}
    expected, _ = modeling("qwen3_5_moe").torch_chunk_gated_delta_rule(query, key, value, **arguments)
    torch.testing.assert_close(delta_rule(query, key, value, **arguments)[0], expected)


def test_delta_rule_with_a_decay_for_each_channel() -> None:
    query, key, value = torch.randn(2, 9, 3, 6), torch.randn(2, 9, 3, 6), torch.randn(2, 9, 3, 8)
    arguments = {"g": -torch.rand(2, 9, 3, 6), "beta": torch.rand(2, 9, 3), "use_qk_l2norm_in_kernel": True}
    expected, _ = modeling("kimi_linear").chunk_kimi_delta_attention(query, key, value, **arguments)
    torch.testing.assert_close(delta_rule(query, key, value, **arguments)[0], expected)


def test_state_space_of_mamba2() -> None:
    x, dt, a = torch.randn(2, 9, 4, 6), torch.rand(2, 9, 4), -torch.rand(4)
    b, c = torch.randn(2, 9, 2, 5), torch.randn(2, 9, 2, 5)
    options = {"D": torch.randn(4), "dt_bias": torch.rand(4), "dt_softplus": True, "dt_limit": (0.0, 2.0)}
    expected = modeling("mamba2").mamba2_chunk_scan(x, dt, a, b, c, chunk_size=4, **options)
    torch.testing.assert_close(mamba2_scan(x, dt, a, b, c, **options), expected, rtol=1e-4, atol=1e-5)


def test_selective_scan() -> None:
    x, dt, a = torch.randn(2, 6, 9), torch.rand(2, 6, 9), -torch.rand(6, 5)
    b, c = torch.randn(2, 5, 9), torch.randn(2, 5, 9)
    options = {"D": torch.randn(6), "z": torch.randn(2, 6, 9), "delta_bias": torch.rand(6), "delta_softplus": True}
    expected = modeling("mamba").mamba_selective_scan(x, dt, a, b, c, **options)
    torch.testing.assert_close(mamba_scan(x, dt, a, b, c, **options), expected)
