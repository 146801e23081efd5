"""Training FLOPs of one sequence, from a model's configuration; dense peak FLOP/s of a device, from its name."""

from areal_callbacks.flops.estimator import TrainingFlops
from areal_callbacks.flops.peaks import peak_flops
from areal_callbacks.flops.registry import get_flops_estimator, register_flops_estimator, supported_model_types

__all__ = [
    "TrainingFlops",
    "get_flops_estimator",
    "peak_flops",
    "register_flops_estimator",
    "supported_model_types",
]
