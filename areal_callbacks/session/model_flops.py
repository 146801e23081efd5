"""Which estimate the FLOPs of a model get, and one message where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from areal_callbacks.config import FlopsConfig
from areal_callbacks.flops.estimator import TrainingFlops
from areal_callbacks.flops.fallback import approximate_flops
from areal_callbacks.flops.fields import ABSENT, read_field
from areal_callbacks.flops.registry import Estimator, get_flops_estimator
from areal_callbacks.flops.towers import VisionTower, vision_tower
from areal_callbacks.safety.door import attempt
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.text import tell_error

LEFT_OUT = (
    "train_perf/estimated_flops, its rates and train_perf/mfu are left out; tokens, seconds, optimizer steps and "
    "routed loads are measured. register_flops_estimator adds a formula, "
    "flops: {fallback: active_parameters} an approximate one"
)


class Model(NamedTuple):
    """The outermost module that has a configuration with a ``model_type``, if there is one.

    Attributes:
        config: that configuration.
        class_name: of the innermost wrapper's content that has the same configuration, by which heads are told apart.
    """

    config: Any
    class_name: str


@dataclass(frozen=True)
class ModelFlops:
    """What the FLOPs of a run are estimated with.

    Attributes:
        estimator: training FLOPs of one sequence; None where they are left out.
        tower: the vision tower beside a built-in estimate of the language part, where its formula is known.
        is_approximate: the estimate is the fallback's.
        model: whose configuration was read; None for an estimator that was given.
    """

    estimator: Estimator | None = None
    tower: VisionTower | None = None
    is_approximate: bool = False
    model: Model | None = None


def find_flops(parts: Sequence[nn.Module], options: FlopsConfig) -> ModelFlops:
    """The estimate for a model, by its configuration.

    A model without any ``model_type`` that is none of Transformers' has no message, unless FLOPs were configured.
    """
    model = find_model(parts)
    found = "the model has no configuration with a model_type" if model is None else _read_formula(model)
    if not isinstance(found, str):
        return ModelFlops(found, _find_tower(model, found), model=model)
    if model is None and options.is_default and not any(map(_is_of_transformers, _modules(parts))):
        return ModelFlops()
    if options.fallback is None:
        report_once("flops:unknown", f"{found}: {LEFT_OUT}")
        return ModelFlops(model=model)
    return ModelFlops(_approximate(parts, model, found), is_approximate=True, model=model)


def find_model(parts: Sequence[nn.Module]) -> Model | None:
    """The outermost module that has a configuration with a ``model_type``."""
    configs = (_config_of(module) for module in _modules(parts))
    config = next((config for config in configs if getattr(config, "model_type", None)), None)
    if config is None:
        return None
    named = (module for module in _modules(parts) if _config_of(module) is config)
    classes = (type(module).__name__ for module in named if _is_of_transformers(module))
    return Model(config, next(classes, ""))


def _config_of(module: nn.Module) -> Any:
    problem = "the configuration of a module cannot be read: no FLOPs by it"
    return attempt("flops:config", problem, getattr, module, "config", None)


def _modules(parts: Sequence[nn.Module]) -> list[nn.Module]:
    return [module for part in parts for module in part.modules()]


def _is_of_transformers(module: nn.Module) -> bool:
    """Its class, not an object that it wraps and whose attributes it passes on."""
    return hasattr(type(module), "base_model_prefix")


def _read_formula(model: Model) -> Estimator | str:
    """The formula, or why there is none."""
    name = model.config.model_type
    try:
        found = get_flops_estimator(model.config, model_class=model.class_name)
    except Exception as error:  # noqa: BLE001 - a registered factory may raise anything
        return str(error) if isinstance(error, ValueError) else f"the FLOPs of model type {name!r}: {tell_error(error)}"
    if found is None:
        return f"there is no FLOPs formula for model type {name!r}"
    return found


def _find_tower(model: Model | None, estimator: Estimator) -> VisionTower | None:
    """A registered estimator of the user's stands for the whole model."""
    vision = ABSENT if model is None else read_field(model.config, "vision_config")
    if vision is ABSENT or vision is None or not isinstance(estimator, TrainingFlops):
        return None
    problem = "the FLOPs of the vision tower are left out, those of the language part are counted"
    tower = attempt("flops:tower", problem, vision_tower, vision)
    if tower is None:
        report_once("flops:tower", f"there is no formula for {read_field(vision, 'model_type')!r}: {problem}")
    return tower


def _approximate(parts: Sequence[nn.Module], model: Model | None, reason: str) -> Estimator | None:
    whole = parts[0] if len(parts) == 1 else nn.ModuleList(parts)
    config = None if model is None else model.config
    problem = f"{reason}, and its active parameters cannot be counted: FLOPs are left out"
    is_split = any(hasattr(parameter, "tensor_model_parallel") for parameter in whole.parameters())  # Megatron's
    estimate = None if is_split else attempt("flops:unknown", problem, approximate_flops, whole, config)
    if estimate is None:
        report_once("flops:unknown", problem)
        return None
    number = f"{estimate.active_parameters:,}"
    report_once("flops:unknown", f"{reason}: FLOPs are approximate, 6 for each of {number} active parameters and token")
    return estimate
