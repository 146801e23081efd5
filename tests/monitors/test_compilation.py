"""Where the compiler is switched off, what a compiled module runs is seen as in any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.generated_models import make_model
from support.generated_trainings import Composite
from torch import nn

from areal_callbacks.integrations.fsdp import track
from areal_callbacks.monitors.compilation import runs_compiled
from areal_callbacks.verify import Recount


@pytest.mark.parametrize("compiled", ["before", "after", "never"])
@pytest.mark.parametrize(("kind", "times"), [("remembered", 1), ("in_backward", 1), ("embedded", 1), ("skipped", 0)])
def test_a_switched_off_compiler(
    kind: str, times: int, compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    root = Composite(make_model("bert"), make_model("bert"), kind)
    ids = torch.tensor([[5, 6, 7], [5, 6, 7]])
    if compiled == "before":
        root.compile(backend="eager")
    with track(root, output_dir=str(tmp_path), report=False) as metrics, Recount(root) as recount:
        if compiled == "after":
            root.compile(backend="eager")
        with metrics.step():
            sum(root(input_ids=ids) for _ in range(2 if kind == "remembered" else 1)).backward()
        export = metrics.export(1)
    assert export.metrics.get("train_perf/tokens", 0) == recount.totals.tokens == times * ids.numel()


def test_a_compiled_module() -> None:
    layer = nn.Linear(2, 2)
    assert not runs_compiled(layer)
    layer.compile(backend="eager")
    assert runs_compiled(layer)
