"""The built-in architectures: how the fields of a Hugging Face configuration become blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from areal_callbacks.flops import blocks
from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.estimator import Layer, TrainingFlops, training_flops
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layer_types import (
    FULL,
    LINEAR,
    SLIDING,
    Rule,
    declared_or,
    full_every,
    uniform_window,
    uniform_window_if_used,
    window_every_other,
    window_from_layer,
)

Block = Callable[[Fields], Macs]


@dataclass(frozen=True)
class Architecture:
    """One decoder family.

    Attributes:
        attention: the block of a full or sliding layer.
        feed_forward: the block that follows it.
        layer_types: the rule that says which layers are full, sliding or linear; without one, all are full.
        is_dense: whether the layer of an index has a plain MLP instead of ``feed_forward``.
    """

    attention: Block
    feed_forward: Block
    layer_types: Rule | None = None
    is_dense: Callable[[Fields, int], bool] | None = None

    def compile(self, config: Any, model_type: str) -> TrainingFlops:
        """Read a configuration once.

        Raises:
            ValueError: a field is missing or malformed; names the model type and the field.
        """
        fields = Fields(config, model_type)
        if fields.get("use_bidirectional_attention"):
            raise fields.error("'use_bidirectional_attention' is set, and only causal attention is counted")
        layers = fields.integer("num_hidden_layers")
        types = self.layer_types(fields, layers) if self.layer_types else [FULL] * layers
        head = blocks.language_model_head(
            hidden_size=fields.integer("hidden_size"), vocab_size=fields.integer("vocab_size")
        )
        return training_flops([self._layer(fields, index, kind) for index, kind in enumerate(types)], head)

    def _layer(self, fields: Fields, index: int, kind: str) -> Layer:
        is_dense = self.is_dense is not None and self.is_dense(fields, index)
        feed_forward = dense(fields) if is_dense else self.feed_forward(fields)
        if kind == LINEAR:
            return Layer(gated_delta_net(fields) + feed_forward)
        if kind == FULL:
            return Layer(self.attention(fields) + feed_forward)
        if kind == SLIDING:
            return Layer(self.attention(fields) + feed_forward, fields.integer("sliding_window", minimum=1))
        raise fields.error(f"'layer_types' holds {kind!r}; known are {FULL!r}, {SLIDING!r} and {LINEAR!r}")


def grouped_query_attention(*, own_head_dim: bool = False, gated: bool = False) -> Block:
    """Attention of ``num_attention_heads`` and ``num_key_value_heads``.

    Args:
        own_head_dim: the architecture's default ``head_dim`` is not hidden_size / num_attention_heads, so that a
            configuration without the field is incomplete.
        gated: the output has a gate as wide as the queries.
    """

    def attention(fields: Fields) -> Macs:
        hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads", minimum=1)
        key_value_heads = fields.nullable_integer("num_key_value_heads", null=heads)
        return blocks.grouped_query_attention(
            hidden_size=hidden,
            num_attention_heads=heads,
            num_key_value_heads=heads if key_value_heads is None else key_value_heads,
            head_dim=fields.integer("head_dim", default=None if own_head_dim else hidden // heads),
            gated=gated,
        )

    return attention


def multi_head_latent_attention(fields: Fields) -> Macs:
    """Attention of DeepSeek-V2 and V3, with or without a query rank."""
    return blocks.multi_head_latent_attention(
        hidden_size=fields.integer("hidden_size"),
        num_attention_heads=fields.integer("num_attention_heads"),
        q_lora_rank=fields.nullable_integer("q_lora_rank", null=None),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
    )


def gated_delta_net(fields: Fields) -> Macs:
    """Linear attention of Qwen3-Next and Qwen3.5."""
    return blocks.gated_delta_net(
        hidden_size=fields.integer("hidden_size"),
        num_key_heads=fields.integer("linear_num_key_heads"),
        num_value_heads=fields.integer("linear_num_value_heads"),
        key_head_dim=fields.integer("linear_key_head_dim"),
        value_head_dim=fields.integer("linear_value_head_dim"),
        conv_kernel_size=fields.integer("linear_conv_kernel_dim"),
    )


def dense(fields: Fields) -> Macs:
    """Gated MLP of ``intermediate_size``."""
    return blocks.feed_forward(
        hidden_size=fields.integer("hidden_size"), intermediate_size=fields.integer("intermediate_size")
    )


def experts(expert_size: str) -> Block:
    """Router and routed experts; ``expert_size`` is the field of one expert's intermediate size."""

    def feed_forward(fields: Fields) -> Macs:
        return blocks.routed_experts(
            hidden_size=fields.integer("hidden_size"),
            intermediate_size=fields.integer(expert_size),
            num_experts=number_of_experts(fields),
            num_experts_per_tok=fields.integer("num_experts_per_tok"),
        )

    return feed_forward


