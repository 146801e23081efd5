"""Two processes for Megatron-LM, which keeps its settings for as long as a process lives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.distributed import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.close()
