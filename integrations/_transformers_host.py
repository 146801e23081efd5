"""What a Hugging Face Trainer does not tell its callbacks: itself, its real optimizer, its arrangement of ranks."""

from __future__ import annotations

import sys
from types import FrameType, SimpleNamespace

from torch.optim import Optimizer

from areal_callbacks.safety.reporting import report_once
from areal_callbacks.topology import Topology

try:
    from accelerate.utils import DistributedType
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers import __version__ as version
    from transformers.integrations import integration_utils
    from transformers.trainer_callback import ExportableState, PrinterCallback, ProgressCallback
except ImportError as error:
    raise ImportError("this callback needs transformers: pip install 'areal-callbacks[transformers]'") from error

__all__ = [
    "EPOCH_METHODS",
    "HAS_FINAL_METHOD",
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
    "padding_of",
    "report_old_trainer",
    "size_of",
    "topology_of",
]

EPOCH_METHODS: tuple[str, ...] = ("_run_epoch",)
"""In which an exception ends a training; before transformers 5.3 the epochs have no method of their own."""

HAS_FINAL_METHOD = hasattr(Trainer, "_finalize_training")
"""The end of a training has a method of its own, as of transformers 5.3."""

if not HAS_FINAL_METHOD:
    EPOCH_METHODS = ("training_step", "_maybe_log_save_evaluate")


def report_old_trainer() -> None:
    """One message for releases whose Trainer has no method around an epoch."""
    if not HAS_FINAL_METHOD:
        report_once(
            "transformers:old",
            f"transformers {version} has no Trainer._run_epoch, which 5.3 has: after an exception outside a step the "
            "measurement ends only when the trainer trains again; all else is measured",
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


def padding_of(trainer: Trainer) -> SimpleNamespace:
    """The special numbers of what makes the batches, the collator, or else of the trainer's tokenizer."""
    collator, processor = trainer.data_collator, getattr(trainer, "processing_class", None)
    places = [
        known for one in (collator, processor) for known in (one, getattr(one, "tokenizer", None)) if known is not None
    ]
    names = [f"{name}_token_id" for name in ("pad", "bos", "eos", "sep", "cls")]
    found = {name: [getattr(place, name, None) for place in places] for name in names}
    return SimpleNamespace(
        **{name: next((value for value in values if isinstance(value, int)), None) for name, values in found.items()}
    )


def topology_of(trainer: Trainer) -> Topology:
    """This rank's place in the trainer's mesh."""
    return Topology.of_ranks(
        tensor_rank=_rank_in(trainer, "tp", size_of(trainer, "tp")),
        context_rank=_rank_in(trainer, "cp", size_of(trainer, "cp")),
    )


def size_of(trainer: Trainer, dimension: str) -> int:
    """Ranks in a dimension of the trainer's mesh; 1 in releases that do not know the dimension."""
    ask = getattr(trainer, f"get_{dimension}_size", None)
    return 1 if ask is None else int(ask())


def _rank_in(trainer: Trainer, dimension: str, size: int) -> int:
    if size <= 1:
        return 0
    mesh = trainer.accelerator.torch_device_mesh
    if mesh is not None and dimension in (mesh.mesh_dim_names or ()):
        return int(mesh.get_local_rank(dimension))
    return int(trainer.args.process_index % size)  # a model parallelised at load time: the innermost dimension
