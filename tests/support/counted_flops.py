"""What a model really does: operators that PyTorch counts, attention weights that are not zero, numbers of weights."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, PreTrainedModel

from areal_callbacks.flops import TrainingFlops
from areal_callbacks.flops.encoder_decoder import EncoderDecoderFlops
from areal_callbacks.flops.masks import Compressed, Mask, Relative

TAKE_NO_PAIRWISE_MASK = ("mamba", "falcon_mamba")
"""State-space models without attention, whose mask has one entry for each token."""

ALL_EXPERTS = ("llama4_text", "nllb-moe")
"""Models whose eager form runs every expert on every token and weights the others with zero."""

COUNTED_BESIDE: dict[str, Callable[[Any, int], int]] = {
    # The projections of the embeddings of relative positions, once a forward pass whatever the batch.
    "deberta": lambda config, length: _projected_positions(config, min(length, config.max_relative_positions)),
    "deberta-v2": lambda config, length: _projected_positions(config, config.position_buckets),
    # With blocks of one token the block-wise form is the recurrence, but for the token's own key and value, which it
    # multiplies apart from the state.
    "minimax": lambda config, length: (
        2 * length * config.layer_types.count("linear_attention") * 2 * config.num_attention_heads * config.head_dim
    ),
}
"""Model type → FLOPs that an eager implementation spends beside the work of the sequence."""


def _projected_positions(config: Any, reach: int) -> int:
    terms = len(config.pos_att_type) if config.relative_attention else 0
    return config.num_hidden_layers * terms * 2 * (2 * reach) * config.hidden_size**2


ON_CPU = (
    "bloom",
    "dbrx",
    "deberta",
    "deberta-v2",
    "esm",
    "flaubert",
    "fsmt",
    "jetmoe",
    "longcat_flash",
    "nllb-moe",
    "openai-gpt",
    "opt",
    "switch_transformers",
    "whisper",
    "xlm",
)
"""Models that cannot run on the meta device: they read values of the mask, or take none with an entry for each pair."""

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
    heads = (
        ("ForConditionalGeneration", "MTModel", *HEADS) if getattr(config_class, "is_encoder_decoder", False) else HEADS
    )
    return next(item for head in heads for item in classes if item.__name__.endswith(head))


def build_model(config: Any, device: str = "") -> PreTrainedModel:
    """A model whose attention and experts consist of operators that the counter knows.

    It sees nothing in fused kernels. The eager experts select tokens by value, which meta tensors do not have; the
    batched form computes the selected experts of each token.
    """
    device = device or ("cpu" if config.model_type in ON_CPU else "meta")
    config._experts_implementation = "eager" if device == "cpu" else "batched_mm"
    config.use_cache = False
    torch.manual_seed(0)
    with torch.device(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some initialise empty biases, some warn that they are deprecated
        return (
            model_class(config.model_type)
            ._from_config(config, attn_implementation="eager")
            .eval()
            .requires_grad_(False)
        )


def forward(model: PreTrainedModel, length: int, **kwargs: Any) -> Any:
    """One sequence of tokens; on the meta device with a mask, whose values models may then not look at."""
    tokens = torch.arange(length, device=model.device)[None] % 89 + 3
    if model.device.type == "meta" and model.config.model_type not in TAKE_NO_PAIRWISE_MASK:
        kwargs.setdefault("attention_mask", torch.zeros(1, 1, length, length, device="meta"))
    if getattr(model.config, "is_encoder_decoder", False):
        kwargs = {"decoder_input_ids": tokens[:, : target_length(length)]}
    if "use_cache" in inspect.signature(model.forward).parameters:
        kwargs.setdefault("use_cache", False)
    with torch.no_grad():
        return model(input_ids=tokens, **kwargs)


def target_length(source_length: int) -> int:
    """The target that :func:`forward` gives an encoder–decoder beside a source of a length."""
    return source_length // 2 + 1


def counted_forward_flops(model: PreTrainedModel, length: int) -> int:
    """FLOPs of one forward pass by FlopCounterMode."""
    with FlopCounterMode(display=False) as counter:
        forward(model, length)
    beside = COUNTED_BESIDE.get(model.config.model_type, lambda config, length: 0)(model.config, length)
    return counter.get_total_flops() - convolved_padding(model) - beside + 2 * length * left_out_head(model)


def left_out_head(model: PreTrainedModel) -> int:
    """Weights of the language-model head of a language part, which transformers builds without it."""
    config = model.config
    return config.hidden_size * config.vocab_size if type(model).__name__.endswith("TextModel") else 0


def convolved_padding(model: nn.Module) -> int:
    """FLOPs of the outputs beyond the sequence, which causal convolutions compute and then drop."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv1d) and module.groups > 1]
    return sum(2 * conv.weight.numel() * int(conv.padding[0]) for conv in convolutions)


def dense_pairs(mask: Mask, length: int) -> int:
    """Pairs that eager attention computes for a pattern: all L², but for those that have other keys than tokens."""
    if isinstance(mask, Relative):
        return mask.pairs(length)
    return length * (length // mask.rate) if isinstance(mask, Compressed) else length**2


def dense_forward_flops(estimator: TrainingFlops, length: int) -> int:
    """A third of the training work: see :func:`dense_training_flops`."""
    total = dense_training_flops(estimator, length)
    assert total % 3 == 0
    return total // 3


def dense_training_flops(estimator: TrainingFlops, length: int) -> int:
    """The estimate as eager attention computes it: all L² pairs, masked or not."""
    per_pair = 2 * estimator.b + sum(c for _, c in estimator.windows)
    total = estimator.a * length + per_pair * length**2 + estimator.once
    for mask, c in estimator.others:
        total += c * dense_pairs(mask, length)
    return total


ELEMENTWISE = (
    "bias",
    "A_log",
    "time_mix_key",
    "time_mix_value",
    "time_mix_receptance",
    "e_score_correction_bias",
    "contact_head.regression.weight",
    "position_bias",
)
"""Endings of parameters that have two dimensions and multiply element by element, or are added."""


def dense_pair_flops(estimator: EncoderDecoderFlops, source: int, target: int) -> int:
    """As :func:`dense_forward_flops`, of a source and a target."""
    cross = estimator.per_source_token * source + estimator.per_cross_pair * source * target
    both = dense_forward_flops(estimator.encoder, source) + dense_forward_flops(estimator.decoder, target)
    return both + cross // 3


def matrices(model: PreTrainedModel) -> Iterator[tuple[str, nn.Parameter]]:
    """The weights that multiply: everything of two or more dimensions but embeddings; the head's even when tied."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and not name.endswith(ELEMENTWISE) and id(parameter) not in embeddings:
            yield name, parameter
    head = model.get_output_embeddings()
    if head is not None and id(head.weight) in embeddings:
        yield "head", head.weight
