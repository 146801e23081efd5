"""The recount beside a test fails it if one token or one assignment more is exported, in ranks too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.beside import RecountBeside, check
from support.distributed import Ranks
from support.sessions import open_session, step
from support.tiny_trainer import moe_model

from areal_callbacks.core.types import Export
from areal_callbacks.monitors.throughput.sequences import Sequences
from areal_callbacks.session.exporter import Exporter
from areal_callbacks.verify.totals import Totals, sum_over_ranks


@contextmanager
def planted(error: str) -> Iterator[None]:
    """Tokens or assignments of every export are one too many."""
    with pytest.MonkeyPatch.context() as patch:
        if error == "tokens":
            right = Sequences.tokens.fget
            patch.setattr(Sequences, "tokens", property(lambda self: right(self) + 1))
        if error == "routed":
            take = Exporter.take

            def take_more(self: Exporter, *args: Any) -> Export | None:
                export = take(self, *args)
                if export is not None and export.expert_loads is not None:
                    next(iter(export.expert_loads)).counts[0] += 1
                return export

            patch.setattr(Exporter, "take", take_more)
        yield


def train(_group: Any, folder: str, error: str) -> None:
    from areal_callbacks import Topology

    model = moe_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with planted(error), open_session(Path(folder)) as session:
        session.attach(model, optimizer, Topology.data_parallel())
        for lengths in ((3, 5), (4, 2)):
            step(session, model, optimizer, *lengths)
        session.export(2)


@pytest.mark.parametrize("error", ["", "tokens", "routed"])
def test_in_one_process(error: str, tmp_path: Path) -> None:
    with planted(error), RecountBeside() as beside:
        train(None, str(tmp_path), "")
    (course,) = beside.courses
    assert course.recounted.tokens == 14
    if not error:
        check([beside.courses])
        return
    with pytest.raises(AssertionError, match="exported"):
        check([beside.courses])


@pytest.mark.parametrize("error", ["", "tokens"])
def test_in_ranks(error: str, two_ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, "compare", staticmethod(check))
    if not error:
        two_ranks.run(train, str(tmp_path), error)
        return
    with pytest.raises(AssertionError, match=r"exported 30\.0 tokens, recounted 28"):
        two_ranks.run(train, str(tmp_path), error)


def rank(text: bytes, tokens: int) -> Totals:
    totals = Totals()
    totals.add_rows([tokens], tokens, text)
    return totals


def test_ranks_that_repeat_another_and_ranks_that_hold_a_part() -> None:
    tensor_parallel = [(rank(b"a", 3), True, True), (rank(b"a", 3), False, False)]
    context_parallel = [(rank(b"b", 2), False, True), (rank(b"a", 3), True, True)]
    assert sum_over_ranks(tensor_parallel).tokens == 3
    assert sum_over_ranks(context_parallel).tokens == 5
