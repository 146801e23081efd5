"""Every architecture against the models themselves: counted operators, attention that is really visited, parameters."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from support.flops_references import REFERENCE_MODELS, build_config
from support.tiny_models import ALL_TINY_MODELS, TINY_MODELS
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from areal_callbacks.flops import TrainingFlops, get_flops_estimator
from areal_callbacks.flops.architectures import ARCHITECTURES

DELTA_NET_MODULES = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


def recurrent_delta_rule(query, key, value, g, beta, use_qk_l2norm_in_kernel=False, **_: Any):
    """The gated delta rule token by token, with its three products as matrix products, so that they are counted."""
    repeat = value.shape[2] // key.shape[2]
    query, key = (x.repeat_interleave(repeat, dim=2) for x in (query, key))
    if use_qk_l2norm_in_kernel:
        query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    query = query * query.shape[-1] ** -0.5
    state = value.new_zeros(value.shape[0], value.shape[2], key.shape[-1], value.shape[-1])
    outputs = []
    for t in range(value.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        predicted = key[:, t, :, None, :] @ state
        error = beta[:, t, :, None, None] * (value[:, t, :, None, :] - predicted)
        state = state + key[:, t, :, :, None] @ error
        outputs.append(query[:, t, :, None, :] @ state)
    return torch.cat(outputs, dim=2).transpose(1, 2), None


@pytest.fixture
def _recurrent_form(monkeypatch: pytest.MonkeyPatch) -> None:
    # The chunked rule counts the extra operations of an implementation; the estimate is of the recurrent form.
    for name in DELTA_NET_MODULES:
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        monkeypatch.setattr(module, "torch_chunk_gated_delta_rule", recurrent_delta_rule)


def estimator_of(config: Any) -> TrainingFlops:
    estimator = get_flops_estimator(config)
    assert isinstance(estimator, TrainingFlops)
    return estimator


def build_model(config: Any, device: str) -> torch.nn.Module:
    # Eager attention and products that the counter knows: it sees nothing in fused kernels. The eager experts select
    # tokens by value, which meta tensors do not have.
    experts = {"experts_implementation": "eager" if device == "cpu" else "batched_mm"}
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager", **experts).eval()


def forward(model: torch.nn.Module, length: int, **kwargs: Any) -> Any:
    device = model.device
    mask = {"attention_mask": torch.zeros(1, 1, length, length, device=device)} if device.type == "meta" else {}
    tokens = torch.arange(length, device=device)[None] % 89 + 1
    return model(input_ids=tokens, use_cache=False, **mask, **kwargs)


def counted_forward_flops(model: torch.nn.Module, length: int) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        forward(model, length)
    return counter.get_total_flops() - convolved_padding(model)


def convolved_padding(model: torch.nn.Module) -> int:
    """FLOPs of the kernel_size − 1 outputs beyond the sequence, which the convolution computes and then drops."""
    convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv1d)]
    return sum(2 * conv.weight.numel() * (conv.kernel_size[0] - 1) for conv in convolutions)


def dense_forward_flops(estimator: TrainingFlops, length: int) -> int:
    """The estimate as eager attention computes it: all L² pairs, masked or not, and a third of the training work."""
    per_pair = 2 * estimator.b + sum(c for _, c in estimator.windows)
    total = estimator.a * length + per_pair * length**2
    assert total % 3 == 0
    return total // 3


@pytest.mark.usefixtures("_recurrent_form")
@pytest.mark.parametrize("fields", ALL_TINY_MODELS.values(), ids=ALL_TINY_MODELS)
def test_small_models_execute_the_estimated_operations(fields: dict[str, Any]) -> None:
    config = build_config(fields)
    model, estimator = build_model(config, "cpu"), estimator_of(config)
    for length in (1, 7, 70):
        assert counted_forward_flops(model, length) == dense_forward_flops(estimator, length)


@pytest.mark.usefixtures("_recurrent_form")
@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_published_models_execute_the_estimated_operations(name: str) -> None:
    config = build_config(REFERENCE_MODELS[name])
    model, estimator = build_model(config, "meta"), estimator_of(config)
    recurrent = "linear_attention" in (getattr(config, "layer_types", None) or ())
    length = 16 if recurrent else 4096
    assert counted_forward_flops(model, length) == dense_forward_flops(estimator, length)


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_training_executes_three_times_the_forward_operations(model_type: str) -> None:
    model = build_model(build_config(TINY_MODELS[model_type]), "cpu").train()
    with FlopCounterMode(display=False) as counter:
        forward(model, 7).logits.sum().backward()
    assert counter.get_total_flops() == 3 * counted_forward_flops(model, 7)


@pytest.mark.usefixtures("_recurrent_form")
@pytest.mark.parametrize("fields", ALL_TINY_MODELS.values(), ids=ALL_TINY_MODELS)
@pytest.mark.parametrize("length", [1, 4, 5, 6, 13])
def test_attention_visits_the_estimated_pairs(fields: dict[str, Any], length: int) -> None:
    config = build_config(fields)
    with torch.no_grad():
        attentions = forward(build_model(config, "cpu"), length, output_attentions=True).attentions
    visited = sum(int((weights > 0).sum()) for weights in attentions if weights is not None)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    widths = 2 * head_dim
    if hasattr(config, "kv_lora_rank"):
        widths = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
    estimator = estimator_of(config)
    assert estimator(length) - estimator.a * length == 6 * visited * widths


@pytest.mark.parametrize(
    "fields",
    [*REFERENCE_MODELS.values(), *ALL_TINY_MODELS.values()],
    ids=[*REFERENCE_MODELS, *ALL_TINY_MODELS],
)
def test_work_per_token_is_six_times_the_active_weights(fields: dict[str, Any]) -> None:
    config = build_config(fields)
    model = build_model(config, "meta")
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    active = model.get_output_embeddings().weight.numel()
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2 or "bias" in name or "lm_head" in name or id(parameter) in embeddings:
            continue
        if ".experts." in name:
            active += parameter.numel() // parameter.shape[0] * config.num_experts_per_tok
        else:
            active += parameter.numel()
    recurrences = (getattr(config, "layer_types", None) or []).count("linear_attention")
    if recurrences:
        heads = config.linear_num_value_heads
        active += recurrences * 3 * heads * config.linear_key_head_dim * config.linear_value_head_dim
    assert estimator_of(config).a == 6 * active


def test_every_built_in_architecture_is_verified_here() -> None:
    same_text_model = {"kimi_k2": "deepseek_v3", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
    assert TINY_MODELS.keys() | same_text_model.keys() == ARCHITECTURES.keys()
    for model_type, verified in same_text_model.items():
        assert ARCHITECTURES[model_type] == ARCHITECTURES[verified]


def test_the_recurrent_form_computes_what_the_models_compute() -> None:
    module = importlib.import_module("transformers.models.qwen3_5_moe.modeling_qwen3_5_moe")
    torch.manual_seed(0)
    query, key = torch.randn(2, 9, 2, 6), torch.randn(2, 9, 2, 6)
    value, beta, g = torch.randn(2, 9, 4, 8), torch.rand(2, 9, 4), -torch.rand(2, 9, 4)
    arguments = {"g": g, "beta": beta, "use_qk_l2norm_in_kernel": True}
    expected, _ = module.torch_chunk_gated_delta_rule(query, key, value, **arguments)
    torch.testing.assert_close(recurrent_delta_rule(query, key, value, **arguments)[0], expected)
