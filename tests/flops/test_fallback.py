"""The approximate estimate against the formulas of models that have one."""

from __future__ import annotations

import pytest
import torch
from support.counted_flops import build_model
from support.flops_references import REFERENCE_MODELS, build_config
from support.tiny_models import fields_of
from torch import nn

from areal_callbacks.flops import get_flops_estimator
from areal_callbacks.flops.fallback import ApproximateFlops, approximate_flops


@pytest.mark.parametrize("name", ["Qwen3-30B-A3B", "Llama-3-8B", "Mixtral-8x7B", "Qwen3-8B"])
def test_it_is_exact_for_full_attention_and_known_experts(name: str) -> None:
    config = build_config(REFERENCE_MODELS[name])
    estimate, exact = approximate_flops(build_model(config)), get_flops_estimator(config)
    assert estimate is not None
    assert exact is not None
    assert estimate(4096) == exact(4096)


def test_tied_heads_are_counted() -> None:
    config = build_config(fields_of("gemma"))
    estimate, exact = approximate_flops(build_model(config)), get_flops_estimator(config)
    assert estimate is not None
    assert exact is not None
    assert estimate(9) == exact(9)


def test_a_module_without_a_configuration_has_its_matrices_only() -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    estimate = approximate_flops(model)
    assert estimate == ApproximateFlops(8 * 16 + 16 * 4, 0)
    assert estimate(10) == 6 * 192 * 10
    with pytest.raises(TypeError, match="nonnegative int"):
        estimate(2.5)  # type: ignore[arg-type]


def test_experts_in_a_list_are_counted_by_their_share() -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(8, 16, bias=False) for _ in range(4))

    config = {"num_local_experts": 4, "moe_topk": 1, "n_layer": 2, "n_head": 2, "n_embd": 8}
    assert approximate_flops(Mixture(), config) == ApproximateFlops(8 * 16, 2 * 2 * 8)


def test_parameters_that_cannot_be_read_give_nothing() -> None:
    model = nn.Module()
    model.flat = nn.Parameter(torch.zeros(1000))
    assert approximate_flops(model) is None
