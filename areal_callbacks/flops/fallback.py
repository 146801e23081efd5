"""An approximate estimate for a model without a formula: 6 FLOPs for each active parameter and token.

Source: scaling laws (arXiv 2001.08361), section 2.1, for dense models; PaLM (arXiv 2204.02311), appendix B, adds
attention.

Opt-in, and to be labelled approximate: it takes every matrix for one that each token is multiplied with, which holds
for projections and MLPs, and knows experts and attention only as far as the configuration names them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_callbacks.flops.estimator import TRAINING_FLOPS_PER_MAC, check_length
from areal_callbacks.flops.fields import ABSENT, read_field

if TYPE_CHECKING:
    from torch import Tensor, nn

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_SELECTED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k")
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
_WIDTH = ("hidden_size", "d_model", "n_embd")
_ONE_EXPERT = re.compile(r"\bexperts\.\d+\.")


@dataclass(frozen=True)
class ApproximateFlops:
    """Training FLOPs of one sequence of L tokens: ``6·N·L``, and causal attention where it is known.

    Attributes:
        active_parameters: N, the weights that a token is multiplied with, the head's included.
        attention_macs: multiply-adds for each (query, key) pair over all layers; 0 where heads are not known.
    """

    active_parameters: int
    attention_macs: int

    def __call__(self, length: int) -> int:
        """FLOPs of one sequence of ``length`` tokens. Raises TypeError or ValueError for what is no length."""
        length = check_length(length)
        pairs = length * (length + 1) // 2
        return TRAINING_FLOPS_PER_MAC * (self.active_parameters * length + self.attention_macs * pairs)


def approximate_flops(model: nn.Module, config: Any = None) -> ApproximateFlops | None:
    """The approximate estimate of a model; None if it has no matrices that can be read.

    Parameters are counted by their whole shape where they are sharded as DTensors or by DeepSpeed; a model whose
    parameters were flattened (FSDP 1) has none to read.

    Args:
        model: the module that trains.
        config: its configuration, by default ``model.config``: names experts and heads; may be None.
    """
    config = getattr(model, "config", None) if config is None else config
    active = sum(matrix.active for matrix in find_matrices(model, config))
    return ApproximateFlops(active, _attention(config)) if active else None


class Matrix(NamedTuple):
    """Weights that tokens are multiplied with.

    Attributes:
        name: of the parameter.
        active: weights that one token is multiplied with, experts by the share that is selected.
        is_trained: the weights get gradients.
        is_embedding: a lookup, and perhaps also the head.
        key: of the parameter, equal for weights that are tied.
    """

    name: str
    active: int
    is_trained: bool
    is_embedding: bool
    key: int


def find_matrices(model: nn.Module, config: Any, *, embeddings: bool = False) -> list[Matrix]:
    """The matrices of a module; a tied head is one of them, embeddings that only look up are one on request."""
    experts, selected = _first(config, _EXPERTS), _first(config, _SELECTED)
    return [
        Matrix(name, _active(name, _shape(p), experts, selected), p.requires_grad, is_embedding, id(p))
        for name, p, is_embedding in _matrices(model)
        if embeddings or not is_embedding
    ]


def _matrices(model: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    from torch import nn

    lookups = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, parameter in model.named_parameters():
        if len(_shape(parameter)) >= 2 and not name.endswith("bias"):
            yield name, parameter, id(parameter) in lookups
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and id(module.weight) in lookups:
            yield f"{name}.weight", module.weight, False


def _shape(parameter: Tensor) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _active(name: str, shape: tuple[int, ...], experts: int, selected: int) -> int:
    size = math.prod(shape)
    fused = len(shape) == 3 and shape[0] == experts
    return size * selected // experts if experts and selected and (fused or _ONE_EXPERT.search(name)) else size


def _attention(config: Any) -> int:
    layers, heads, width = (_first(config, names) for names in (_LAYERS, _HEADS, _WIDTH))
    head_dim = _first(config, ("head_dim",)) or (width // heads if heads else 0)
    return 2 * layers * heads * head_dim


def _first(config: Any, names: tuple[str, ...]) -> int:
    values = (read_field(config, name) for name in names)
    return next((v for v in values if v is not ABSENT and isinstance(v, int) and not isinstance(v, bool)), 0)