def number_of_experts(fields: Fields) -> int:
    """Routed experts of a layer, under any of the names that configurations and their saved JSON use."""
    return fields.integer("num_experts", "num_local_experts", "n_routed_experts")


def experts_and_gated_shared_expert(fields: Fields) -> Macs:
    """Routed experts beside one shared expert with a gate of its own (Qwen2-MoE, Qwen3-Next, Qwen3.5-MoE)."""
    return experts("moe_intermediate_size")(fields) + blocks.shared_expert(
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("shared_expert_intermediate_size"),
        weighted_by_token=True,
    )


def experts_and_shared_experts(fields: Fields) -> Macs:
    """Routed experts beside ``n_shared_experts`` of the same size (DeepSeek, GLM-4-MoE)."""
    shared = fields.nullable_integer("n_shared_experts", null=0) or 0
    return experts("moe_intermediate_size")(fields) + blocks.shared_expert(
        hidden_size=fields.integer("hidden_size"), intermediate_size=shared * fields.integer("moe_intermediate_size")
    )


def dense_between_steps(fields: Fields, layer: int) -> bool:
    """Whether a layer of the Qwen MoE families is dense: in ``mlp_only_layers`` or off the ``decoder_sparse_step``."""
    step = fields.integer("decoder_sparse_step", default=1, minimum=1)
    listed = layer in (fields.sequence("mlp_only_layers") or ())
    return listed or (layer + 1) % step != 0 or number_of_experts(fields) == 0


def dense_first(fields: Fields, layer: int) -> bool:
    """Whether a layer is one of the ``first_k_dense_replace`` dense ones (DeepSeek, GLM-4-MoE)."""
    return layer < fields.integer("first_k_dense_replace")


_GQA = grouped_query_attention()
_GQA_OWN_HEAD_DIM = grouped_query_attention(own_head_dim=True)
_GATED_GQA = grouped_query_attention(own_head_dim=True, gated=True)
_EXPERTS = experts("intermediate_size")
_SMALL_EXPERTS = experts("moe_intermediate_size")
_DELTA_NET = declared_or(full_every(4, LINEAR, "full_attention_interval"))
_QWEN_WINDOWS = declared_or(window_from_layer)
_ALTERNATING_WINDOWS = declared_or(full_every(2, SLIDING))
_GEMMA3_WINDOWS = declared_or(full_every(6, SLIDING, "sliding_window_pattern"))

_LLAMA = Architecture(_GQA, dense)
_DEEPSEEK = Architecture(multi_head_latent_attention, experts_and_shared_experts, is_dense=dense_first)
_QWEN3_5 = Architecture(_GATED_GQA, dense, _DELTA_NET)
_QWEN3_5_MOE = Architecture(_GATED_GQA, experts_and_gated_shared_expert, _DELTA_NET)
_QWEN3_NEXT = Architecture(_GATED_GQA, experts_and_gated_shared_expert, _DELTA_NET, dense_between_steps)
_QWEN2_MOE = Architecture(_GQA, experts_and_gated_shared_expert, declared_or(window_every_other), dense_between_steps)

ARCHITECTURES: Mapping[str, Architecture] = {
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "gemma": Architecture(_GQA_OWN_HEAD_DIM, dense),
    "gemma2": Architecture(_GQA_OWN_HEAD_DIM, dense, _ALTERNATING_WINDOWS),
    "gemma3_text": Architecture(_GQA_OWN_HEAD_DIM, dense, _GEMMA3_WINDOWS),
    "glm4_moe": Architecture(_GQA, experts_and_shared_experts, is_dense=dense_first),
    "gpt_oss": Architecture(_GQA_OWN_HEAD_DIM, _EXPERTS, _ALTERNATING_WINDOWS),
    "granite": _LLAMA,
    "kimi_k2": _DEEPSEEK,
    "llama": _LLAMA,
    "mistral": Architecture(_GQA, dense, uniform_window),
    "mixtral": Architecture(_GQA, _EXPERTS, uniform_window),
    "olmo2": _LLAMA,
    "olmo3": Architecture(_GQA, dense, declared_or(full_every(4, SLIDING))),
    "olmoe": Architecture(_GQA, _EXPERTS),
    "phi3": Architecture(_GQA, dense, uniform_window),
    "qwen2": Architecture(_GQA, dense, _QWEN_WINDOWS),
    "qwen2_moe": _QWEN2_MOE,
    "qwen3": Architecture(_GQA_OWN_HEAD_DIM, dense, _QWEN_WINDOWS),
    "qwen3_5": _QWEN3_5,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5_MOE,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_moe": Architecture(_GQA, _SMALL_EXPERTS, uniform_window_if_used, dense_between_steps),
    "qwen3_next": _QWEN3_NEXT,
    "seed_oss": Architecture(_GQA_OWN_HEAD_DIM, dense),
}
"""Model type → architecture. Each is verified against operator counts of the model itself."""
