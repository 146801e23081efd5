"""Encoders of images, of images beside texts and of audio, against counted operators."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING

from areal_callbacks.flops import TrainingFlops, get_flops_estimator
from areal_callbacks.flops.encoder_decoder import EncoderDecoderFlops
from areal_callbacks.flops.models.vision_and_audio import AUDIO, IMAGES, IMAGES_AND_TEXTS
from areal_callbacks.flops.sampled import Convolution, SampledFlops
from areal_callbacks.flops.trained_parts import skip_frozen
from areal_callbacks.flops.work import model_work

SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 28,
    "patch_size": 7,
    "vocab_size": 97,
    "max_position_embeddings": 32,
    "conv_dim": [8, 12, 10],
    "conv_kernel": [10, 3, 2],
    "conv_stride": [5, 2, 2],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
}
PATCHES = 16
CLASSES = {
    "clip_vision_model": ("CLIPVisionModel", 1),
    "deit": ("DeiTForImageClassification", 2),
    "dinov2": ("Dinov2Model", 1),
    "ijepa": ("IJepaForImageClassification", 0),
    "siglip_vision_model": ("SiglipVisionModel", 0),
    "vit": ("ViTForImageClassification", 1),
    "vit_msn": ("ViTMSNForImageClassification", 1),
}
"""Type → class, and positions beside those of the patches."""
AUDIO_CLASSES = {
    "hubert": "HubertForCTC",
    "unispeech": "UniSpeechForCTC",
    "unispeech-sat": "UniSpeechSatForCTC",
    "wav2vec2": "Wav2Vec2ForCTC",
}


def small_config(model_type: str, **fields: Any) -> Any:
    config_class = CONFIG_MAPPING[model_type]
    known = inspect.signature(config_class).parameters
    return config_class(**{name: value for name, value in SMALL.items() if name in known}, **fields)


def build(config: Any, class_name: str, device: str = "cpu") -> nn.Module:
    modeling = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    with torch.device(device):
        model = getattr(modeling, class_name)._from_config(config, attn_implementation="eager")
    return model.eval().requires_grad_(False)


def counted(model: nn.Module, **inputs: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        model(**inputs)
    return counter.get_total_flops()


@pytest.mark.parametrize("model_type", IMAGES)
def test_images_execute_the_estimated_operations(model_type: str) -> None:
    class_name, extra = CLASSES[model_type]
    config = small_config(model_type)
    estimate = get_flops_estimator(config, model_class=class_name)
    assert estimate is not None
    count = counted(build(config, class_name), pixel_values=torch.zeros(1, 3, 28, 28))
    assert estimate(PATCHES + extra) == 3 * count
    assert get_flops_estimator(config.to_dict(), model_class=class_name) == estimate


@pytest.mark.parametrize("model_type", IMAGES_AND_TEXTS)
def test_both_towers_execute_the_estimated_operations(model_type: str) -> None:
    """Less the similarity of the one image and the one text, a product of two vectors."""
    names = (f"{model_type}_vision_model", f"{model_type}_text_model")
    vision, text = (small_config(name) for name in names)
    own = {"projection_dim": 22} if model_type == "clip" else {}
    config = CONFIG_MAPPING[model_type](vision_config=vision.to_dict(), text_config=text.to_dict(), **own)
    estimate = get_flops_estimator(config)
    assert isinstance(estimate, EncoderDecoderFlops)
    tokens = torch.tensor([[3, 4, 5, 6, 2]])
    model = build(config, {"clip": "CLIPModel", "siglip": "SiglipModel"}[model_type])
    count = counted(model, input_ids=tokens, pixel_values=torch.zeros(1, 3, 28, 28))
    similarity = 2 * own.get("projection_dim", 48)
    extra = 1 if model_type == "clip" else 0
    hidden_pairs = 0 if model_type == "siglip" else 3 * 2 * 48 * (25 - 15)  # eager attention computes all of them
    assert estimate(PATCHES + extra, 5) == 3 * (count - similarity - 2 * hidden_pairs)
    assert get_flops_estimator(config.to_dict()) == estimate


@pytest.mark.parametrize("model_type", AUDIO)
@pytest.mark.parametrize("samples", [400, 611])
def test_audio_executes_the_estimated_operations(model_type: str, samples: int) -> None:
    """Less one position that the convolution of positions computes and drops, its kernel being even."""
    config = small_config(model_type)
    estimate = get_flops_estimator(config)
    assert isinstance(estimate, SampledFlops)
    count = counted(build(config, AUDIO_CLASSES[model_type]), input_values=torch.zeros(1, samples))
    assert estimate(samples) == 3 * (count - 2 * 48 * (48 // 4) * 6)
    assert get_flops_estimator(config.to_dict()) == estimate


def test_samples_that_give_no_frame_cost_nothing_more() -> None:
    estimate = get_flops_estimator(small_config("wav2vec2"))
    assert estimate is not None
    assert estimate(0) == estimate(9) == 0
    assert estimate(10) == 6 * 1 * 8 * 10
    assert Convolution(10, 5, 1).outputs(14) == 1
    assert Convolution(10, 5, 1).outputs(15) == 2
    with pytest.raises(ValueError, match="nonnegative"):
        estimate(-1)


@pytest.mark.parametrize("model_type", [*IMAGES, *IMAGES_AND_TEXTS, *AUDIO])
def test_their_blocks_add_up(model_type: str) -> None:
    config = small_config(model_type)
    estimate = get_flops_estimator(config)
    assert estimate is not None
    for length in (0, 17, 450):
        work = model_work(config, length)
        assert work is not None
        assert work.flops == estimate(length)


def test_an_image_encoder_that_is_trained_throughout_is_counted_in_full() -> None:
    config = small_config("vit")
    name = "ViTForImageClassification"
    model, full = build(config, name).requires_grad_(True), get_flops_estimator(config, model_class=name)
    assert isinstance(full, TrainingFlops)
    assert skip_frozen(model, config, full, model_class=name) == full


def test_lists_of_convolutions_must_agree() -> None:
    config = small_config("wav2vec2").to_dict() | {"conv_kernel": [10, 3]}
    with pytest.raises(ValueError, match=r"'wav2vec2'.*lists of one length"):
        get_flops_estimator(config)
