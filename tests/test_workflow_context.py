"""The scope of rollouts and evaluations."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from areal_callbacks import workflow_context


def test_rollouts_by_default_and_evaluation_inside_the_block():
    assert workflow_context.stat_scope() == "rollout"
    with contextlib.suppress(KeyError), workflow_context.evaluation():
        assert workflow_context.stat_scope() == "eval-rollout"
        raise KeyError
    assert workflow_context.stat_scope() == "rollout"


def test_nested_evaluations_end_with_the_outer_one():
    with workflow_context.evaluation():
        with workflow_context.evaluation():
            pass
        assert workflow_context.stat_scope() == "eval-rollout"


def test_tasks_keep_the_phase_in_which_they_were_started():
    async def episode():
        await asyncio.sleep(0)
        return workflow_context.stat_scope()

    async def main():
        with workflow_context.evaluation():
            evaluating = asyncio.create_task(episode())
        training = asyncio.create_task(episode())
        return await asyncio.gather(evaluating, training)

    assert asyncio.run(main()) == ["eval-rollout", "rollout"]


def test_another_thread_is_not_evaluating():
    seen = []
    with workflow_context.evaluation():
        thread = threading.Thread(target=lambda: seen.append(workflow_context.stat_scope()))
        thread.start()
        thread.join()
    assert seen == ["rollout"]
