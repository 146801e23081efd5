"""Mixers whose work grows linearly with the sequence: linear attention, state spaces, short convolutions.

Recurrences are counted in their recurrent form and by their products alone (outer product of the update, product of the
readout), whatever a chunked kernel executes; the elementwise decay of a state is not counted.
"""

from __future__ import annotations

from areal_callbacks.flops.blocks.macs import Macs, unweighted


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
    update and readout: the recurrent form, whatever a chunked kernel executes). Source: arXiv 2412.06464.
    """
    keys, values = num_key_heads * key_head_dim, num_value_heads * value_head_dim
    projections = hidden_size * (2 * keys + 2 * values + 2 * num_value_heads) + values * hidden_size
    convolution = depthwise_convolution(channels=2 * keys + values, kernel_size=conv_kernel_size)
    return Macs(projections) + convolution + delta_rule(num_value_heads, key_head_dim, value_head_dim)


def gated_delta_net_2(
    *,
    hidden_size: int,
    num_key_heads: int,
    num_value_heads: int,
    key_head_dim: int,
    value_head_dim: int,
    conv_kernel_size: int,
) -> Macs:
    """:func:`gated_delta_net` whose decay, erasure and writing have a gate for each channel instead of each head.

    With K and V as there, per token: projections ``h·(4K + 3V)`` (query, key, value, output gate, decay and erasure of
    key channels, writing of value channels), output ``V·h``, and the same convolution and recurrence, whose gates
    multiply element by element. Source: Gated DeltaNet-2 as Megatron-Core's "gdn2" has it, with gates of full rank.
    """
    keys, values = num_key_heads * key_head_dim, num_value_heads * value_head_dim
    projections = hidden_size * (4 * keys + 3 * values) + values * hidden_size
    convolution = depthwise_convolution(channels=2 * keys + values, kernel_size=conv_kernel_size)
    return Macs(projections) + convolution + delta_rule(num_value_heads, key_head_dim, value_head_dim)


def delta_rule(num_heads: int, key_head_dim: int, value_head_dim: int) -> Macs:
    """State prediction, update and readout: ``3·num_heads·key_head_dim·value_head_dim`` per token.

    Source: linear transformers with the delta rule (arXiv 2406.06484).
    """
    return unweighted(3 * num_heads * key_head_dim * value_head_dim)


def linear_recurrence(num_heads: int, key_head_dim: int, value_head_dim: int) -> Macs:
    """Update and readout of a matrix state: ``2·num_heads·key_head_dim·value_head_dim`` per token.

    Lightning attention and gated linear attention; Mamba with its state size as the key width. Source: gated linear
    attention (arXiv 2312.06635).
    """
    return unweighted(2 * num_heads * key_head_dim * value_head_dim)


def depthwise_convolution(*, channels: int, kernel_size: int) -> Macs:
    """Causal convolution of each channel by itself: ``channels·kernel_size`` per token.

    Source: each output of a channel is the sum of ``kernel_size`` products (Xception, arXiv 1610.02357).
    """
    return Macs(channels * kernel_size)


def mamba(*, hidden_size: int, inner_size: int, state_size: int, time_step_rank: int, conv_kernel_size: int) -> Macs:
    """Mamba-1 mixer (selective state space).

    With h, d = inner_size, N = state_size, r = time_step_rank, per token: input ``2·h·d``, convolution, parameters
    ``d·(r + 2N)``, time step ``r·d``, output ``d·h``, recurrence ``2·d·N``. Source: arXiv 2312.00752, section 3.
    """
    projections = 3 * hidden_size * inner_size + inner_size * (time_step_rank + 2 * state_size)
    time_step = time_step_rank * inner_size
    convolution = depthwise_convolution(channels=inner_size, kernel_size=conv_kernel_size)
    return Macs(projections + time_step) + convolution + linear_recurrence(inner_size, 1, state_size)


def mamba2(
    *, hidden_size: int, num_heads: int, head_dim: int, n_groups: int, state_size: int, conv_kernel_size: int
) -> Macs:
    """Mamba-2 mixer (state-space duality).

    With h, d = num_heads·head_dim, N = state_size, per token: input ``h·(2d + 2·n_groups·N + num_heads)``, convolution
    over ``d + 2·n_groups·N`` channels, output ``d·h``, recurrence ``2·d·N``. Source: arXiv 2405.21060, section 7.
    """
    inner, groups = num_heads * head_dim, 2 * n_groups * state_size
    projections = hidden_size * (2 * inner + groups + num_heads) + inner * hidden_size
    convolution = depthwise_convolution(channels=inner + groups, kernel_size=conv_kernel_size)
    return Macs(projections) + convolution + linear_recurrence(num_heads, head_dim, state_size)


def kimi_delta_attention(
    *, hidden_size: int, num_heads: int, head_dim: int, conv_kernel_size: int, gate_rank: int | None
) -> Macs:
    """Kimi Delta Attention: the delta rule with one decay for each key channel.

    With h and d = num_heads·head_dim, per token: query, key, value ``3·h·d``, decay and output gate ``2·h·d`` (with a
    gate rank r ``2·(h·r + r·d)``), beta ``h·num_heads``, output ``d·h``, convolution over ``3·d`` channels, and the
    recurrence of :func:`delta_rule`. Source: arXiv 2510.26692.
    """
    inner = num_heads * head_dim
    gate = hidden_size * inner if gate_rank is None else gate_rank * (hidden_size + inner)
    projections = 4 * hidden_size * inner + 2 * gate + hidden_size * num_heads
    convolution = depthwise_convolution(channels=3 * inner, kernel_size=conv_kernel_size)
    return Macs(projections) + convolution + delta_rule(num_heads, head_dim, head_dim)


def lightning_attention(*, hidden_size: int, num_heads: int, head_dim: int) -> Macs:
    """Lightning attention: query, key, value, output gate and output of d = num_heads·head_dim; a matrix state.

    ``5·h·d`` and ``2·num_heads·head_dim²`` per token. Source: MiniMax-01 (arXiv 2501.08313), section 2.2.
    """
    projections = 5 * hidden_size * num_heads * head_dim
    return Macs(projections) + linear_recurrence(num_heads, head_dim, head_dim)
