"""How the fields of a layer become its attention block."""

from __future__ import annotations

from collections.abc import Iterable

from areal_callbacks.flops import blocks
from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layers import Layer, Reader
from areal_callbacks.flops.masks import BIDIRECTIONAL, CAUSAL, Relative, Sliding


def grouped_query_attention(
    *, own_head_dim: bool = False, gated: bool = False, key_value_heads: bool = True, values: str = ""
) -> Reader:
    """Attention of ``num_attention_heads`` and ``num_key_value_heads``.

    Args:
        own_head_dim: the architecture's default ``head_dim`` is not hidden_size / num_attention_heads, so that a
            configuration without the field is incomplete.
        gated: the output has a gate as wide as the queries.
        key_value_heads: False for multi-head attention, whose configurations have no number of key-value heads.
        values: the field with the width of a value head, where that is not ``head_dim``.
    """

    def attention(layer: Layer) -> Macs:
        hidden, heads = layer.fields.integer("hidden_size"), layer.integer("num_attention_heads", minimum=1)
        grouped = layer.fields.nullable_integer("num_key_value_heads", null=None) if key_value_heads else None
        return blocks.grouped_query_attention(
            hidden_size=hidden,
            num_attention_heads=heads,
            num_key_value_heads=heads if grouped is None else grouped,
            head_dim=layer.fields.integer("head_dim", default=None if own_head_dim else hidden // heads),
            v_head_dim=layer.fields.integer(values) if values else None,
            gated=gated,
        )

    return attention


GQA = grouped_query_attention()
GQA_OWN_HEAD_DIM = grouped_query_attention(own_head_dim=True)
GATED_GQA = grouped_query_attention(own_head_dim=True, gated=True)
MHA = grouped_query_attention(key_value_heads=False)


def multi_head_latent_attention(layer: Layer) -> Macs:
    """Attention of DeepSeek-V2 and V3, with or without a query rank."""
    fields = layer.fields
    return blocks.multi_head_latent_attention(
        hidden_size=fields.integer("hidden_size"),
        num_attention_heads=fields.integer("num_attention_heads"),
        q_lora_rank=fields.nullable_integer("q_lora_rank", null=None),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
    )


def sparse_latent_attention(layer: Layer) -> Iterable[Block]:
    """Latent attention over the ``index_topk`` keys that an indexer selects (DeepSeek-V3.2, GLM-5)."""
    return [*indexer(layer), selected_keys(layer, multi_head_latent_attention(layer))]


def selected_keys(layer: Layer, macs: Macs) -> Block:
    """Attention over ``index_topk`` selected keys."""
    return Block(macs, mask=Sliding(layer.fields.integer("index_topk", minimum=1)), name="attention")


def indexer(layer: Layer) -> list[Block]:
    """The indexer; layers whose entry of ``indexer_types`` is "shared" use that of an earlier layer."""
    fields = layer.fields
    if (fields.sequence("indexer_types") or {}) and fields.get("indexer_types")[layer.index] == "shared":
        return []
    macs = blocks.sparse_attention_indexer(
        hidden_size=fields.integer("hidden_size"),
        query_size=fields.integer("q_lora_rank"),
        num_heads=fields.integer("index_n_heads"),
        head_dim=fields.integer("index_head_dim"),
    )
    return [Block(macs, mask=CAUSAL, name="indexer")]


def differential_attention(layer: Layer) -> Macs:
    """Two maps of grouped-query attention, each over values of twice the width (DiffLlama).

    The model computes the scores once for each half of the values, so that a pair costs twice that of GQA. Source:
    Differential Transformer (arXiv 2410.05258), section 2.1, as transformers' DiffLlama computes it.
    """
    macs = GQA(layer)
    assert isinstance(macs, Macs)
    return macs + Macs(per_pair=macs.per_pair)


def fused_query_attention(layer: Layer) -> Macs:
    """Multi-head attention, or one key-value head for all queries where ``multi_query`` is set (GPTBigCode)."""
    fields = layer.fields
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads", minimum=1)
    return blocks.grouped_query_attention(
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=1 if fields.get("multi_query") else heads,
        head_dim=hidden // heads,
    )


def head_gated(attention: Reader, switch: str = "") -> Reader:
    """Attention whose heads are each weighted by one gate, if there is a field ``switch`` where it is set."""

    def read(layer: Layer) -> Macs:
        macs = attention(layer)
        assert isinstance(macs, Macs)
        if switch and not layer.fields.get(switch):
            return macs
        return macs + Macs(layer.fields.integer("hidden_size") * layer.integer("num_attention_heads"))

    return read


def head_or_channel_gated(layer: Layer) -> Macs | Iterable[Block]:
    """Attention with one gate for each head, or for each channel unless ``gating`` is True or "per-head" (Laguna)."""
    per_head = layer.fields.get("gating", True) in (True, "per-head")
    return head_gated(GQA_OWN_HEAD_DIM)(layer) if per_head else GATED_GQA(layer)


def disentangled_attention(*, clipped: bool) -> Reader:
    """Attention of DeBERTa (arXiv 2006.03654, section 3.1).

    With ``relative_attention``, each of "c2p" and "p2c" in ``pos_att_type`` multiplies every query or key with the
    projected embeddings of 2k relative positions. The projection of those embeddings depends on no sequence, so that it
    is left out.

    Args:
        clipped: relative positions beyond the length of the sequence are not multiplied (the first version).
    """

    def attention(layer: Layer) -> Iterable[Block]:
        fields, hidden = layer.fields, layer.fields.integer("hidden_size")
        found = MHA(layer)
        assert isinstance(found, Macs)
        terms = _relative_terms(fields)
        shared = bool(fields.get("share_att_key")) and not clipped
        attention = Block(found + Macs(unused=0 if shared else terms * hidden**2), mask=BIDIRECTIONAL, name="attention")
        if not terms:
            return [attention]
        reach = _relative_positions(fields)
        if clipped:
            return [attention, Block(Macs(per_pair=terms * hidden), mask=Relative(reach), name="relative positions")]
        return [attention, Block(blocks.unweighted(terms * 2 * reach * hidden), name="relative positions")]

    return attention


def _relative_terms(fields: Fields) -> int:
    if not fields.get("relative_attention"):
        return 0
    named = fields.get("pos_att_type") or ()
    return sum(term in (named.split("|") if isinstance(named, str) else named) for term in ("c2p", "p2c"))


def _relative_positions(fields: Fields) -> int:
    for name in ("position_buckets", "max_relative_positions"):
        if (value := fields.get(name)) is not None and value > 0:
            return int(value)
    return fields.integer("max_position_embeddings")
