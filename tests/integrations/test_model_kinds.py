"""What a token is in each kind of model: text that a loss can see and text that conditions it, without padding.

The table of docs/metrics.md, one row a case; every number is counted by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMultipleChoice,
    CLIPConfig,
    CLIPModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from areal_callbacks.flops.registry import get_flops_estimator
from areal_callbacks.integrations.fsdp import track
from areal_callbacks.safety.reporting import logger

SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
BOTH = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (
    ("layers", 1), ("attention_heads", 2), ("ffn_dim", 32),
)}  # fmt: skip
NUMBERS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 0, 0]])  # 7 and 5
TEXT = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}
LABELS = torch.tensor([[5, 6, 7, -100, -100], [8, 9, 10, 11, 12]])  # 3 and 5
CHOICES = torch.tensor([[[5, 6, 7, 0], [5, 6, 0, 0], [5, 6, 7, 8]]])


def t5() -> nn.Module:
    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config)


def bart() -> nn.Module:
    return BartForConditionalGeneration(BartConfig(vocab_size=64, d_model=16, max_position_embeddings=64, **BOTH))


def whisper() -> nn.Module:
    config = WhisperConfig(
        vocab_size=64, d_model=16, max_source_positions=10, num_mel_bins=8, decoder_start_token_id=1, **BOTH, **NUMBERS
    )
    return WhisperForConditionalGeneration(config)


def wav2vec2() -> nn.Module:
    config = Wav2Vec2Config(
        vocab_size=16, conv_dim=(8,), conv_kernel=(10,), conv_stride=(5,), num_feat_extract_layers=1,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_prob=0.0, **SMALL,
    )  # fmt: skip
    return Wav2Vec2ForCTC(config)


def vit() -> nn.Module:
    return ViTForImageClassification(ViTConfig(image_size=32, patch_size=16, **SMALL))


class Contrast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        text = {"vocab_size": 64, "max_position_embeddings": 16, **SMALL, **NUMBERS}
        vision = {"image_size": 32, "patch_size": 16, **SMALL}
        self.clip = CLIPModel(CLIPConfig(text_config=text, vision_config=vision))

    def forward(self, **batch: Tensor) -> Any:
        return self.clip(**batch, return_loss=True)


def llava() -> nn.Module:
    vision = {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 16, "projection_dim": 16, **SMALL}
    text = {"model_type": "llama", "vocab_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64, **SMALL}
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=63, vision_feature_layer=-1)
    return LlavaForConditionalGeneration(config)


def multiple_choice() -> nn.Module:
    return BertForMultipleChoice(BertConfig(vocab_size=64, **SMALL))


def measure(model: nn.Module, folder: Path, batch: dict[str, Tensor]) -> dict[str, float]:
    """After one training step."""
    metrics = track(model.train(), output_dir=str(folder), report=False)
    with metrics.step():
        model(**batch).loss.backward()
    exported = metrics.export(1).metrics
    metrics.close()
    return {name.removeprefix("train_perf/"): value for name, value in exported.items()}


PICTURE = torch.zeros(1, 3, 32, 32)
IMAGE_AND_TEXT = torch.tensor([[63, 63, 63, 63, 5, 6, 7]])  # an image of four patches
SPECTRA = torch.zeros(2, 8, 20)
SAMPLES = torch.zeros(2, 200)
SOUNDING = torch.ones(2, 200, dtype=torch.long).index_fill(1, torch.arange(190, 200), 0)


@pytest.mark.parametrize(
    ("make", "batch", "tokens", "frames"),
    [
        (t5, {**TEXT, "labels": LABELS}, 7 + 5 + 3 + 5, None),
        (bart, {**TEXT, "labels": LABELS}, 7 + 5 + 3 + 5, None),
        (whisper, {"input_features": SPECTRA, "labels": LABELS}, 3 + 5, 2 * 20),
        (wav2vec2, {"input_values": SAMPLES, "labels": LABELS.clamp(min=3)}, None, 2 * 200),
        (
            wav2vec2,
            {"input_values": SAMPLES, "attention_mask": SOUNDING, "labels": LABELS.clamp(min=3)},
            None,
            2 * 190,
        ),
        (vit, {"pixel_values": PICTURE, "labels": torch.tensor([1])}, None, None),
        (Contrast, {**TEXT, "pixel_values": PICTURE.expand(2, 3, 32, 32)}, 7 + 5, None),
        (
            llava,
            {"input_ids": IMAGE_AND_TEXT, "pixel_values": PICTURE, "labels": IMAGE_AND_TEXT.clamp(max=9)},
            4 + 3,
            None,
        ),
        (
            multiple_choice,
            {"input_ids": CHOICES, "attention_mask": (CHOICES != 0).long(), "labels": torch.tensor([0])},
            3 + 2 + 4,
            None,
        ),
    ],
)
def test_what_a_token_is(
    make: Callable[[], nn.Module],
    batch: dict[str, Tensor],
    tokens: int | None,
    frames: int | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = measure(make(), tmp_path, batch)
    assert metrics.get("tokens") == tokens
    assert metrics.get("input_frames") == frames
    messages = [record.getMessage() for record in caplog.records if record.name == logger.name]
    assert ("pass token_count_fn" in " ".join(messages)) is (tokens is None)


@pytest.mark.parametrize("make", [t5, bart])
def test_the_flops_of_pairs_are_those_of_both_lengths(make: Callable[[], Any], tmp_path: Path) -> None:
    model = make()
    estimate: Any = get_flops_estimator(model.config, model_class=type(model).__name__)
    metrics = measure(model, tmp_path, {**TEXT, "labels": LABELS})
    assert metrics["estimated_flops"] == estimate(7, 3) + estimate(5, 5)


def test_an_encoder_that_was_run_before_costs_its_tokens_but_not_the_pairs(tmp_path: Path) -> None:
    """Its outputs are given: the source conditions the target still."""
    model: Any = t5()
    estimate: Any = get_flops_estimator(model.config, model_class=type(model).__name__)
    with torch.no_grad():
        encoded = model.get_encoder()(**TEXT)
    batch = {"encoder_outputs": encoded, "attention_mask": TEXT["attention_mask"], "labels": LABELS}
    metrics = measure(model, tmp_path, batch)
    assert metrics["tokens"] == 3 + 5
    assert metrics["estimated_flops"] == estimate(7, 3) + estimate(5, 5)


@pytest.mark.parametrize("make", [t5, bart])
def test_an_encoder_that_is_given_what_the_loop_embedded(make: Callable[[], Any], tmp_path: Path) -> None:
    model = make().train()
    metrics = track(model, output_dir=str(tmp_path), report=False)
    with metrics.step():
        embedded = model.get_input_embeddings()(IDS)
        model(inputs_embeds=embedded, attention_mask=TEXT["attention_mask"], labels=LABELS).loss.backward()
    exported = metrics.export(1).metrics
    metrics.close()
    assert exported["train_perf/tokens"] == 7 + 5 + 3 + 5


def test_padding_without_a_mask_is_left_out_of_pairs(tmp_path: Path) -> None:
    """T5 begins its decoder inputs with the number of padding, which is a token there."""
    model: Any = t5()
    estimate: Any = get_flops_estimator(model.config, model_class=type(model).__name__)
    metrics = measure(model, tmp_path, {"input_ids": IDS, "labels": LABELS})
    assert metrics["tokens"] == 7 + 5 + 3 + 5
    assert metrics["estimated_flops"] == estimate(7, 3) + estimate(5, 5)


def test_an_encoder_that_is_called_before_its_decoder(tmp_path: Path) -> None:
    model: Any = bart()
    estimate: Any = get_flops_estimator(model.config, model_class=type(model).__name__)
    metrics = track(model.train(), output_dir=str(tmp_path), report=False)
    with metrics.step():
        encoded = model.get_encoder()(**TEXT)
        model(encoder_outputs=encoded, attention_mask=TEXT["attention_mask"], labels=LABELS).loss.backward()
    exported = metrics.export(1).metrics
    metrics.close()
    assert exported["train_perf/tokens"] == 7 + 5 + 3 + 5
    assert exported["train_perf/estimated_flops"] == estimate(7, 3) + estimate(5, 5)
