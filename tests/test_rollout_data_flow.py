"""From asynchronous rollout workflows and data-parallel training ranks to one record in the host's logger."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from areal_callbacks import stats_tracker, workflow_context
from areal_callbacks.examples.rollout_data_flow import worker
from areal_callbacks.ppo.train_infer import log_train_inference_stats
from areal_callbacks.session import MetricsSession
from areal_callbacks.stats_logger import StatsLogger
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

SHARES = (range(0, 2), range(2, 3), range(3, 12))
HELD_OUT = (range(3), range(0), range(5))


@pytest.fixture(scope="module")
def exports():
    """What three worker processes with 2, 1 and 9 workflows exported."""
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(worker, SHARES, HELD_OUT, timeout=120))


def expected_rollouts():
    """Every workflow counts once, whichever worker ran it."""
    expected = {}
    for name, parts in (("rollout", SHARES), ("eval-rollout", HELD_OUT)):
        prompts = [prompt for part in parts for prompt in part]
        expected[f"{name}/reward"] = sum(prompt % 3 == 0 for prompt in prompts) / len(prompts)
        expected[f"{name}/num_turns"] = sum(1 + prompt % 4 for prompt in prompts) / len(prompts)
    return expected


GAPS = ((0.5,), (0.0, -0.25, 1.0))


def record_gaps(rank):
    gaps = torch.tensor(GAPS[rank], dtype=torch.float64)
    log_train_inference_stats(gaps - 2, torch.full_like(gaps, -2.0), torch.ones(len(gaps), dtype=torch.bool))


EXPECTED_TRAINING = {
    "ppo_actor/train_infer/logp_diff/avg": 0.3125,
    "ppo_actor/train_infer/logp_diff/max": 1.0,
    "ppo_actor/train_infer/n_valid_tokens": 4.0,
}


def commit(group, exports, folder):
    """A loop with AReaL's own logger: the controller is rank 0."""
    import torch.distributed as dist

    from areal_callbacks.core.merge import merge_worker_stats

    record_gaps(dist.get_rank())
    stats = stats_tracker.export_all(reduce_group=group)
    if dist.get_rank() == 0:
        stats.update(merge_worker_stats(exports))
    with StatsLogger({"fileroot": folder, "tensorboard": {"path": f"{folder}/tb"}}, report=False) as logger:
        logger.commit(0, 0, 7, stats)
    return stats


def read_record(folder):
    (path,) = folder.rglob("metrics.jsonl")
    (record,) = [record for record in read_metrics(path) if isinstance(record, MetricsRecord)]
    return record


@pytest.mark.slow
def test_one_record_in_the_logger_of_the_loop(two_ranks, exports, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first, _ = two_ranks.run(commit, exports, str(tmp_path))
    record = read_record(tmp_path)
    expected = {**expected_rollouts(), **EXPECTED_TRAINING}
    assert record.step == 7
    assert {name: record.metrics[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    assert set(record.metrics) == {name for name in first if not name.endswith("__count")}
    accumulator = EventAccumulator(str(tmp_path / "tb")).Reload()
    for name, value in expected.items():
        (event,) = accumulator.Scalars(name)
        assert (event.step, event.value) == (7, pytest.approx(value, rel=1e-6))


def absorb(group, exports, folder):
    """A host whose logger is not ours: every rank controls some workers."""
    import torch.distributed as dist

    from areal_callbacks.topology import Topology

    rank = dist.get_rank()
    session = MetricsSession(throughput=False, moe_balance=False, output_dir=folder, report=False)
    session.attach(torch.nn.Linear(1, 1), topology=Topology(world=group))
    record_gaps(rank)
    stats_tracker.absorb(exports[:2] if rank == 0 else exports[2:])
    if rank == 1:
        stats_tracker.get("rollout").scalar(reward=1.0)  # a workflow of its own
    metrics = session.export(3).metrics
    session.close()
    return metrics


def test_one_record_in_the_logger_of_a_host(two_ranks, exports, tmp_path):
    first, second = two_ranks.run(absorb, exports, str(tmp_path))
    expected = {**expected_rollouts(), **EXPECTED_TRAINING}
    expected["rollout/reward"] = (expected["rollout/reward"] * 12 + 1) / 13
    assert first == second
    assert {name: first[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    assert not [name for name in first if name.endswith("__count")]
    assert read_record(tmp_path).metrics == first


def test_absorbing_ignores_the_scope_and_what_has_no_count():
    with stats_tracker.scope("elsewhere"):
        stats_tracker.absorb([{"rollout/a": 2.0, "rollout/a__count": 3, "loss/avg": 1.0}, {}])
    assert stats_tracker.export_all() == {"rollout/a": 2.0, "rollout/a__count": 3.0}


def test_tasks_and_threads_keep_their_own_phase():
    """Every task sees the phase that it was started in, and a thread starts in training."""
    phases = {}

    async def ask(name, turns):
        for _ in range(turns):
            await asyncio.sleep(0)
            phases.setdefault(name, set()).add(workflow_context.stat_scope())

    async def main():
        training = asyncio.create_task(ask("training", 20))
        with workflow_context.evaluation():
            evaluation = asyncio.create_task(ask("evaluation", 20))
            await asyncio.sleep(0)
            thread = threading.Thread(target=lambda: phases.setdefault("thread", {workflow_context.stat_scope()}))
            thread.start()
            thread.join()
        later = asyncio.create_task(ask("later", 5))
        await asyncio.gather(training, evaluation, later)

    asyncio.run(main())
    assert phases == {
        "training": {"rollout"},
        "evaluation": {"eval-rollout"},
        "thread": {"rollout"},
        "later": {"rollout"},
    }


def test_phases_nest_and_end_with_an_exception():
    with workflow_context.evaluation():
        with pytest.raises(KeyError), workflow_context.evaluation():
            raise KeyError
        assert workflow_context.stat_scope() == "eval-rollout"
    assert workflow_context.stat_scope() == "rollout"


def test_many_workflows_of_threads_and_coroutines_lose_nothing():
    tracker, threads, workflows, turns = stats_tracker.get("rollout"), 8, 25, 4

    async def run(value):
        for _ in range(turns):
            with tracker.scope(f"task{value % 2}"):
                await asyncio.sleep(0)
                tracker.scalar(value=float(value))

    async def run_all():
        await asyncio.gather(*(run(value) for value in range(workflows)))

    running = [threading.Thread(target=lambda: asyncio.run(run_all())) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    even, odd = range(0, workflows, 2), range(1, workflows, 2)
    assert stats_tracker.export_all() == {
        "rollout/task0/value": sum(even) / len(even),
        "rollout/task0/value__count": threads * turns * len(even),
        "rollout/task1/value": sum(odd) / len(odd),
        "rollout/task1/value__count": threads * turns * len(odd),
    }
