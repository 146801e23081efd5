"""Megatron-LM's ``pretrain`` is observed where a script imports it, and put back."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.readback import messages

from areal_callbacks.run.autoload import observe_frameworks, stop_observing

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),  # megatron.core
    pytest.mark.filterwarnings("ignore::UserWarning:megatron"),  # Apex is not there
    pytest.mark.filterwarnings("ignore::DeprecationWarning:megatron"),
]

FOLDER = Path(__file__).parents[1] / "support" / "megatron_lm"
NAME = "megatron.training.training"
WRAPPED = ("setup_model_and_optimizer", "train", "train_step", "training_log", "save_checkpoint")


@pytest.fixture(autouse=True)
def _beside_the_script(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(FOLDER)
    yield
    stop_observing()
    for name in [name for name in sys.modules if name.startswith("megatron.training")]:
        del sys.modules[name]


def is_wrapped(training: object) -> list[bool]:
    return [hasattr(getattr(training, name), "__wrapped__") for name in WRAPPED]


def test_the_functions_are_wrapped_at_import_and_put_back() -> None:
    observe_frameworks()
    training = importlib.import_module(NAME)
    assert Path(training.__file__).is_relative_to(FOLDER)
    assert is_wrapped(training) == [True] * len(WRAPPED)
    stop_observing()
    assert is_wrapped(training) == [False] * len(WRAPPED)


def test_a_module_that_is_there_already_is_observed_too() -> None:
    training = importlib.import_module(NAME)
    observe_frameworks()
    assert is_wrapped(training) == [True] * len(WRAPPED)


def test_the_engine_of_accelerate_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")
    observe_frameworks()
    assert is_wrapped(importlib.import_module(NAME)) == [False] * len(WRAPPED)


def test_a_version_that_cannot_be_observed_is_one_message(caplog: pytest.LogCaptureFixture) -> None:
    training = importlib.import_module(NAME)
    del training.train_step
    observe_frameworks()
    (message,) = messages(caplog)
    assert f"{NAME}.train_step does not exist: nothing is measured" in message
    assert not hasattr(training.train, "__wrapped__")
