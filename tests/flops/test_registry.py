"""Finding the estimator of a configuration, and registering one's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support import counted_flops
from support.flops_references import build_config
from support.flops_table import PAGE, page_with_table, table
from support.tiny_models import TINY, VARIANTS, fields_of, tiny_fields
from transformers import CONFIG_MAPPING

from areal_callbacks.flops import get_flops_estimator, register_flops_estimator, supported_model_types
from areal_callbacks.flops.models import ARCHITECTURES, COMPOSITES, WITHOUT_LANGUAGE_MODEL
from areal_callbacks.flops.registry import find_architecture

AS_WRITTEN = [
    "deepseek_v2", "deepseek_v3", "gemma", "gemma2", "gemma3_text", "glm4_moe", "gpt_oss", "granite", "llama",
    "mistral", "mixtral", "olmo2", "olmo3", "olmoe", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_5_text",
    "qwen3_5_moe_text", "qwen3_moe", "qwen3_next", "seed_oss",
]  # fmt: skip
"""Types whose published files leave out what their configuration classes derive."""
VARIANTS_AS_WRITTEN = [name for name, (model_type, _) in VARIANTS.items() if model_type in AS_WRITTEN]
WITHOUT_DEFAULTS = ("deepseek_ocr2", "deepseek_ocr2_text", "deepseek_v2", "dots1", "esm", "kimi_k2", "lfm2_moe")
"""Types whose configuration class has no complete defaults, or that have none."""
NEEDED_OF_EVERY_MODEL = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def my_model_factory(config: Any) -> Callable[[int], float]:
    active_parameters = config.active_parameters
    heads = config.num_attention_heads
    head_dim = config.head_dim
    layers = config.num_hidden_layers

    def total_training_flops(sequence_length: int) -> float:
        linear = 6 * active_parameters * sequence_length
        attention = 6 * layers * heads * head_dim * sequence_length * (sequence_length + 1)
        return float(linear + attention)

    return total_training_flops


MY_MODEL = SimpleNamespace(
    model_type="my_model_type", active_parameters=1000, num_attention_heads=4, head_dim=8, num_hidden_layers=2
)


def constant(value: float) -> Callable[[Any], Callable[[int], float]]:
    return lambda config: lambda length: value


def test_a_registered_formula_is_used() -> None:
    assert get_flops_estimator(MY_MODEL) is None
    register_flops_estimator("my_model_type", my_model_factory)
    estimate = get_flops_estimator(MY_MODEL)
    assert estimate is not None
    assert estimate(10) == 60000 + 6 * 64 * 110
    assert isinstance(estimate(10), float)
    assert "my_model_type" in supported_model_types()


@pytest.mark.parametrize(("length", "error"), [(-1, ValueError), (True, TypeError), (2.0, TypeError)])
def test_a_registered_formula_never_sees_what_is_no_length(length: Any, error: type[Exception]) -> None:
    register_flops_estimator("my_model_type", constant(1.0))
    estimate = get_flops_estimator(MY_MODEL)
    assert estimate is not None
    with pytest.raises(error, match="nonnegative int"):
        estimate(length)


def test_registration_replaces_registered_and_built_in_formulas() -> None:
    for value in (1, 2):
        register_flops_estimator("qwen3_moe", constant(value))
        estimate = get_flops_estimator(tiny_fields("qwen3_moe"))
        assert estimate is not None
        assert estimate(7) == value


@pytest.mark.parametrize("name", [*TINY, *VARIANTS])
def test_every_built_in_formula_takes_saved_configurations(name: str) -> None:
    config = build_config(fields_of(name))
    estimate = get_flops_estimator(config)
    assert estimate is not None
    assert get_flops_estimator(json.loads(config.to_json_string(use_diff=False))) == estimate
    assert estimate(0) == 0 < estimate(1) < estimate(17)


@pytest.mark.parametrize("name", [*AS_WRITTEN, *VARIANTS_AS_WRITTEN])
def test_fields_as_written_agree_with_the_configuration_that_derives_layers_and_windows(name: str) -> None:
    fields = fields_of(name)
    config = build_config(fields)
    estimate = get_flops_estimator(config)
    assert estimate is not None
    assert get_flops_estimator(fields | {"head_dim": getattr(config, "head_dim", None)}) == estimate


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_5_moe"])
def test_composite_configurations_take_their_text_dimensions(model_type: str) -> None:
    text = tiny_fields(f"{model_type}_text")
    expected = get_flops_estimator(text)
    untyped = {name: value for name, value in text.items() if name != "model_type"}
    assert expected is not None
    assert get_flops_estimator(CONFIG_MAPPING[model_type](text_config=untyped)) == expected
    assert get_flops_estimator({"model_type": model_type, "text_config": untyped}) == expected
    assert get_flops_estimator(SimpleNamespace(model_type=model_type, text_config=text)) == expected
    assert get_flops_estimator({**text, "model_type": model_type}) == expected


def test_an_unknown_composite_resolves_by_its_text_configuration() -> None:
    text = tiny_fields("llama")
    assert get_flops_estimator({"model_type": "some_vision_model", "text_config": text}) == get_flops_estimator(text)
    assert get_flops_estimator({"model_type": "some_vision_model", "text_config": {"model_type": "other"}}) is None


@pytest.mark.parametrize("model_type", [name for name in ARCHITECTURES if name not in WITHOUT_DEFAULTS])
def test_default_configurations_have_all_fields(model_type: str) -> None:
    estimate = get_flops_estimator(CONFIG_MAPPING[model_type]())
    assert estimate is not None
    assert estimate(64) > 0


@pytest.mark.parametrize("model_type", COMPOSITES)
def test_multimodal_models_have_the_language_part_of_the_table(model_type: str) -> None:
    found = find_architecture(CONFIG_MAPPING[model_type]())
    assert found is not None
    assert found[0] == COMPOSITES[model_type]


@pytest.mark.parametrize("model_type", sorted(WITHOUT_LANGUAGE_MODEL))
def test_the_text_part_of_another_model_does_not_pass_for_it(model_type: str) -> None:
    assert get_flops_estimator({"model_type": model_type, "text_config": tiny_fields("llama")}) is None
    assert find_architecture({"model_type": model_type, "text_config": tiny_fields("llama")}) is None


def test_heads_are_told_apart_by_the_class() -> None:
    """BERT of 4 layers: a square transformation and 97 words; a pooler and 3 labels once; 3 labels a token."""
    config = tiny_fields("bert") | {"id2label": {0: "a", 1: "b", 2: "c"}}
    body = get_flops_estimator(config, model_class="BertModel")
    assert body is not None
    heads = {"BertForMaskedLM": 48 * (48 + 97) * 7, "BertForSequenceClassification": 48 * 48 + 48 * 3}
    heads |= {"BertForTokenClassification": 48 * 3 * 7, "BertForQuestionAnswering": 48 * 2 * 7, "": 48 * (48 + 97) * 7}
    for model_class, macs in heads.items():
        estimate = get_flops_estimator(config, model_class=model_class)
        assert estimate is not None
        assert estimate(7) - body(7) == 6 * macs
    causal = tiny_fields("llama") | {"num_labels": 5}
    scores = get_flops_estimator(causal, model_class="LlamaForSequenceClassification")
    words = get_flops_estimator(causal)
    assert scores is not None
    assert words is not None
    assert words(7) - scores(7) == 6 * 7 * 48 * (97 - 5)


@pytest.mark.parametrize("model_type", TINY)
def test_classes_with_a_language_model_head_have_it(model_type: str) -> None:
    """Whatever their names end with: GPT2LMHeadModel, MarianMTModel."""
    name = counted_flops.model_class(model_type).__name__
    config = build_config(fields_of(model_type))
    estimate, with_head = get_flops_estimator(config, model_class=name), get_flops_estimator(config)
    assert estimate is not None
    assert with_head is not None
    assert (estimate(7) == with_head(7)) == bool(re.search(r"For[A-Z]|LMHeadModel|MTModel", name))


def test_kimi_is_counted_like_deepseek() -> None:
    fields = tiny_fields("deepseek_v3")
    assert get_flops_estimator({**fields, "model_type": "kimi_k2"}) == get_flops_estimator(fields)


def test_a_formula_for_the_outer_type_wins_over_the_text_configuration() -> None:
    config = {"model_type": "qwen3_5_moe", "text_config": tiny_fields("qwen3_5_moe_text")}
    register_flops_estimator("qwen3_5_moe_text", constant(1))
    assert get_flops_estimator(config)(5) == 1  # type: ignore[misc]
    seen = []
    register_flops_estimator("qwen3_5_moe", lambda given: seen.append(given) or (lambda length: 2))
    assert get_flops_estimator(config)(5) == 2  # type: ignore[misc]
    assert seen == [config]


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"model_type": None},
        {"model_type": ["llama"]},
        {"model_type": "resnet"},
        SimpleNamespace(),
        "llama",
        3,
    ],
)
def test_unknown_models_have_no_estimator(config: Any) -> None:
    assert get_flops_estimator(config) is None


@pytest.mark.parametrize("model_type", AS_WRITTEN)
def test_a_missing_field_is_named(model_type: str) -> None:
    for field in NEEDED_OF_EVERY_MODEL:
        incomplete = {name: value for name, value in tiny_fields(model_type).items() if name != field}
        with pytest.raises(ValueError, match=f"'{model_type}'.* lacks '{field}'"):
            get_flops_estimator(incomplete)
        with pytest.raises(ValueError, match=f"'{model_type}'.* lacks '{field}'"):
            get_flops_estimator(SimpleNamespace(**incomplete))


@pytest.mark.parametrize(
    ("model_type", "field"),
    [
        ("qwen3_moe", "moe_intermediate_size"),
        ("qwen3_moe", "num_experts_per_tok"),
        ("qwen3_moe", "num_experts"),
        ("qwen3_moe", "intermediate_size"),
        ("qwen3_moe", "num_key_value_heads"),
        ("qwen3_5_moe_text", "linear_conv_kernel_dim"),
        ("qwen3_5_moe_text", "shared_expert_intermediate_size"),
        ("qwen3_5_moe_text", "head_dim"),
        ("deepseek_v3", "q_lora_rank"),
        ("deepseek_v3", "n_shared_experts"),
        ("deepseek_v3", "first_k_dense_replace"),
        ("gpt_oss", "sliding_window"),
        ("qwen3", "max_window_layers"),
    ],
)
def test_a_missing_field_of_an_architecture_is_named(model_type: str, field: str) -> None:
    incomplete = {name: value for name, value in tiny_fields(model_type).items() if name != field}
    with pytest.raises(ValueError, match=f"'{model_type}'.* lacks '{field}'"):
        get_flops_estimator(incomplete)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "24"),
        ("hidden_size", 24.0),
        ("hidden_size", -24),
        ("num_hidden_layers", True),
        ("num_attention_heads", 0),
        ("decoder_sparse_step", 0),
    ],
)
def test_a_malformed_field_is_named_with_its_value(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"'qwen3_moe'.*'{field}' must be an int.*{value!r}"):
        get_flops_estimator({**tiny_fields("qwen3_moe"), field: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["striped_attention"] * 7}, "holds 'striped_attention'"),
        ({"layer_types": ["chunked_attention"] * 7}, "lacks 'attention_chunk_size'"),
        ({"layer_types": ["full_attention"] * 6}, "6 entries for 7 layers"),
        ({"layer_types": "full"}, "'layer_types' must be a list"),
        ({"use_bidirectional_attention": True}, "only causal attention"),
    ],
)
def test_what_the_formulas_do_not_cover_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"'gemma3_text'.*{message}"):
        get_flops_estimator({**tiny_fields("gemma3_text"), **change})


def test_a_malformed_list_is_named() -> None:
    with pytest.raises(ValueError, match=r"'qwen3_moe'.*'mlp_only_layers' must be a list, not 3"):
        get_flops_estimator({**tiny_fields("qwen3_moe"), "mlp_only_layers": 3})


def test_the_documentation_has_the_table_of_today() -> None:
    """``PYTHONPATH=tests python -m support.flops_table`` writes it."""
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_table(page) == page
    assert len(supported_model_types()) == sum(row.startswith("| `") for row in table().splitlines()) >= 110


def test_registration_checks_its_arguments() -> None:
    with pytest.raises(ValueError, match="empty"):
        register_flops_estimator("", constant(1))
    with pytest.raises(TypeError, match="string, not 3"):
        register_flops_estimator(3, constant(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"'mine' must be callable"):
        register_flops_estimator("mine", 5)  # type: ignore[arg-type]
    register_flops_estimator("mine", lambda config: 5)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="'mine' returned 5"):
        get_flops_estimator({"model_type": "mine"})


def test_importing_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, areal_callbacks.flops; print(sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
