"""What an accelerator tells: the arrangement of its ranks, its trackers, its checkpoints."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.file_names import ACCELERATE_TOTALS_FILE as TOTALS_FILE
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.topology import Topology
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.tracker_runs import HostRun
from areal_callbacks.writers.trackers import TRACKERS, make_guests

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.utils import DistributedType
except ImportError as error:
    raise ImportError("this integration needs accelerate: pip install 'areal-callbacks[accelerate]'") from error

__all__ = [
    "TOTALS_FILE",
    "AcceleratedOptimizer",
    "Accelerator",
    "guests_of",
    "is_opaque",
    "may_train",
    "size_of",
    "steps_are_hidden",
    "topology_of",
]


def size_of(accelerator: Accelerator, dimension: str) -> int:
    """Ranks in a dimension of its ParallelismConfig."""
    return getattr(accelerator.parallelism_config, f"{dimension}_size", None) or 1


def topology_of(accelerator: Accelerator) -> Topology:
    """This rank's place in the accelerator's mesh."""
    mesh = accelerator.torch_device_mesh
    names = () if mesh is None else mesh.mesh_dim_names or ()
    tensor_rank, context_rank = (mesh.get_local_rank(name) if name in names else 0 for name in ("tp", "cp"))
    return Topology.of_ranks(tensor_rank=tensor_rank, context_rank=context_rank)


def is_opaque(accelerator: Accelerator) -> bool:
    """Megatron-LM trains inside its engine; says so once."""
    if accelerator.distributed_type != DistributedType.MEGATRON_LM:
        return False
    report_once("accelerate:megatron", "Accelerate's Megatron-LM engine hides its steps: nothing is measured")
    return True


def steps_are_hidden(accelerator: Accelerator) -> bool:
    """DeepSpeed steps inside backward; says so once."""
    if accelerator.distributed_type != DistributedType.DEEPSPEED:
        return False
    report_once("accelerate:deepspeed", "DeepSpeed steps inside backward: optimizer steps are not timed or counted")
    return True


def may_train(item: Any) -> bool:
    """Something prepared is an optimizer, or a model that is not frozen."""
    if isinstance(item, nn.Module):
        return any(parameter.requires_grad for parameter in item.parameters())
    return isinstance(item, AcceleratedOptimizer)


def guests_of(accelerator: Accelerator, config: MetricsConfig, gives_step: Callable[[], bool]) -> list[MetricWriter]:
    """What ``accelerator.log`` cannot carry, into its trackers, which are opened later and on the main process.

    Args:
        accelerator: with the ``log_with`` that it was made with; it is not kept.
        config: of the session.
        gives_step: the coming ``accelerator.log`` passes a step.
    """
    reference = weakref.ref(accelerator)

    def find(name: str) -> Any:
        host = reference()
        trackers = [] if host is None else host.trackers
        return next((tracker.tracker for tracker in trackers if tracker.name == name), None)

    names = {str(getattr(kind, "value", getattr(kind, "name", kind))) for kind in accelerator.log_with}
    runs = [(name, HostRun(partial(find, name), passes_step=gives_step)) for name in TRACKERS if name in names]
    return make_guests(runs, config.moe_balance)
