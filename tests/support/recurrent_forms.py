"""Linear attention and state spaces token by token, with their products as matrix products, so that they are counted.

The models' own forms either work in chunks, which counts the extra operations of an implementation, or multiply element
by element, which the counter does not see.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F


def delta_rule(query, key, value, g, beta, use_qk_l2norm_in_kernel=False, **_: Any):
    """The gated delta rule; ``g`` is one decay for each head, or one for each of its key channels (KDA)."""
    repeat = value.shape[2] // key.shape[2]
    query, key = (x.repeat_interleave(repeat, dim=2) for x in (query, key))
    if use_qk_l2norm_in_kernel:
        query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    query = query * query.shape[-1] ** -0.5
    decay = g.exp()[..., None] if g.dim() == 4 else g.exp()[..., None, None]
    state = value.new_zeros(value.shape[0], value.shape[2], key.shape[-1], value.shape[-1])
    outputs = []
    for t in range(value.shape[1]):
        state = state * decay[:, t]
        predicted = key[:, t, :, None, :] @ state
        error = beta[:, t, :, None, None] * (value[:, t, :, None, :] - predicted)
        state = state + key[:, t, :, :, None] @ error
        outputs.append(query[:, t, :, None, :] @ state)
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def mamba2_scan(hidden_states, dt, A, B, C, D=None, dt_bias=None, dt_softplus=False, dt_limit=None, **options: Any):  # noqa: N803
    """The state-space recurrence of Mamba-2: an outer product and a readout for each head."""
    dt = dt if dt_bias is None else dt + dt_bias
    dt = F.softplus(dt) if dt_softplus else dt
    dt = dt if dt_limit is None else torch.clamp(dt, dt_limit[0], dt_limit[1])
    x = hidden_states.float()
    repeat = x.shape[2] // B.shape[2]
    B, C = (m.float().repeat_interleave(repeat, dim=2) for m in (B, C))  # noqa: N806
    state = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], B.shape[-1])
    outputs = []
    for t in range(x.shape[1]):
        step = dt[:, t, :, None, None].float()
        state = state * torch.exp(step * A.float()[:, None, None])
        state = state + (step * x[:, t, :, :, None]) @ B[:, t, :, None, :]
        outputs.append((state @ C[:, t, :, :, None]).squeeze(-1))
    out = torch.stack(outputs, dim=1)
    out = (out if D is None else out + x * D[:, None]).to(hidden_states.dtype)
    return (out, state) if options.get("return_final_states") else out


def mamba_scan(hidden_states, dt, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, **options: Any):  # noqa: N803
    """The selective scan of Mamba-1: every channel is a head of width one."""
    dt = dt if delta_bias is None else dt + delta_bias[..., None]
    dt = F.softplus(dt) if delta_softplus else dt
    state = hidden_states.new_zeros(hidden_states.shape[0], hidden_states.shape[1], A.shape[-1])
    outputs = []
    for t in range(hidden_states.shape[2]):
        step, update = dt[:, :, t, None], (dt * hidden_states)[:, :, t, None, None]
        state = state * torch.exp(step * A)
        state = state + (update @ B[:, None, None, :, t].expand(-1, state.shape[1], -1, -1)).squeeze(2)
        outputs.append(state[:, :, None, :] @ C[:, None, :, t, None].expand(-1, state.shape[1], -1, -1))
    out = torch.cat(outputs, dim=-1).squeeze(2)
    out = out if D is None else out + hidden_states * D[:, None]
    out = out if z is None else out * F.silu(z)
    return (out, state) if options.get("return_last_state") else out


FORMS = {
    "torch_chunk_gated_delta_rule": delta_rule,
    "chunk_kimi_delta_attention": delta_rule,
    "mamba2_chunk_scan": mamba2_scan,
    "mamba_selective_scan": mamba_scan,
}
"""Function of a modeling file → its recurrent form."""

RECURRENT_TYPES = (
    "bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "lara_mini",
    "mamba", "mamba2", "minimax", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
    "zamba2",
)  # fmt: skip
"""Types that are counted in a recurrent form: by these functions, or (minimax) with blocks of one token."""


def use_recurrent_forms(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    """Put the recurrent forms into the modeling file of a configuration's class."""
    modeling = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    for name, form in FORMS.items():
        if hasattr(modeling, name):
            monkeypatch.setattr(modeling, name, form)
