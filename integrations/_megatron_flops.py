"""The FLOPs estimate of a model of megatron.core, and one message where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from areal_callbacks.flops.megatron import megatron_flops_estimator, megatron_t5_flops_estimator, unknown_work
from areal_callbacks.safety.door import attempt
from areal_callbacks.safety.reporting import report_once

if TYPE_CHECKING:
    from areal_callbacks.flops.registry import Estimator

_HYBRIDS = ("HybridModel", "MambaModel")
_KINDS = (*_HYBRIDS, "BertModel", "T5Model", "GPTModel")
_MESSAGE = (
    "%s: train_perf/estimated_flops, its rates and train_perf/mfu are left out; tokens, seconds, optimizer steps and "
    "routed loads are measured. attach(flops_estimator=…) takes the training FLOPs of one sequence"
)


def find_megatron_flops(chunks: Sequence[nn.Module]) -> Estimator | None:
    """The estimate of the outermost model of megatron.core in the chunks.

    None where it is not known, with one message that names what is not; without one where no chunk has such a model.
    """
    return attempt("flops:unknown", "the model cannot be read: FLOPs are left out", _find, chunks)


def _find(chunks: Sequence[nn.Module]) -> Estimator | None:
    model = _find_model([module for chunk in chunks for module in chunk.modules()])
    if model is None:
        return None
    reason = _find_reason(model)
    if reason is None:
        return _estimate(model)
    report_once("flops:unknown", _MESSAGE % reason)
    return None


def _find_model(modules: Sequence[nn.Module]) -> Any:
    of_megatron = [module for module in modules if "MegatronModule" in _names_of(module)]
    known = (module for module in of_megatron if _kind_of(module) is not None)
    unknown = (module for module in of_megatron if hasattr(module, "vocab_size"))
    return next(known, None) or next(unknown, None)


def _find_reason(model: Any) -> str | None:
    kind = _kind_of(model)
    if kind is None:
        return f"there is no FLOPs formula for {type(model).__name__}"
    unknown = unknown_work(model.config, hybrid_pattern=_pattern_of(model))
    return unknown_work(model.encoder_config) if kind == "T5Model" and unknown is None else unknown


def _kind_of(model: nn.Module) -> str | None:
    """The class of megatron.core that it is or inherits from; named, because importing all of them is slow."""
    return next((kind for kind in _KINDS if kind in _names_of(model)), None)


def _names_of(module: nn.Module) -> set[str]:
    return {base.__name__ for base in type(module).__mro__}


def _pattern_of(model: Any) -> str | None:
    if _kind_of(model) not in _HYBRIDS:
        return None
    declared = getattr(model, "hybrid_layer_pattern", None) or getattr(model, "hybrid_override_pattern", None)
    return declared or _pattern_from_ratios(model)


def _pattern_from_ratios(model: Any) -> str:
    """Megatron's own arithmetic; newer versions put its result into ``hybrid_layer_pattern``."""
    from megatron.core.ssm.mamba_hybrid_layer_allocation import allocate_layers

    ratios = (model.hybrid_attention_ratio, model.hybrid_mlp_ratio)
    return "".join(allocate_layers(model.config.num_layers, *ratios))


def _estimate(model: Any) -> Estimator | None:
    if _kind_of(model) == "T5Model":
        return megatron_t5_flops_estimator(model.encoder_config, model.config, vocab_size=int(model.vocab_size))
    return megatron_flops_estimator(
        model.config,
        vocab_size=int(model.vocab_size),
        hybrid_pattern=_pattern_of(model),
        bidirectional=_kind_of(model) == "BertModel",
    )
