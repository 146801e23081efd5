"""Dense MLPs, experts and heads."""

from __future__ import annotations

from areal_callbacks.flops.blocks.macs import Macs


def feed_forward(*, hidden_size: int, intermediate_size: int, gated: bool = True) -> Macs:
    """Dense MLP: ``3·hidden_size·intermediate_size`` per token when gated (SwiGLU, GeGLU), ``2·…`` otherwise.

    Source: Transformer (arXiv 1706.03762), section 3.3; gated: GLU variants (arXiv 2002.05202), section 2.
    """
    return Macs((3 if gated else 2) * hidden_size * intermediate_size)


def routed_experts(
    *, hidden_size: int, intermediate_size: int, num_experts: int, num_experts_per_tok: int, gated: bool = True
) -> Macs:
    """Router and the experts that it selects.

    ``hidden_size·num_experts`` for the router and num_experts_per_tok times :func:`feed_forward`, whose
    intermediate_size is that of one expert. Source: sparsely-gated mixtures of experts (arXiv 1701.06538), section 2.
    """
    expert = feed_forward(hidden_size=hidden_size, intermediate_size=intermediate_size, gated=gated).per_token
    selected, idle = num_experts_per_tok * expert, (num_experts - num_experts_per_tok) * expert
    return Macs(hidden_size * num_experts + selected, unused=idle)


def latent_experts(
    *,
    hidden_size: int,
    latent_size: int | None,
    intermediate_size: int,
    num_experts: int,
    num_experts_per_tok: int,
    gated: bool = True,
) -> Macs:
    """:func:`routed_experts` whose experts work in a latent space of another width; without one, those themselves.

    With h and l = latent_size: ``2·h·l`` for the projections there and back beside experts of width l; the router reads
    the hidden state, ``h·num_experts``. Source: Megatron-Core's ``moe_latent_size``.
    """
    routed = routed_experts(
        hidden_size=latent_size or hidden_size,
        intermediate_size=intermediate_size,
        num_experts=num_experts,
        num_experts_per_tok=num_experts_per_tok,
        gated=gated,
    )
    if latent_size is None:
        return routed
    return routed + Macs((hidden_size - latent_size) * num_experts + 2 * hidden_size * latent_size)


def shared_expert(
    *, hidden_size: int, intermediate_size: int, gated: bool = True, weighted_by_token: bool = False
) -> Macs:
    """Expert that every token visits: :func:`feed_forward`, plus ``hidden_size`` for its own one-logit gate, if any.

    Several shared experts are one of their summed intermediate size. Source: DeepSeekMoE (arXiv 2401.06066).
    """
    expert = feed_forward(hidden_size=hidden_size, intermediate_size=intermediate_size, gated=gated)
    return expert + Macs(hidden_size if weighted_by_token else 0)


def language_model_head(*, hidden_size: int, vocab_size: int) -> Macs:
    """Logits at every position: ``hidden_size·vocab_size`` per token, also when the weights are the embedding's.

    Source: Transformer (arXiv 1706.03762), section 3.4.
    """
    return Macs(hidden_size * vocab_size)
