"""How the fields of a layer become its feed-forward block."""

from __future__ import annotations

from collections.abc import Callable

from areal_callbacks.flops import blocks
from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layers import Layer, Reader, together


def mlp(size: str = "intermediate_size", *, gated: bool = True, times_hidden: int | None = None) -> Reader:
    """Dense MLP.

    Args:
        size: the field of the intermediate size; in some architectures a list with one entry for each layer.
        gated: three matrices instead of two.
        times_hidden: the intermediate size where the field is absent or None, in hidden sizes.
    """

    def feed_forward(layer: Layer) -> Macs:
        hidden = layer.fields.integer("hidden_size")
        return blocks.feed_forward(
            hidden_size=hidden,
            intermediate_size=layer.integer(size, default=times_hidden and times_hidden * hidden),
            gated=gated,
        )

    return feed_forward


def mlp_of_hidden_sizes(multiple: str) -> Reader:
    """Plain MLP whose intermediate size is field ``multiple`` times the hidden size."""

    def feed_forward(layer: Layer) -> Macs:
        hidden = layer.fields.integer("hidden_size")
        return blocks.feed_forward(
            hidden_size=hidden, intermediate_size=hidden * layer.fields.integer(multiple), gated=False
        )

    return feed_forward


GATED_MLP = mlp()
PLAIN_MLP = mlp(gated=False)
PLAIN_MLP_4 = mlp(gated=False, times_hidden=4)


def experts(size: str = "moe_intermediate_size", *, gated: bool = True) -> Reader:
    """Router and routed experts; ``size`` is the field of one expert's intermediate size."""

    def feed_forward(layer: Layer) -> Macs:
        return blocks.routed_experts(
            hidden_size=layer.fields.integer("hidden_size"),
            intermediate_size=layer.integer(size),
            num_experts=number_of_experts(layer.fields),
            num_experts_per_tok=layer.integer("num_experts_per_tok"),
            gated=gated,
        )

    return feed_forward


def number_of_experts(fields: Fields) -> int:
    """Routed experts of a layer, under any of the names that configurations and their saved JSON use."""
    return fields.integer("num_experts", "num_local_experts", "n_routed_experts")


def shared_expert(size: str = "shared_expert_intermediate_size", *, weighted: bool = False) -> Reader:
    """One expert of its own size that every token visits; ``weighted`` by a gate of its own (Qwen2-MoE)."""

    def feed_forward(layer: Layer) -> Macs:
        return blocks.shared_expert(
            hidden_size=layer.fields.integer("hidden_size"),
            intermediate_size=layer.fields.integer(size),
            weighted_by_token=weighted,
        )

    return feed_forward


def shared_experts(
    number: str = "n_shared_experts", size: str = "moe_intermediate_size", *, default: int | None = None
) -> Reader:
    """As many experts of the routed ones' size as field ``number`` says, None meaning none (DeepSeek, GLM-4-MoE)."""

    def feed_forward(layer: Layer) -> Macs:
        fields = layer.fields
        shared = layer.integer(number, default=default) if default else fields.nullable_integer(number, null=0) or 0
        return blocks.shared_expert(
            hidden_size=fields.integer("hidden_size"), intermediate_size=shared * fields.integer(size)
        )

    return feed_forward


EXPERTS = experts("intermediate_size")
SMALL_EXPERTS = experts()
EXPERTS_AND_GATED_SHARED_EXPERT = together(SMALL_EXPERTS, shared_expert(weighted=True))
EXPERTS_AND_SHARED_EXPERT = together(SMALL_EXPERTS, shared_expert())
EXPERTS_AND_SHARED_EXPERTS = together(SMALL_EXPERTS, shared_experts())
EXPERTS_AND_NUMBERED_SHARED = together(SMALL_EXPERTS, shared_experts("num_shared_experts"))


def dense_between_steps(layer: Layer) -> bool:
    """Whether a layer of the Qwen MoE families is dense: in ``mlp_only_layers`` or off the ``decoder_sparse_step``."""
    fields = layer.fields
    step = fields.integer("decoder_sparse_step", default=1, minimum=1)
    listed = layer.index in (fields.sequence("mlp_only_layers") or ())
    return listed or (layer.index + 1) % step != 0 or number_of_experts(fields) == 0


def dense_before(name: str) -> Callable[[Layer], bool]:
    """Whether a layer is one of the first dense ones, whose number is field ``name``."""
    return lambda layer: layer.index < layer.fields.integer(name)


def dense_first(layer: Layer) -> bool:
    """Whether a layer is one of the ``first_k_dense_replace`` dense ones (DeepSeek, GLM-4-MoE)."""
    return layer.index < layer.fields.integer("first_k_dense_replace")


def dense_declared(layer: Layer) -> bool:
    """Whether ``mlp_layer_types`` says so; saved files without it have ``first_k_dense_replace``."""
    declared = layer.fields.sequence("mlp_layer_types")
    return dense_first(layer) if declared is None else declared[layer.index] == "dense"
