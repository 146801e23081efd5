from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "0")

import pytest
from support.distributed import Ranks
from support.readback import offline_trackers  # noqa: F401 - a fixture

from areal_callbacks.safety import reporting


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    """Two long-lived gloo processes."""
    ranks = Ranks(2)
    yield ranks
    ranks.close()


@pytest.fixture(autouse=True)
def _fresh_reports() -> None:
    """Every test sees its own messages."""
    reporting.reset()
