"""Softmax attention."""

from __future__ import annotations

from areal_callbacks.flops.blocks.macs import Macs


def grouped_query_attention(
    *,
    hidden_size: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    v_head_dim: int | None = None,
    gated: bool = False,
) -> Macs:
    """Grouped-query attention; multi-head attention is the case of equal head numbers.

    With h = hidden_size, D = head_dim, Hq query and Hkv key-value heads: ``h·D·(2·Hq + 2·Hkv)`` per token (query, key,
    value, output), ``h·D·Hq`` more with an output gate, and ``2·Hq·D`` per pair (scores, weighted values). Values of
    another width, v_head_dim, take the place of D in the value, output and gate projections and the weighted values.
    Source: GQA (arXiv 2305.13245), section 2.2; scores: Transformer (arXiv 1706.03762), section 3.2.
    """
    values = head_dim if v_head_dim is None else v_head_dim
    query_and_key = head_dim * (num_attention_heads + num_key_value_heads)
    value_and_output = values * (num_key_value_heads + num_attention_heads * (2 if gated else 1))
    return Macs(hidden_size * (query_and_key + value_and_output), num_attention_heads * (head_dim + values))


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
    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
    """
    qk_head_dim = qk_nope_head_dim + qk_rope_head_dim
    queries = num_attention_heads * qk_head_dim
    query = hidden_size * queries if q_lora_rank is None else q_lora_rank * (hidden_size + queries)
    compress = hidden_size * (kv_lora_rank + qk_rope_head_dim)
    expand = kv_lora_rank * num_attention_heads * (qk_nope_head_dim + v_head_dim)
    output = num_attention_heads * v_head_dim * hidden_size
    return Macs(query + compress + expand + output, num_attention_heads * (qk_head_dim + v_head_dim))


def sparse_attention_indexer(*, hidden_size: int, query_size: int, num_heads: int, head_dim: int) -> Macs:
    """The indexer that selects the keys of sparse attention.

    Queries of num_heads from query_size, one key and one weight per head from hidden_size: ``query_size·H·D + h·D +
    h·H`` per token; scores and their weighted sum over heads ``H·D + H`` per pair, over the whole prefix.
    Source: DeepSeek-V3.2 (arXiv 2512.02556), equation 1.
    """
    projections = query_size * num_heads * head_dim + hidden_size * (head_dim + num_heads)
    return Macs(projections, num_heads * (head_dim + 1))


def projection(input_size: int, output_size: int) -> Macs:
    """One matrix: ``input_size·output_size`` per token."""
    return Macs(input_size * output_size)
