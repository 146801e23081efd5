"""A registry that each test leaves as it found it."""

from __future__ import annotations

import pytest

from areal_callbacks.flops import registry


@pytest.fixture(autouse=True)
def _fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
