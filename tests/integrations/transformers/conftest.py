from __future__ import annotations

import pytest

from areal_callbacks import register_flops_estimator
from areal_callbacks.flops import registry


@pytest.fixture(autouse=True)
def _squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimated FLOPs of these tests are ΣL(L+1): exact integers that only right sequence lengths give."""
    monkeypatch.setattr(registry, "_registered", {})
    register_flops_estimator("qwen3_moe", lambda config: lambda length: length * (length + 1))
