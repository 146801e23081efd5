"""Every router of transformers: what is counted equals what its experts were given."""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from support.family_table import document, table
from support.tiny_moe import FAMILIES, NOT_COVERED, folder_of, routed_folders, tiny_model
from torch import nn

from areal_callbacks.monitors.moe_balance.monitor import MoEBalanceMonitor
from areal_callbacks.monitors.moe_balance.routers import Router
from areal_callbacks.monitors.training_forward import TrainingForward

BATCH, LENGTH = 2, 12
TOKENS = BATCH * LENGTH

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:transformers", "ignore::FutureWarning:transformers")


class Recount:
    """Counts the assignments where they are used, in the arguments of the experts, with NumPy."""

    def __init__(self, model: nn.Module, routers: list[Router]) -> None:
        self.counts: dict[tuple[str, int], Any] = {}
        modules = dict(model.named_modules())
        for router in routers:
            block = router.name.rpartition(".")[0]
            source = next(
                (modules[name] for name in (f"{block}.experts", f"{block}.input_linear") if name in modules), None
            )
            key = (router.stack, router.layer)
            if type(router.module).__name__ == "Llama4Router":  # its experts are given every token, scaled by 0 or not
                router.module.register_forward_hook(
                    lambda _, __, out, k=key, r=router: self.add(k, r, out[1].topk(r.top_k)[1])
                )
            else:
                assert source is not None, f"{router.name} feeds no experts"
                source.register_forward_pre_hook(
                    lambda module, args, kwargs, k=key, r=router: self.add(k, r, *_given(module, args, kwargs)),
                    with_kwargs=True,
                )

    def add(self, key: tuple[str, int], router: Router, chosen: Any, weights: Any = None) -> None:
        kind = type(router.module).__name__
        if isinstance(chosen, list):  # tokens of each expert
            counts = np.array(chosen)
        elif kind == "SwitchTransformersTop1Router":
            counts = chosen.reshape(-1, router.experts).sum(0).numpy()
        elif kind == "NllbMoeTop2Router":
            counts = (weights.detach().numpy() != 0).sum(0)
        else:
            ids = chosen.numpy().reshape(-1)
            used = weights.detach().numpy().reshape(-1) != 0 if kind == "ZayaRouter" else np.full(ids.shape, True)
            counts = np.bincount(ids[used], minlength=router.experts)
        self.counts[key] = self.counts.get(key, 0) + counts


def _given(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    return tuple(bound.arguments.values())[1:3]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_counts_of_a_training_forward(model_type: str) -> None:
    model = tiny_model(model_type)
    forward = TrainingForward()
    monitor = MoEBalanceMonitor(forward)
    assert monitor.attach([model], torch.device("cpu"))
    forward.attach([model])
    recount = Recount(model, list(monitor.routers))
    ids = torch.randint(3, 90, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})
    model(**inputs)
    counted = {name: vector.tolist() for name, vector in monitor.collect().sums.items()}

    expected = {f"{stack}/{layer}": counts.tolist() for (stack, layer), counts in recount.counts.items()}
    assert counted == expected
    assert len(counted) == len(monitor.routers)
    for router in monitor.routers:
        assert router.top_k is not None
        total = sum(counted[f"{router.stack}/{router.layer}"])
        if model_type == "zaya":  # tokens may skip the layer
            assert 0 < total <= TOKENS
        else:
            looped = model_type == "inkling2_loop_text" and router.layer >= model.config.loop_layer_index_start
            assert total == TOKENS * router.top_k * (model.config.loop_num_passes if looped else 1)
    model.eval()
    model(**inputs)
    assert not any(vector.any() for vector in monitor.collect().sums.values())


def test_every_routed_family_is_covered_or_has_a_reason() -> None:
    covered = defaultdict(list)
    for model_type in FAMILIES:
        covered[folder_of(model_type)].append(model_type)
    assert len(covered) >= 55
    assert not covered.keys() & NOT_COVERED.keys()
    unknown = routed_folders() - covered.keys() - NOT_COVERED.keys()
    assert not unknown, "transformers has new routers: add them to FAMILIES or NOT_COVERED"
    gone = (covered.keys() | NOT_COVERED.keys()) - routed_folders()
    assert not gone, "transformers has no such routers any more"


def test_the_documented_table_is_the_generated_one() -> None:
    assert table() in document(), "run tests/support/family_table.py"
