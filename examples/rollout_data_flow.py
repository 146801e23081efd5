"""Rollout workers and training ranks in one record: the data flow of reinforcement learning, on any CPU.

    python examples/rollout_data_flow.py
    torchrun --nproc-per-node 2 examples/rollout_data_flow.py

Workflows run as coroutines in worker processes and record scalars as they finish. The controller weights the workers'
averages by their counts, adds the statistics that all training ranks reduced, and commits one record a step.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.distributed as dist

from areal_callbacks import stats_tracker, workflow_context
from areal_callbacks.core.merge import merge_worker_stats
from areal_callbacks.ppo.batch import PolicyBatch
from areal_callbacks.ppo.diagnostics import PolicyDiagnostics
from areal_callbacks.stats_logger import StatsLogger


async def workflow(prompt: int) -> None:
    """Generate for an unknown time, then score."""
    await asyncio.sleep(0.01 * (prompt * 7 % 5))
    scores = stats_tracker.get(workflow_context.stat_scope())  # "rollout", or "eval-rollout" below
    scores.scalar(reward=float(prompt % 3 == 0), num_turns=1 + prompt % 4)


async def run_all(prompts: Sequence[int], held_out: Sequence[int]) -> None:
    with workflow_context.evaluation():
        evaluations = [asyncio.create_task(workflow(prompt)) for prompt in held_out]
    await asyncio.gather(*evaluations, *(workflow(prompt) for prompt in prompts))


def worker(prompts: Sequence[int], held_out: Sequence[int] = ()) -> dict[str, float]:
    """One worker process: its own export, averages with their counts."""
    asyncio.run(run_all(prompts, held_out))
    return stats_tracker.export_all()


def train(rank: int) -> None:
    """An update on this rank's share of the sequences, which is not as large as the others'."""
    sequences = 2 + rank
    logp, mask = -torch.rand(sequences, 8), torch.rand(sequences, 8) < 0.8
    rollout_logp, advantages = logp + 0.01 * torch.randn(sequences, 8), torch.randn(sequences)
    batch = PolicyBatch(mask, trainer_logp=logp, rollout_logp=rollout_logp, advantages=advantages)
    PolicyDiagnostics().observe_rollout_batch(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="data_flow_output", help="folder of the results (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="training steps (default: %(default)s)")
    options = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    group, rank = (dist.group.WORLD, dist.get_rank()) if dist.is_initialized() else (None, 0)
    spawn = multiprocessing.get_context("spawn")
    logger = StatsLogger({"experiment_name": "data_flow", "fileroot": options.output})
    with logger, ProcessPoolExecutor(3 if rank == 0 else 1, mp_context=spawn) as pool:
        for step in range(options.steps):
            if rank == 0:
                shares = [range(step, step + count) for count in (2, 5, 9)]
                rollouts = [pool.submit(worker, share, held_out=range(3)) for share in shares]
            train(rank)
            stats = stats_tracker.export_all(reduce_group=group)
            if rank == 0:
                stats.update(merge_worker_stats(rollout.result() for rollout in rollouts))
                logger.commit(0, step, step, stats)


if __name__ == "__main__":
    main()
