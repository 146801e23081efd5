"""The tests of the hosts are recounted beside, file by file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.beside import NOT_SEEN, RecountBeside, check
from support.distributed import Ranks

NOT_COMPARED = {
    "megatron/": "test_session compares its layouts with support.megatron_recount, at the dispatchers of experts",
}
"""First part of a folder and file → why its tests are not compared."""


@pytest.fixture(autouse=True)
def _recount_beside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    test, path = request.node.nodeid, request.node.path
    file = f"{path.parent.name}/{path.name}"
    if file.startswith(tuple(NOT_COMPARED)) or any(part in test for part in NOT_SEEN):
        yield
        return
    monkeypatch.setattr(Ranks, "compare", staticmethod(check))
    with RecountBeside() as beside:
        yield
    check([beside.courses])
