"""What a model really does: operators that PyTorch counts, attention weights that are not zero, numbers of weights."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, PreTrainedModel

from areal_callbacks.flops import TrainingFlops

TAKE_NO_PAIRWISE_MASK = ("mamba", "falcon_mamba")
"""State-space models without attention, whose mask has one entry for each token."""

HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "TextModel", "Model")


def model_class(model_type: str) -> type[PreTrainedModel]:
    """The model with a language-modelling head where there is one, else the bare model, by its configuration class."""
    config_class = CONFIG_MAPPING[model_type]
    modeling = importlib.import_module(config_class.__module__.replace("configuration_", "modeling_"))
    classes = [
        item
        for item in vars(modeling).values()
        if inspect.isclass(item)
        and issubclass(item, PreTrainedModel)
        and item.__module__ == modeling.__name__
        and item.config_class is config_class
        and not item.__name__.endswith("PreTrainedModel")
    ]
    return next(item for head in HEADS for item in classes if item.__name__.endswith(head))


def build_model(config: Any, device: str = "meta") -> PreTrainedModel:
    """A model whose attention and experts consist of operators that the counter knows.

    It sees nothing in fused kernels. The eager experts select tokens by value, which meta tensors do not have; the
    batched form computes the selected experts of each token.
    """
    config._experts_implementation = "eager" if device == "cpu" else "batched_mm"
    config.use_cache = False
    torch.manual_seed(0)
    with torch.device(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some initialise empty biases, some warn that they are deprecated
        return model_class(config.model_type)._from_config(config, attn_implementation="eager").eval()


def forward(model: PreTrainedModel, length: int, **kwargs: Any) -> Any:
    """One sequence of tokens; on the meta device with a mask, whose values models may then not look at."""
    tokens = torch.arange(length, device=model.device)[None] % 89 + 3
    if model.device.type == "meta" and model.config.model_type not in TAKE_NO_PAIRWISE_MASK:
        kwargs.setdefault("attention_mask", torch.zeros(1, 1, length, length, device="meta"))
    if "use_cache" in inspect.signature(model.forward).parameters:
        kwargs.setdefault("use_cache", False)
    with torch.no_grad():
        return model(input_ids=tokens, **kwargs)


def counted_forward_flops(model: PreTrainedModel, length: int) -> int:
    """FLOPs of one forward pass by FlopCounterMode."""
    with FlopCounterMode(display=False) as counter:
        forward(model, length)
    return counter.get_total_flops() - convolved_padding(model)


def convolved_padding(model: nn.Module) -> int:
    """FLOPs of the outputs beyond the sequence, which causal convolutions compute and then drop."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv1d) and module.padding[0]]
    return sum(2 * conv.weight.numel() * conv.padding[0] for conv in convolutions)


def dense_forward_flops(estimator: TrainingFlops, length: int) -> int:
    """The estimate as eager attention computes it: all L² pairs, masked or not, and a third of the training work."""
    per_pair = 2 * estimator.b + sum(c for _, c in estimator.windows) + sum(c for _, c in estimator.others)
    total = estimator.a * length + per_pair * length**2 + estimator.once
    assert total % 3 == 0
    return total // 3


ELEMENTWISE = ("bias", "A_log", "time_mix_key", "time_mix_value", "time_mix_receptance", "e_score_correction_bias")
"""Endings of parameters that have two dimensions and multiply element by element, or are added."""


def matrices(model: PreTrainedModel) -> Iterator[tuple[str, nn.Parameter]]:
    """The weights that multiply: everything of two or more dimensions but embeddings; the head's even when tied."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and not name.endswith(ELEMENTWISE) and id(parameter) not in embeddings:
            yield name, parameter
    head = model.get_output_embeddings()
    if head is not None and id(head.weight) in embeddings:
        yield "head", head.weight
