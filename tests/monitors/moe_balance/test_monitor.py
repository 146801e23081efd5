"""The monitor: what training forwards routed, per layer and stack, and over ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.distributed import Ranks
from support.observed_moe import CPU, Observed, by_hand
from support.readback import messages
from support.toy_moe import EXPERTS, LAYERS, TOP_K, WIDTH, Block, ToyMoE, batches, routed_by_hand
from torch import Tensor, nn

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.session import MetricsSession


def test_layers_with_different_numbers_of_experts() -> None:
    numbers, data = (3, 6, 4), batches(2)
    model = ToyMoE(numbers)
    observed = Observed(model)
    for batch in data:
        model(batch)
    expected = by_hand(model, data)
    assert observed.counts() == {f"/{layer}": expected[f"/{layer}"][:number] for layer, number in enumerate(numbers)}


def test_a_model_without_experts_has_nothing() -> None:
    observed = Observed(nn.Linear(2, 2))
    assert not observed.found
    assert observed.counts() == {}
    assert observed.monitor.expert_loads(observed.monitor.collect()) is None


def test_a_rank_that_repeats_another_sends_zeros() -> None:
    model = ToyMoE()
    observed = Observed(model, contributes_routes=False)
    model(batches(1)[0])
    assert observed.counts() == {f"/{layer}": [0] * EXPERTS for layer in range(LAYERS)}


def test_an_exception_inside_a_forward_counts_what_it_passed() -> None:
    model, data = ToyMoE(), batches(3)
    observed = Observed(model)
    failing = model.layers["2"].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(data[0])
    failing.remove()
    assert not observed.forward.active
    with torch.no_grad():
        model(data[1])
    model(data[2])
    expected, once = by_hand(model, [data[0], data[2]]), by_hand(model, data[2:])
    assert observed.counts() == expected | {name: once[name] for name in ("/2", "/3")}


def test_several_stacks_and_models() -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = ToyMoE(), ToyMoE()

        def forward(self, batch: Tensor) -> Tensor:
            return self.encoder(batch) + self.decoder(batch) + self.decoder(batch)

    model, data = Towers(), batches(1)
    observed = Observed(model)
    model(data[0])
    one = by_hand(ToyMoE(), data)
    twice = {name: [2 * value for value in row] for name, row in one.items()}
    assert observed.counts() == {f"encoder{name}": row for name, row in one.items()} | twice
    loads = ExpertLoads(tuple(LayerLoads(s, n, torch.tensor([1, 3])) for s, n in (("", 0), ("encoder", 0))))
    assert "moe_balance/encoder/layer_0/max_over_ideal" in observed.monitor.derive(loads)


def test_a_model_that_joins_later_is_counted_beside_the_first() -> None:
    first, second, data = ToyMoE(), ToyMoE(), batches(2)
    observed = Observed(first)
    observed.monitor.attach([second], CPU)
    observed.monitor.attach([first], CPU)  # again: nothing is hooked twice
    observed.forward.attach([second])
    first(data[0])
    second(data[1])
    assert observed.counts() == by_hand(first, data[:1]) | by_hand(second, data[1:], "part_1/{}")


def test_the_scalars_of_a_hand_computed_balance() -> None:
    monitor = Observed(nn.Identity(), extended=True).monitor
    layers = [("", 0, [4, 0, 0, 4]), ("", 1, [0, 0]), ("vision", 0, [1, 3])]
    loads = ExpertLoads(tuple(LayerLoads(stack, n, torch.tensor(row)) for stack, n, row in layers))
    derived = monitor.derive(loads)
    expected = {
        "moe_balance/layer_0/max_over_ideal": 2.0,
        "moe_balance/layer_1/max_over_ideal": 0.0,
        "moe_balance/vision/layer_0/max_over_ideal": 1.5,
        "moe_balance/max_over_ideal_max": 2.0,
        "moe_balance/max_over_ideal_mean": 1.75,
        "moe_balance/worst_layer": 0.0,
        "moe_balance/max_over_ideal_p50": 1.75,
        "moe_balance/max_over_ideal_p90": 1.95,
        "moe_balance/dead_experts": 2.0,
        "moe_balance/starved_experts": 2.0,
        "moe_balance/layer_0/coefficient_of_variation": 1.0,
        "moe_balance/layer_1/coefficient_of_variation": 0.0,
        "moe_balance/vision/layer_0/coefficient_of_variation": 0.5,
        "moe_balance/layer_0/normalised_entropy": 0.5,
        "moe_balance/layer_1/normalised_entropy": 0.0,
        "moe_balance/vision/layer_0/normalised_entropy": -(0.25 * np.log2(0.25) + 0.75 * np.log2(0.75)),
    }
    assert derived == pytest.approx(expected)
    rows = list(loads.rows())
    assert [sum(row.load_percent for row in rows if row[:2] == key) for key in (("", 0), ("", 1))] == [100.0, 0.0]


def test_an_unknown_router_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class StrangeTopKRouter(nn.Module):
        num_experts = 4

    model = nn.ModuleDict({"layers": nn.ModuleList([StrangeTopKRouter(), StrangeTopKRouter()])})
    assert not Observed(model).found
    assert [line for line in messages(caplog) if "StrangeTopKRouter" in line] == messages(caplog)
    assert len(messages(caplog)) == 1


def test_a_bypassed_router_is_noticed_once_and_only_in_training(caplog: pytest.LogCaptureFixture) -> None:
    model = ToyMoE()
    for layer in model.layers.values():
        layer.forward = lambda hidden: hidden + 0 * hidden  # a kernel that routes by itself
    observed = Observed(model)
    with torch.no_grad():
        model(batches(1)[0])
    observed.counts()
    assert messages(caplog) == []
    for _ in range(2):
        model(batches(1)[0])
        observed.counts()
    (message,) = messages(caplog)
    assert "no router was called" in message
    assert "fused kernel" in message


def test_a_silent_layer_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model, data = ToyMoE(), batches(1)
    model.layers["1"].forward = lambda hidden: hidden + 0 * hidden
    observed = Observed(model)
    for _ in range(3):
        model(data[0])
        assert observed.counts()["/1"] == [0] * EXPERTS
    model.layers["3"].forward = lambda hidden: hidden + 0 * hidden  # its router is exchanged later
    for _ in range(2):
        model(data[0])
        observed.counts()
    first, second = messages(caplog)
    assert first.startswith("not called in training forwards that called others: layers.1.router; ")
    assert second.startswith("not called in training forwards that called others: layers.3.router; ")


def test_an_interval_without_training_has_no_loads() -> None:
    model = ToyMoE()
    observed = Observed(model)
    for trains in (False, True, False):
        if trains:
            model(batches(1)[0])
        loads = observed.monitor.expert_loads(observed.monitor.collect())
        assert (loads is not None) == trains


def test_no_buffer_and_no_state_is_added_to_the_model() -> None:
    model = ToyMoE()
    before = set(model.state_dict()), {name for name, _ in model.named_buffers()}
    Observed(model)
    assert (set(model.state_dict()), {name for name, _ in model.named_buffers()}) == before


def unequal_ranks(group: Any, folder: str) -> tuple[dict[str, float], dict[tuple[str, int], list[int]]]:
    """Rank 0 owns the first half of the layers and trains two batches, rank 1 the rest and one."""
    import torch.distributed as dist

    from areal_callbacks.topology import Topology

    rank = dist.get_rank()
    model = ToyMoE((3, 6, 4, 6), kept=range(2 * rank, 2 * rank + 2))
    data = [torch.rand(2, 5, WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in range(2 - rank)]
    with MetricsSession(output_dir=folder, report=False, throughput=False) as session:
        session.attach(model, topology=Topology(world=group))
        for batch in batches(2) if rank == 0 else data:
            model(batch)
        export = session.export(1)
        dense = MetricsSession(output_dir=f"{folder}/dense", report=False, throughput=False)
        dense.attach(model if rank == 0 else nn.Linear(2, 2), topology=Topology(world=group, writer_rank=1))
        model(batches(1)[0] if rank == 0 else data[0])
        second = dense.export(1)
        dense.close()
    assert second.expert_loads is not None  # a rank without experts learns the numbers, too: it may be the writer
    assert {(layer.stack, layer.layer) for layer in second.expert_loads} == {("", 0), ("", 1)}
    assert export.expert_loads is not None
    return export.metrics, {(layer.stack, layer.layer): layer.counts.tolist() for layer in export.expert_loads}


@pytest.mark.slow
def test_ranks_that_own_different_layers(two_ranks: Ranks, tmp_path: Path) -> None:
    (metrics, loads), other = two_ranks.run(unequal_ranks, str(tmp_path))
    assert other == (metrics, loads)
    totals = {place: sum(counts) for place, counts in loads.items()}
    tokens = batches(1)[0].numel()
    assert totals == {("", layer): TOP_K * tokens * (2 if layer < 2 else 1) for layer in range(4)}
    assert {place: len(counts) for place, counts in loads.items()} == {("", 0): 3, ("", 1): 6, ("", 2): 4, ("", 3): 6}
    first = routed_by_hand(ToyMoE((3, 6, 4, 6), kept=range(2)), batches(2))
    assert loads["", 0] == first[0][:3].tolist()
    assert loads["", 1] == first[1].tolist()
    for layer, counts in loads.items():
        ratio = max(counts) * len(counts) / sum(counts)
        assert metrics[f"moe_balance/layer_{layer[1]}/max_over_ideal"] == pytest.approx(ratio)


def test_the_toys_own_recount_agrees_with_the_router() -> None:
    block, hidden = Block(), torch.rand(7, WIDTH)
    _, indices, counts = block.router(hidden)
    recounted = np.bincount(indices.numpy().ravel(), minlength=EXPERTS)
    assert recounted.tolist() == counts.tolist()
