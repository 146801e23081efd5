"""megatron.core's own GPTModel, schedules, dispatchers and optimizers, trained over gloo in every layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.distributed import Ranks
from support.tiny_megatron import EXPERTS, LENGTH, MICRO_BATCHES, ROWS, TOP_K, VOCABULARY
from support.versions import needs_reduce_scatter

JOBS = Path(__file__).parents[2] / "support" / "megatron_jobs.py"
"""Run by name: importing it would change torch in this process."""

pytestmark = pytest.mark.slow

SEQUENCES = MICRO_BATCHES * ROWS
TOKENS = SEQUENCES * LENGTH
"""Of one data-parallel replica in one step."""

FULL_RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
MOE_RECOMPUTE = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
EXPERT_BIAS = {
    "moe_router_enable_expert_bias": True,
    "moe_router_score_function": "sigmoid",
    "moe_router_load_balancing_type": "none",
    "moe_aux_loss_coeff": 0.0,
}


@dataclass(frozen=True)
class Case:
    """A layout and what it means.

    Attributes:
        world: processes.
        layout: fields of the Layout.
        routed: assignments of one replica per layer and step; None where capacity drops some.
        sparse: layers with experts.
    """

    world: int
    layout: dict[str, Any] = field(default_factory=dict)
    routed: int | None = TOKENS * TOP_K
    sparse: tuple[int, ...] = (0, 1, 2, 3)

    @property
    def replicas(self) -> int:
        shards = [self.layout.get(name, 1) for name in ("tp", "pp", "cp")]
        return self.world // (shards[0] * shards[1] * shards[2])


CASES = {
    "single": Case(1),
    "dp2": Case(2),
    "ep2_alltoall": Case(2, {"ep": 2}),
    "ep2_allgather": Case(2, {"ep": 2, "model": {"moe_token_dispatcher_type": "allgather"}}),
    "tp2_sp": Case(2, {"tp": 2}),
    "tp2_sp_ep2_etp1": Case(2, {"tp": 2, "ep": 2, "etp": 1}),
    "pp2": Case(2, {"pp": 2}),
    "pp2_vpp2": Case(2, {"pp": 2, "vpp": 2}),
    "cp2": Case(2, {"cp": 2}),
    "mtp": Case(2, {"mtp": 1}),
    "pp2_mtp": Case(2, {"pp": 2, "mtp": 1}),
    "full_recompute": Case(2, {"pp": 2, "model": FULL_RECOMPUTE}),
    "moe_recompute": Case(2, {"model": MOE_RECOMPUTE}),
    "distributed_optimizer": Case(2, {"distributed_optimizer": True}),
    "expert_bias": Case(2, {"model": EXPERT_BIAS}),
    "capacity_drop": Case(2, {"model": {"moe_expert_capacity_factor": 1.0}}, routed=None),
    "pad_to_capacity": Case(
        1, {"model": {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}}
    ),
    "first_stage_dense": Case(2, {"pp": 2, "model": {"moe_layer_freq": [0, 0, 1, 1]}}, sparse=(2, 3)),
    "last_stage_dense": Case(2, {"pp": 2, "model": {"moe_layer_freq": [1, 1, 0, 0]}}, sparse=(0, 1)),
    "tp2_without_sp": Case(
        2,
        {"tp": 2, "model": {"sequence_parallel": False, "num_moe_experts": None, "moe_ffn_hidden_size": None}},
        sparse=(),
    ),
    "dense": Case(2, {"model": {"num_moe_experts": None, "moe_ffn_hidden_size": None}}, sparse=()),
    "tp2_pp2_vpp2": Case(4, {"tp": 2, "pp": 2, "vpp": 2}),
    "cp2_ep4": Case(4, {"cp": 2, "ep": 4}),
    "tp2_ep2_etp2": Case(4, {"tp": 2, "ep": 2, "etp": 2, "model": {"moe_token_dispatcher_type": "allgather"}}),
}

LAYOUTS = [
    pytest.param(name, marks=needs_reduce_scatter if name in ("tp2_sp", "tp2_pp2_vpp2") else ()) for name in CASES
]

Measure = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, Ranks]]:
    """World size → processes, which serve all its layouts; started when they are first used."""
    pools = {world: Ranks(world) for world in (1, 2, 4)}
    yield pools
    for ranks in pools.values():
        ranks.close()


@pytest.fixture(scope="module")
def measured(pools: dict[int, Ranks]) -> Measure:
    """Trains each case once."""
    results: dict[str, list[dict[str, Any]]] = {}

    def measure(name: str) -> list[dict[str, Any]]:
        if name not in results:
            results[name] = pools[CASES[name].world].run_from(JOBS, "train", CASES[name].layout)
        return results[name]

    return measure


def flops_of_a_sequence(sparse: int) -> int:
    """By hand: hidden size 32, four heads of 8, two-matrix MLPs of 64, 6 FLOPs a multiply-add in training."""
    attention, mlp, router, head = 4 * 32 * 32, 2 * 32 * 64, 32 * EXPERTS, 32 * VOCABULARY
    per_token = 4 * attention + sparse * (TOP_K * mlp + router) + (4 - sparse) * mlp + head
    pairs = LENGTH * (LENGTH + 1) // 2
    return 6 * (per_token * LENGTH + 4 * 2 * 32 * pairs)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(measured: Measure, name: str) -> None:
    case, ranks = CASES[name], measured(name)
    assert [rank["is_writer"] for rank in ranks] == [False] * (case.world - 1) + [True]
    for step, export in enumerate(ranks[0]["exports"]):
        assert [rank["exports"][step] for rank in ranks] == [export] * case.world
        metrics, loads = export["metrics"], export["loads"]
        assert metrics["train_perf/tokens"] == case.replicas * TOKENS
        assert metrics["train_perf/total_tokens"] == case.replicas * TOKENS * (step + 1)
        assert metrics["train_perf/optimizer_steps"] == 1
        assert metrics["train_perf/skipped_steps"] == 0
        assert 0 < metrics["timeperf/optimizer_step"] < metrics["train_perf/seconds"]
        flops = case.replicas * SEQUENCES * flops_of_a_sequence(len(case.sparse))
        assert metrics["train_perf/estimated_flops"] == flops
        recount = ranks[0]["recounts"][step]
        assert metrics["train_perf/tokens"] == recount["tokens"]
        assert loads == {("", layer): counts for layer, counts in recount["routed"].items()}
        assert [layer for _, layer in loads] == list(case.sparse)
        for (_, layer), counts in loads.items():
            assert case.routed is None or sum(counts) == case.replicas * case.routed
            assert metrics[f"moe_balance/layer_{layer}/max_over_ideal"] == max(counts) * EXPERTS / sum(counts)
    if case.world > 1:
        assert [rank["collectives"][1] for rank in ranks] == [2] * case.world
    assert all(rank["left"] == {"hooks": 0, "step": False} for rank in ranks)


@needs_reduce_scatter
def test_tensor_parallelism_changes_no_balance(measured: Measure) -> None:
    def balance(rank: dict[str, Any], step: int) -> dict[str, float]:
        return {key: value for key, value in rank["exports"][step]["metrics"].items() if key.startswith("moe_balance/")}

    alone, together = measured("single")[0], measured("tp2_sp")[0]
    assert balance(together, 0) == balance(alone, 0)
    assert balance(together, 1) == balance(alone, 1)
    assert len(balance(alone, 0)) == 11


def test_dropped_assignments_do_not_count(measured: Measure) -> None:
    capacity = 2 * ROWS * LENGTH // EXPERTS  # of an expert in one router call, at factor 1: tokens * TOP_K / EXPERTS
    for export in measured("capacity_drop")[0]["exports"]:
        for counts in export["loads"].values():
            assert max(counts) <= 2 * MICRO_BATCHES * capacity
            assert sum(counts) < 2 * TOKENS * TOP_K


def test_padding_to_capacity_is_told(measured: Measure) -> None:
    named = "moe_pad_expert_input_to_capacity"
    assert not any(named in message for message in measured("capacity_drop")[0]["messages"])
    padded = measured("pad_to_capacity")[0]
    assert len([message for message in padded["messages"] if named in message]) == 1
    assert padded["exports"][0]["metrics"]["moe_balance/max_over_ideal_max"] == 1.0


@pytest.mark.parametrize("layout", [{}, {"pp": 2, "vpp": 2}], ids=["dp2", "pp2_vpp2"])
def test_waiting_for_data_is_no_training_time(pools: dict[int, Ranks], layout: dict[str, Any]) -> None:
    ranks = pools[2].run_from(JOBS, "wait_for_data", layout, 0.1)
    chunks = layout.get("vpp", 1)
    slept = MICRO_BATCHES * chunks * 0.1
    waited = sum(rank["whole"] for rank in ranks) / 2 - ranks[0]["train_perf/seconds_mean"]
    assert slept <= waited < 1.5 * slept
    assert slept <= ranks[0]["train_perf/data_wait_seconds"] < 1.5 * slept


def test_a_rank_that_trained_nothing_takes_part(pools: dict[int, Ranks]) -> None:
    first, second = pools[2].run_from(JOBS, "train_on_the_first_rank_only")
    assert first == second
    assert first["metrics"]["train_perf/tokens"] == ROWS * LENGTH
    assert [sum(counts) for counts in first["loads"].values()] == [ROWS * LENGTH * TOP_K] * 4


@pytest.mark.parametrize(
    ("layout", "counting"), [({}, [0, 1]), ({"tp": 2}, [0]), ({"pp": 2}, [0, 1]), ({"cp": 2}, [0, 1])]
)
def test_recorded_stats_count_once_per_tensor_parallel_group(
    pools: dict[int, Ranks], layout: dict[str, Any], counting: list[int]
) -> None:
    for metrics in pools[2].run_from(JOBS, "record_everywhere", layout):
        assert metrics["n_tokens"] == 10 * len(counting)
        assert metrics["rank/avg"] == sum(counting) / len(counting)
