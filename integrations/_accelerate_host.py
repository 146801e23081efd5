"""What an accelerator tells: the arrangement of its ranks, its trackers, its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from areal_callbacks.config import MetricsConfig
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.topology import Topology
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.guests import swanlab_guest, tensorboard_guest, trackio_guest, wandb_guest

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

TOTALS_FILE = "areal_callbacks.json"


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
        accelerator: with the ``log_with`` that it was made with.
        config: of the session.
        gives_step: the coming ``accelerator.log`` passes a step.
    """

    def tracker(name: str) -> Any:
        return next((tracker.tracker for tracker in accelerator.trackers if tracker.name == name), None)

    names = {str(getattr(kind, "value", getattr(kind, "name", kind))) for kind in accelerator.log_with}
    balance = config.moe_balance
    guests: dict[str, Callable[[], MetricWriter]] = {
        "wandb": lambda: wandb_guest(balance, lambda: tracker("wandb"), step_key=None, gives_step=gives_step),
        "tensorboard": lambda: tensorboard_guest(balance, lambda: tracker("tensorboard")),
        "swanlab": lambda: swanlab_guest(balance, lambda: tracker("swanlab")),
        "trackio": lambda: trackio_guest(balance, lambda: tracker("trackio")),
    }
    return [make() for name, make in guests.items() if name in names]
