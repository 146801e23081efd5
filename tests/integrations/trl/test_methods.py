"""Trainers of other libraries that override TRL's methods are recognised before anything is wrapped."""

from __future__ import annotations

from typing import Any

import pytest
from support.readback import messages

trl = pytest.importorskip("trl")

from areal_callbacks import MetricsSession  # noqa: E402
from areal_callbacks.integrations import _trl_policy  # noqa: E402
from areal_callbacks.integrations._trl_methods import find_end_ids, find_foreign_methods  # noqa: E402
from areal_callbacks.safety.patches import Patches  # noqa: E402

NAMES = ("_generate_and_score_completions", "_calculate_rewards", "_generate", "_compute_loss")


def made(cls: type) -> Any:
    """Without its constructor, which needs a model and data."""
    return cls.__new__(cls)


class SameParameters(trl.GRPOTrainer):  # type: ignore[misc]
    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return super()._compute_loss(model, inputs)


class OtherParameters(trl.GRPOTrainer):  # type: ignore[misc]
    """As in ms-swift."""

    def _compute_loss(self, model: Any, model_inputs: Any, grpo_batch: Any, origin_data: Any = None) -> Any:
        return None

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        return [inputs]


@pytest.mark.parametrize(
    ("cls", "expected"), [(trl.GRPOTrainer, []), (SameParameters, []), (OtherParameters, ["_compute_loss"])]
)
def test_a_method_is_trls_if_it_has_its_parameters(cls: type, expected: list[str]) -> None:
    assert find_foreign_methods(made(cls), NAMES) == expected


def test_a_method_that_the_release_does_not_have_is_none_of_its_own() -> None:
    assert find_foreign_methods(made(trl.GRPOTrainer), ["_of_another_release"]) == ["_of_another_release"]


@pytest.mark.parametrize(
    ("cls", "wrapped"),
    [
        (SameParameters, {*NAMES, "_get_per_token_logps_and_entropies"}),
        (OtherParameters, {"_generate_and_score_completions"}),  # generation is still no training time
    ],
)
def test_what_is_wrapped(cls: type, wrapped: set[str], caplog: pytest.LogCaptureFixture) -> None:
    trainer, patches, before = made(cls), Patches("test"), dict(vars(cls))
    with MetricsSession(report=False) as session:
        _trl_policy.observe(trainer, session, patches)
        assert {name for name, method in vars(cls).items() if method is not before.get(name)} == wrapped
        patches.undo()
    assert dict(vars(cls)) == before
    expected = [] if cls is SameParameters else [f"{__name__}.OtherParameters has methods or batches of its own kind"]
    assert [message.partition(" (")[0] for message in messages(caplog)] == expected


class _Tokenizer:
    pad_token_id, eos_token_id = 0, 5


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"_tokenizer": _Tokenizer(), "eos_token_ids": [5, 7], "processing_class": None}, [5, 7, 0]),  # TRL 1.16
        ({"eos_token_id": 6, "processing_class": _Tokenizer()}, [6, 0]),  # TRL 0.24
        ({"processing_class": type("Processor", (), {"tokenizer": _Tokenizer()})()}, [5, 0]),
    ],
)
def test_ends_of_completions_under_the_names_of_every_release(attributes: dict[str, Any], expected: list[int]) -> None:
    assert find_end_ids(type("Trainer", (), attributes)()) == expected
