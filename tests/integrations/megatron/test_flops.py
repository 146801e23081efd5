"""Which estimate a model of megatron.core gets, and the one message where there is none.

The models are Megatron's classes with a configuration and without layers, which need a GPU: only what they are and what
they are configured with is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.readback import messages
from torch import nn

from areal_callbacks.flops.megatron import megatron_flops_estimator, megatron_t5_flops_estimator

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing megatron.core warns about Apex, and about what torch deprecates
    from megatron.core.models.bert.bert_model import BertModel
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.mamba import MambaModel
    from megatron.core.models.T5 import T5Model
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

    from areal_callbacks.integrations._megatron_flops import find_megatron_flops

SIZE = {"num_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "ffn_hidden_size": 12, "cuda_graph_scope": []}


def config(**fields: Any) -> Any:
    return TransformerConfig(**SIZE, **fields)


def model(kind: Callable[..., Any], config: Any, **attributes: Any) -> nn.Module:
    """An instance of a class of Megatron with the attributes that its constructor sets, and no layers."""
    built = kind.__new__(kind)
    nn.Module.__init__(built)
    for name, value in {"config": config, "vocab_size": 20, **attributes}.items():
        setattr(built, name, value)
    return built


def test_a_gpt_inside_of_wrappers_has_its_estimate(caplog: pytest.LogCaptureFixture) -> None:
    """By hand: 2 layers of attention and MLP, 20 words, 5 tokens and 15 pairs."""
    found = find_megatron_flops([nn.Sequential(nn.Sequential(model(GPTModel, config())))])
    assert found is not None
    assert found(5) == 6 * (2 * (5 * (4 * 8 * 8 + 2 * 8 * 12) + 15 * 2 * 8) + 5 * 8 * 20)
    assert messages(caplog) == []


def test_bert_sees_both_sides() -> None:
    expected = megatron_flops_estimator(config(), vocab_size=20, bidirectional=True)
    assert find_megatron_flops([model(BertModel, config())]) == expected


@pytest.mark.parametrize(
    "attributes",
    [
        {"hybrid_layer_pattern": "M|*"},
        {"hybrid_layer_pattern": None, "hybrid_override_pattern": "M*"},
        {"hybrid_override_pattern": None, "hybrid_attention_ratio": 0.5, "hybrid_mlp_ratio": 0.0},
    ],
)
def test_hybrids_have_the_pattern_of_the_model(attributes: dict[str, Any]) -> None:
    settings = config(mamba_head_dim=4, mamba_num_groups=1, mamba_state_dim=3, is_hybrid_model=True)
    expected = megatron_flops_estimator(settings, vocab_size=20, hybrid_pattern="M*")
    assert expected is not None
    assert find_megatron_flops([model(MambaModel, settings, **attributes)]) == expected


def test_an_encoder_decoder_is_priced_in_pairs() -> None:
    t5 = model(T5Model, config(), encoder_config=config(num_query_groups=1))
    expected = megatron_t5_flops_estimator(config(num_query_groups=1), config(), vocab_size=20)
    assert expected is not None
    assert find_megatron_flops([t5]) == expected


class Custom(MegatronModule):
    """A model of one's own."""


@pytest.mark.parametrize(
    ("kind", "fields", "attributes", "named"),
    [
        (GPTModel, {"experimental_attention_variant": "csa"}, {}, "experimental_attention_variant='csa'"),
        (GPTModel, {"heterogeneous_block_specs": True}, {}, "heterogeneous_block_specs"),
        (MambaModel, {}, {"hybrid_override_pattern": "MX"}, "'X'"),
        (
            T5Model,
            {"experimental_attention_variant": "csa"},
            {"encoder_config": config()},
            "experimental_attention_variant='csa'",
        ),
        (Custom, {}, {}, "no FLOPs formula for Custom"),
    ],
)
def test_what_has_no_formula_is_named_once(
    kind: Any, fields: dict[str, Any], attributes: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = SimpleNamespace(**{**vars(config()), **fields})
    for _ in range(2):
        assert find_megatron_flops([model(kind, unknown, **attributes)]) is None
    (message,) = messages(caplog)
    for part in (named, "train_perf/mfu are left out", "tokens, seconds", "flops_estimator="):
        assert part in message


def test_a_malformed_configuration_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    lacking = SimpleNamespace(**{**vars(config()), "hidden_size": None})
    assert find_megatron_flops([model(GPTModel, lacking)]) is None
    (message,) = messages(caplog)
    assert "'hidden_size'" in message


def test_models_of_others_are_left_to_their_own_configuration(caplog: pytest.LogCaptureFixture) -> None:
    other = nn.Linear(2, 2)
    other.vocab_size = 20  # type: ignore[assignment]
    assert find_megatron_flops([other]) is None
    assert messages(caplog) == []
