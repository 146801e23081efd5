"""What the ranks run: megatron.core on the CPU, measured. Loaded by the rank processes, never by the test session."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron_cpu import Layout, Training, batches, build, parallel, pretend_cuda

from areal_callbacks.core import reporting
from areal_callbacks.core.types import Export
from areal_callbacks.integrations import megatron

pretend_cuda()


def train(group: Any, layout: dict[str, Any], steps: int = 2) -> dict[str, Any]:  # noqa: ARG001
    """Train a layout for some steps with one export in the middle and one at the end."""
    with parallel(Layout(**layout)), tempfile.TemporaryDirectory() as folder:
        training = build(Layout(**layout))
        with megatron.attach(training.chunks, training.optimizer, output_dir=folder, report=False) as metrics:
            exports, collectives = [], []
            for step in range(steps):
                with metrics.step():
                    training.zero_gradients()
                    training.forward_backward(training.iterators(batches(step, training.layout)))
                    assert training.optimizer.step()[0]
                with _counted() as count:
                    exports.append(metrics.export(step + 1))
                collectives.append(count())
        return {"exports": [_plain(export) for export in exports], "collectives": collectives}


def _plain(export: Export) -> dict[str, Any]:
    loads = export.expert_loads
    return {
        "metrics": export.metrics,
        "loads": {} if loads is None else {layer.layer: layer.counts.tolist() for layer in loads},
        "stacks": [] if loads is None else loads.stacks,
    }


@contextlib.contextmanager
def _counted() -> Iterator[Any]:
    """How many collectives run on the world's group, by the group's own sequence number."""
    world = dist.group.WORLD
    before = 0 if world is None else world._get_sequence_number_for_group()
    yield lambda: (0 if world is None else world._get_sequence_number_for_group()) - before
