"""Multiply-adds of the forward pass, block by block, in exact integers.

Counted: matrix products of projections, experts, routers and attention, and the depthwise convolution and recurrence of
linear attention. Not counted: biases, norms, activations, softmax, rotary embeddings, embedding lookups.

Every function takes plain dimensions, so that any framework's configuration can be described with it.
"""

from areal_callbacks.flops.blocks.attention import (
    grouped_query_attention,
    multi_head_latent_attention,
    projection,
    sparse_attention_indexer,
)
from areal_callbacks.flops.blocks.feed_forward import (
    feed_forward,
    language_model_head,
    latent_experts,
    routed_experts,
    shared_expert,
)
from areal_callbacks.flops.blocks.linear_attention import (
    delta_rule,
    depthwise_convolution,
    gated_delta_net,
    gated_delta_net_2,
    kimi_delta_attention,
    lightning_attention,
    linear_recurrence,
    mamba,
    mamba2,
)
from areal_callbacks.flops.blocks.macs import Macs, unweighted

__all__ = [
    "Macs",
    "delta_rule",
    "depthwise_convolution",
    "feed_forward",
    "gated_delta_net",
    "gated_delta_net_2",
    "grouped_query_attention",
    "kimi_delta_attention",
    "language_model_head",
    "latent_experts",
    "lightning_attention",
    "linear_recurrence",
    "mamba",
    "mamba2",
    "multi_head_latent_attention",
    "projection",
    "routed_experts",
    "shared_expert",
    "sparse_attention_indexer",
    "unweighted",
]
