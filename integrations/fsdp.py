"""Metrics for loops that people write themselves: FSDP1, FSDP2, DDP, pipelines, torchtitan, or one process."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.flops.registry import Estimator
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.session import MetricsSession
from areal_callbacks.topology import Topology


def track(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    *,
    topology: Topology | None = None,
    config: MetricsConfig | Mapping[str, Any] | str | None = None,
    device: torch.device | None = None,
    flops_estimator: Estimator | None = None,
    name: str = "",
    **options: Unpack[MetricsOptions],
) -> MetricsSession:
    """Measure a training loop.

    ::

        with track(model, optimizer) as metrics:  # or metrics = track(...) and at last metrics.close()
            for step, batch in enumerate(loader):
                with metrics.step():
                    loss = model(**batch).loss
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                if step % 10 == 0:  # on every rank
                    log(metrics.export(step).metrics)

    Training time is what runs inside ``metrics.step()``. Call it after wrapping and before the first forward. An export
    is a collective of all ranks and holds the time since the last one; it is the same on all ranks. Leaving the block
    without an exception is one, too: the steps since the last export still go to the files.

    In torchtitan's trainer, after its ``__init__`` (docs/fsdp.md has the mesh)::

        metrics = track(self.model_parts, self.optimizers, topology=Topology.from_mesh(mesh),
                        flops_estimator=lambda length: ...)

    with ``metrics.step()`` around ``train_step`` and ``metrics.export(step)`` where it logs.

    Args:
        model: what the loop calls, as wrapped as it is called. Of a pipeline the parts that live on this rank, in
            order; the first of them is given the batch.
        optimizer: one or several.
        topology: who contributes what; by default every process has its own data. See :meth:`Topology.from_mesh`.
        config: a :class:`MetricsConfig`, a mapping of its keys or the path of a YAML file.
        device: where the model trains, if its parameters are offloaded.
        flops_estimator: training FLOPs of one sequence, for a model without a Hugging Face configuration.
        name: of the run, for people.
        **options: configuration keys, e.g. ``flops=False``; files go to ``output_dir``, by default
            ``./areal_metrics/<time>``.

    Raises:
        ValueError: an unknown key or a bad value, with the choices; a model without parts.
    """
    parts = [model] if isinstance(model, nn.Module) else list(model)
    if not parts:
        raise ValueError("model: expected a module or the parts of one, got an empty sequence")
    session = MetricsSession(config, name=name, **options)
    _replace_earlier(parts, session)
    return session.attach(
        parts,
        optimizer,
        topology,
        device=device,
        ignored_calls=_shape_inference(),
        inputs_of=parts[:1],
        flops_estimator=flops_estimator,
    )


_tracked: MutableMapping[nn.Module, weakref.ref[MetricsSession]] = weakref.WeakKeyDictionary()


def _replace_earlier(parts: Sequence[nn.Module], session: MetricsSession) -> None:
    """A notebook cell that runs again measures the same model anew: it is counted once."""
    for part in parts:
        earlier, _tracked[part] = _tracked.get(part, lambda: None)(), weakref.ref(session)
        if earlier is not None and earlier is not session and not earlier.is_closed:
            report_once(f"track:{id(earlier)}", "this model is tracked already: its earlier metrics are closed")
            earlier.close()


def _shape_inference() -> Sequence[tuple[object, str]]:
    """A pipeline's stage runs its module once with made-up inputs; since torch 2.13 as if it trained."""
    if not dist.is_available():
        return ()
    from torch.distributed.pipelining import PipelineStage

    return ((PipelineStage, "_compute_outputs"),) if hasattr(PipelineStage, "_compute_outputs") else ()
