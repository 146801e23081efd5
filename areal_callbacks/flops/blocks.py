"""Multiply-adds of the forward pass, block by block, in exact integers.

Counted: matrix products of projections, experts, routers and attention, and the depthwise convolution and recurrence of
linear attention. Not counted: biases, norms, activations, softmax, rotary embeddings, embedding lookups.

Every function takes plain dimensions, so that any framework's configuration can be described with it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Macs:
    """Multiply-adds of one block; blocks of a layer add up with ``+``.

    Attributes:
        per_token: multiply-adds for each token.
        per_pair: multiply-adds for each (query, key) pair that attention visits.
    """

    per_token: int = 0
    per_pair: int = 0

    def __add__(self, other: Macs) -> Macs:
        return Macs(self.per_token + other.per_token, self.per_pair + other.per_pair)


def grouped_query_attention(
    *, hidden_size: int, num_attention_heads: int, num_key_value_heads: int, head_dim: int, gated: bool = False
) -> Macs:
    """Grouped-query attention; multi-head attention is the case of equal head numbers.

    With h = hidden_size, D = head_dim, Hq query and Hkv key-value heads: ``h·D·(2·Hq + 2·Hkv)`` per token (query, key,
    value, output), ``h·D·Hq`` more with an output gate, and ``2·Hq·D`` per pair (scores, weighted values).
    """
    query_sized_projections = 3 if gated else 2
    projected_heads = query_sized_projections * num_attention_heads + 2 * num_key_value_heads
    return Macs(hidden_size * head_dim * projected_heads, 2 * num_attention_heads * head_dim)


def multi_head_latent_attention(
    *,
    hidden_size: int,
    num_attention_heads: int,
    q_lora_rank: int | None,
    kv_lora_rank: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    v_head_dim: int,
) -> Macs:
    """Multi-head latent attention in its training form (keys and values are expanded).

    With h = hidden_size, H heads, q = qk_nope_head_dim + qk_rope_head_dim, v = v_head_dim, r = kv_lora_rank, per token:
    queries ``h·q_lora_rank + q_lora_rank·H·q`` (``h·H·q`` without a query rank), keys and values
    ``h·(r + qk_rope_head_dim) + r·H·(qk_nope_head_dim + v)``, output ``H·v·h``; and ``H·(q + v)`` per pair.
    """
    qk_head_dim = qk_nope_head_dim + qk_rope_head_dim
    queries = num_attention_heads * qk_head_dim
    query = hidden_size * queries if q_lora_rank is None else q_lora_rank * (hidden_size + queries)
    compress = hidden_size * (kv_lora_rank + qk_rope_head_dim)
    expand = kv_lora_rank * num_attention_heads * (qk_nope_head_dim + v_head_dim)
    output = num_attention_heads * v_head_dim * hidden_size
    return Macs(query + compress + expand + output, num_attention_heads * (qk_head_dim + v_head_dim))


def gated_delta_net(
    *,
    hidden_size: int,
    num_key_heads: int,
    num_value_heads: int,
    key_head_dim: int,
    value_head_dim: int,
    conv_kernel_size: int,
) -> Macs:
    """Linear attention by the gated delta rule; its work grows linearly with the sequence.

    With h = hidden_size, K = num_key_heads·key_head_dim, V = num_value_heads·value_head_dim, per token: projections
    ``h·(2K + 2V + 2·num_value_heads)`` (query, key, value, gate, decay, beta), output ``V·h``, depthwise convolution
    ``conv_kernel_size·(2K + V)``, recurrence ``3·num_value_heads·key_head_dim·value_head_dim`` (state prediction,
    update and readout: the recurrent form, whatever a chunked kernel executes).
    """
    keys, values = num_key_heads * key_head_dim, num_value_heads * value_head_dim
    projections = hidden_size * (2 * keys + 2 * values + 2 * num_value_heads) + values * hidden_size
    convolution = conv_kernel_size * (2 * keys + values)
    recurrence = 3 * num_value_heads * key_head_dim * value_head_dim
    return Macs(projections + convolution + recurrence)


def feed_forward(*, hidden_size: int, intermediate_size: int, gated: bool = True) -> Macs:
    """Dense MLP: ``3·hidden_size·intermediate_size`` per token when gated (SwiGLU, GeGLU), ``2·…`` otherwise."""
    return Macs((3 if gated else 2) * hidden_size * intermediate_size)


def routed_experts(
    *, hidden_size: int, intermediate_size: int, num_experts: int, num_experts_per_tok: int, gated: bool = True
) -> Macs:
    """Router and the experts that it selects.

    ``hidden_size·num_experts`` for the router and num_experts_per_tok times :func:`feed_forward`, whose
    intermediate_size is that of one expert.
    """
    expert = feed_forward(hidden_size=hidden_size, intermediate_size=intermediate_size, gated=gated)
    return Macs(hidden_size * num_experts + num_experts_per_tok * expert.per_token)


def shared_expert(
    *, hidden_size: int, intermediate_size: int, gated: bool = True, weighted_by_token: bool = False
) -> Macs:
    """Expert that every token visits: :func:`feed_forward`, plus ``hidden_size`` for its own one-logit gate, if any.

    Several shared experts are one of their summed intermediate size.
    """
    expert = feed_forward(hidden_size=hidden_size, intermediate_size=intermediate_size, gated=gated)
    return expert + Macs(hidden_size if weighted_by_token else 0)


def language_model_head(*, hidden_size: int, vocab_size: int) -> Macs:
    """Logits at every position: ``hidden_size·vocab_size`` per token, also when the weights are the embedding's."""
    return Macs(hidden_size * vocab_size)
