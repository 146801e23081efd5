"""A short slice of each soak."""

from __future__ import annotations

import pytest
from soak import cycles, new_keys, signals, steps

pytestmark = pytest.mark.slow


def test_steps(tmp_path):
    assert steps.soak(tmp_path, 1000)["exports"] == 50


@pytest.mark.filterwarnings("ignore")  # of Lightning and Accelerate, on such short trainings
def test_cycles(tmp_path):
    assert cycles.soak(tmp_path, 40)["cycles"] == 40


def test_new_keys(tmp_path, two_ranks):
    assert new_keys.soak_on(two_ranks, tmp_path, 600)["keys"] == 600


def test_signals(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "STEPS", {"loop": 200})
    assert signals.soak(tmp_path, 2)["runs"] == 2
