"""How the fields of a layer become a mixer that is no softmax attention."""

from __future__ import annotations

from collections.abc import Iterable

from areal_callbacks.flops import blocks
from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layers import Layer, Reader
from areal_callbacks.flops.masks import CAUSAL


def gated_delta_net(layer: Layer) -> Macs:
    """Linear attention of Qwen3-Next and Qwen3.5."""
    return blocks.gated_delta_net(**_read_delta_net(layer.fields))


def gated_delta_net_2(layer: Layer) -> Macs:
    """The delta rule with gates for each channel, under the fields of :func:`gated_delta_net` (Megatron's "gdn2")."""
    return blocks.gated_delta_net_2(**_read_delta_net(layer.fields))


def _read_delta_net(fields: Fields) -> dict[str, int]:
    return {
        "hidden_size": fields.integer("hidden_size"),
        "num_key_heads": fields.integer("linear_num_key_heads"),
        "num_value_heads": fields.integer("linear_num_value_heads"),
        "key_head_dim": fields.integer("linear_key_head_dim"),
        "value_head_dim": fields.integer("linear_value_head_dim"),
        "conv_kernel_size": fields.integer("linear_conv_kernel_dim"),
    }


def kimi_delta_attention(*, low_rank_gates: bool) -> Reader:
    """Kimi Delta Attention; ``low_rank_gates`` where decay and output gate pass a bottleneck of one head's width."""

    def mixer(layer: Layer) -> Macs:
        fields = layer.fields
        head_dim = fields.integer("linear_head_dim")
        return blocks.kimi_delta_attention(
            hidden_size=fields.integer("hidden_size"),
            num_heads=fields.integer("linear_num_heads"),
            head_dim=head_dim,
            conv_kernel_size=fields.integer("linear_conv_kernel_dim"),
            gate_rank=head_dim if low_rank_gates else None,
        )

    return mixer


def lightning_attention(layer: Layer) -> Macs:
    """Linear attention with a fixed decay for each head (MiniMax-Text-01)."""
    fields = layer.fields
    heads = fields.integer("num_attention_heads", minimum=1)
    return blocks.lightning_attention(
        hidden_size=fields.integer("hidden_size"),
        num_heads=heads,
        head_dim=fields.integer("head_dim", default=fields.integer("hidden_size") // heads),
    )


def mamba(layer: Layer) -> Macs:
    """Mamba-1 mixer, under the fields of Mamba's own configuration."""
    fields = layer.fields
    hidden = fields.integer("hidden_size")
    return blocks.mamba(
        hidden_size=hidden,
        inner_size=fields.integer("expand") * hidden,
        state_size=fields.integer("state_size"),
        time_step_rank=fields.integer("time_step_rank"),
        conv_kernel_size=fields.integer("conv_kernel"),
    )


def mamba2(layer: Layer) -> Macs:
    """Mamba-2 mixer, under the fields of Mamba-2's own configuration."""
    fields = layer.fields
    return blocks.mamba2(
        hidden_size=fields.integer("hidden_size"),
        num_heads=fields.integer("mamba_num_heads"),
        head_dim=fields.integer("mamba_head_dim"),
        n_groups=fields.integer("n_groups"),
        state_size=fields.integer("state_size"),
        conv_kernel_size=fields.integer("conv_kernel"),
    )


MAMBA_FIELDS = {
    "expand": "mamba_expand",
    "state_size": "mamba_d_state",
    "time_step_rank": "mamba_dt_rank",
    "conv_kernel": "mamba_d_conv",
    "mamba_num_heads": "mamba_n_heads",
    "mamba_head_dim": "mamba_d_head",
    "n_groups": "mamba_n_groups",
}
"""Their names in most hybrid configurations."""


def beside(attention: Reader, mixer: Reader) -> Reader:
    """Attention and another mixer, both fed by the same input (Falcon-H1)."""

    def read(layer: Layer) -> Iterable[Block]:
        found = [(attention(layer), "attention"), (mixer(layer), "mamba")]
        return [Block(macs, mask=CAUSAL, name=name) for macs, name in found if isinstance(macs, Macs)]

    return read


def short_convolution(layer: Layer) -> Macs:
    """Gated short convolution (LFM2): input to three hidden sizes, depthwise convolution, output."""
    hidden = layer.fields.integer("hidden_size")
    convolution = blocks.depthwise_convolution(channels=hidden, kernel_size=layer.fields.integer("conv_L_cache"))
    return Macs(4 * hidden * hidden) + convolution


def gated_recurrence(layer: Layer) -> Macs:
    """Real-gated linear recurrent unit (Griffin, arXiv 2402.19427): three projections, convolution, two gates.

    The gates are block-diagonal with one block for each head. The recurrence itself is elementwise.
    """
    fields = layer.fields
    hidden, width = fields.integer("hidden_size"), fields.integer("lru_width", default=fields.integer("hidden_size"))
    gates = 2 * width * (width // fields.integer("num_attention_heads", minimum=1))
    convolution = blocks.depthwise_convolution(channels=width, kernel_size=fields.integer("conv1d_width"))
    return Macs(3 * hidden * width + gates) + convolution


def rwkv_time_mix(layer: Layer) -> Macs:
    """Time mixing of RWKV-4: key, value, receptance and output (arXiv 2305.13048); its recurrence is elementwise."""
    hidden = layer.fields.integer("hidden_size")
    return Macs(4 * hidden * layer.fields.integer("attention_hidden_size", default=hidden))


def rwkv_channel_mix(layer: Layer) -> Macs:
    """Channel mixing of RWKV-4: a plain MLP and the receptance (arXiv 2305.13048)."""
    hidden = layer.fields.integer("hidden_size")
    return Macs(hidden * hidden + 2 * hidden * layer.fields.integer("intermediate_size", default=4 * hidden))


def matrix_lstm(layer: Layer) -> Macs:
    """mLSTM of xLSTM (arXiv 2405.04517): matrix memory with a normaliser, gates for each head."""
    fields = layer.fields
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_heads", minimum=1)
    keys, values = (int(hidden * fields.get(f"{name}_dim_factor")) for name in ("qk", "v"))
    projections = hidden * (2 * keys + 2 * values + 2 * heads) + values * hidden
    memory = blocks.linear_recurrence(heads, keys // heads, values // heads)
    return Macs(projections) + memory + blocks.unweighted(keys)
