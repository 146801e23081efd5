"""What a Hugging Face Trainer does not tell its callbacks: itself, its real optimizer, its arrangement of ranks."""

from __future__ import annotations

import sys
from types import FrameType

from torch.optim import Optimizer

from areal_callbacks.safety.reporting import report_once
from areal_callbacks.topology import Topology

try:
    from accelerate.utils import DistributedType
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations import integration_utils
    from transformers.trainer_callback import ExportableState, PrinterCallback, ProgressCallback
except ImportError as error:
    raise ImportError("this callback needs transformers: pip install 'areal-callbacks[transformers]'") from error

__all__ = [
    "ExportableState",
    "PrinterCallback",
    "ProgressCallback",
    "Trainer",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "TrainingArguments",
    "calling_trainer",
    "integration_utils",
    "optimizer_of",
    "topology_of",
]

_WRAPPED = ("_run_epoch", "_evaluate", "_finalize_training", "_save_checkpoint")
if missing := [name for name in _WRAPPED if not hasattr(Trainer, name)]:
    raise ImportError(
        f"this Trainer is too old, it has no {', '.join(missing)}: pip install --upgrade transformers accelerate"
    )


def calling_trainer() -> Trainer | None:
    """No event hands a callback its trainer; it is the one that is calling."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), Trainer):
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def optimizer_of(trainer: Trainer) -> Optimizer | None:
    """The optimizer that really steps, where its steps can be seen."""
    if trainer.accelerator.distributed_type == DistributedType.DEEPSPEED:
        report_once(
            "transformers:deepspeed", "DeepSpeed steps inside backward: optimizer steps are not timed or counted"
        )
        return None
    return trainer.optimizer if isinstance(trainer.optimizer, Optimizer) else None


def topology_of(trainer: Trainer) -> Topology:
    """This rank's place in the trainer's mesh."""
    return Topology.of_ranks(
        tensor_rank=_rank_in(trainer, "tp", trainer.get_tp_size()),
        context_rank=_rank_in(trainer, "cp", trainer.get_cp_size()),
    )


def _rank_in(trainer: Trainer, dimension: str, size: int) -> int:
    if size <= 1:
        return 0
    mesh = trainer.accelerator.torch_device_mesh
    if mesh is not None and dimension in (mesh.mesh_dim_names or ()):
        return int(mesh.get_local_rank(dimension))
    return int(trainer.args.process_index % size)  # a model parallelised at load time: the innermost dimension
