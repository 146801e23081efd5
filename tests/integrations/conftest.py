"""The tests of the hosts are recounted beside, file by file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.beside import NOT_SEEN, RecountBeside, check
from support.distributed import Ranks

COMPARED = {
    "accelerate": ("accelerate", "checkpoints", "ends", "host", "rows", "run"),
    "lightning": ("cli", "fabric", "fabric_hooks", "host", "lightning", "promises"),
    "transformers": ("console", "counts", "errors", "grouping", "host", "ranks", "resume", "run", "transformers"),
}
"""Host → its files whose tests are compared."""


@pytest.fixture(autouse=True)
def _recount_beside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    test, file = request.node.nodeid, request.node.path
    compared = file.stem.removeprefix("test_") in COMPARED.get(file.parent.name, ())
    if not compared or any(part in test for part in NOT_SEEN):
        yield
        return
    monkeypatch.setattr(Ranks, "compare", staticmethod(check))
    with RecountBeside() as beside:
        yield
    check([beside.courses])
