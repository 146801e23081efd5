"""Which estimate a model gets, and the one message where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.sessions import open_session
from support.tiny_trainer import moe_model
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from areal_callbacks import MetricsSession, get_flops_estimator, register_flops_estimator
from areal_callbacks.config import FlopsConfig
from areal_callbacks.flops import registry
from areal_callbacks.safety.reporting import logger
from areal_callbacks.session.model_flops import find_flops

SIZE: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
IDS = torch.tensor([[5, 6, 7, 8, 9]])


def llama(**fields: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, **{**SIZE, **fields}))


def export(folder: Path, model: nn.Module, inputs: Any = None, **options: Any) -> dict[str, float]:
    """One step of training."""
    with MetricsSession(output_dir=folder, report=False, **options) as session:
        session.attach(model)
        with session.step():
            model.train()
            model(**(inputs or {"input_ids": IDS}))
        return dict(session.export(1).metrics)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger.name]


def test_an_unknown_type_is_named_once_with_what_can_be_done(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = llama()
    model.config.model_type = "resembles_llama"
    metrics = export(tmp_path, model)
    assert metrics["train_perf/tokens"] == 5
    assert not [name for name in metrics if "flops" in name or "mfu" in name]
    export(tmp_path, model)
    (message,) = messages(caplog)
    for part in ("'resembles_llama'", "tokens", "register_flops_estimator", "{fallback: active_parameters}"):
        assert part in message


def test_the_fallback_is_labelled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Full attention only, so that the approximation equals 6 for each weight of 2 layers and the head, and pairs."""
    model = llama()
    model.config.model_type = "resembles_llama"
    metrics = export(tmp_path, model, flops={"fallback": "active_parameters"})
    weights = 2 * (4 * 16 * 16 + 3 * 16 * 24) + 16 * 32
    assert metrics["train_perf/estimated_flops"] == 6 * weights * 5 + 6 * 2 * 2 * 16 * (5 * 6 // 2)
    assert metrics["train_perf/flops_are_approximate"] == 1
    (message,) = messages(caplog)
    assert f"{weights:,} active parameters" in message
    known = export(tmp_path, llama(), flops={"fallback": "active_parameters"})
    assert "train_perf/flops_are_approximate" not in known


def test_weights_that_megatron_splits_have_no_fallback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Embedding(32, 4), nn.Linear(4, 4))
    model[1].weight.tensor_model_parallel = True  # type: ignore[attr-defined]
    metrics = export_plain(tmp_path, model, flops={"fallback": "active_parameters"})
    assert "train_perf/estimated_flops" not in metrics
    assert "cannot be counted" in messages(caplog)[0]


def export_plain(folder: Path, model: nn.Module, **options: Any) -> dict[str, float]:
    with MetricsSession(output_dir=folder, report=False, **options) as session:
        session.attach(model)
        with session.step():
            model(IDS)
        return dict(session.export(1).metrics)


def test_a_model_without_a_type_has_a_message_only_if_flops_were_configured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Embedding(32, 4), nn.Linear(4, 4))
    export_plain(tmp_path, model)
    assert messages(caplog) == []
    export_plain(tmp_path, model, flops={"peak_flops": 1e12})
    (message,) = messages(caplog)
    assert "no configuration with a model_type" in message


def test_a_hugging_face_model_without_a_type_has_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = llama()
    model.config.model_type = ""
    export(tmp_path, model)
    assert "no configuration with a model_type" in messages(caplog)[0]


def test_a_configuration_that_lacks_a_field_names_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = llama()
    vars(model.config)["vocab_size"] = None
    assert "train_perf/estimated_flops" not in export(tmp_path, model)
    (message,) = messages(caplog)
    assert "'llama'" in message
    assert "'vocab_size'" in message


def test_a_factory_that_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register_flops_estimator("qwen3_moe", lambda config: config.no_such_field)
    assert "train_perf/estimated_flops" not in export(tmp_path, moe_model())
    assert "no_such_field" in messages(caplog)[0]


def test_a_model_of_two_sequences_is_priced_in_pairs_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its encoder alone has sources without targets."""
    config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
    model = T5ForConditionalGeneration(config)
    assert find_flops([model], FlopsConfig()).estimator == get_flops_estimator(config)
    session = open_session(tmp_path).attach(model)
    model.train().get_encoder()(torch.ones(2, 3, dtype=torch.long)).last_hidden_state.sum().backward()
    metrics = session.export(1).metrics
    session.close()
    assert metrics["train_perf/tokens"] == 6
    assert "train_perf/estimated_flops" not in metrics
    (message,) = messages(caplog)
    assert "source and a target" in message


def test_a_classifier_is_counted_with_its_own_head(tmp_path: Path) -> None:
    config = LlamaConfig(vocab_size=32, num_labels=3, pad_token_id=0, **SIZE)
    metrics = export(tmp_path, LlamaForSequenceClassification(config))
    layers = 2 * (4 * 16 * 16 + 3 * 16 * 24)
    assert metrics["train_perf/estimated_flops"] == 6 * (layers + 16 * 3) * 5 + 6 * 2 * 2 * 16 * 15


def test_images_are_added_to_the_language_part(tmp_path: Path) -> None:
    """By hand: a tower of one layer on 2 images of 2 by 2 patches and a class token."""
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration

    size = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = CLIPVisionConfig(image_size=8, patch_size=4, **size)
    text = LlamaConfig(vocab_size=32, **SIZE)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=31, vision_feature_layer=-1)
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    ids = torch.tensor([[1] + [31] * 4, [2] + [31] * 4])
    metrics = export(tmp_path, model, {"input_ids": ids, "pixel_values": torch.rand(2, 3, 8, 8)})
    language = get_flops_estimator(text)
    assert language is not None
    tower = 3 * 16 * 8 * 4 + (4 * 8 * 8 + 2 * 8 * 12) * 5 + 2 * 8 * 25
    assert metrics["train_perf/estimated_flops"] == 2 * language(5) + 2 * 6 * tower
    for parameter in model.model.vision_tower.parameters():
        parameter.requires_grad_(False)
    frozen = {"frozen": "skip_weight_gradient"}
    skipped = export(tmp_path, model, {"input_ids": ids, "pixel_values": torch.rand(2, 3, 8, 8)}, flops=frozen)
    assert skipped["train_perf/estimated_flops"] == 2 * language(5) + 2 * 2 * tower
