"""What reads a model instead of running it reads a tracked one as before: TorchScript, export, FX, fake tensors."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.readback import messages
from support.tiny_words import Words
from support.toy_moe import ToyMoE, batches, routed_by_hand
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from areal_callbacks import MetricsSession, track

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning", "ignore::FutureWarning", "ignore::torch.jit.TracerWarning"
)


def script(model: nn.Module, _: Tensor) -> str:
    return str(torch.jit.script(model).code)


def script_a_frozen_copy(model: nn.Module, _: Tensor) -> str:
    return str(torch.jit.freeze(torch.jit.script(copy.deepcopy(model).eval())).code)


def trace(model: nn.Module, given: Tensor) -> str:
    graph = str(torch.jit.trace(model, (given,)).inlined_graph)
    return re.sub(r"\.___torch_mangle_\d+", "", graph)  # numbers of classes


def export(model: nn.Module, given: Tensor) -> str:
    return str(torch.export.export(model, (given,), strict=False).graph)


def export_strictly(model: nn.Module, given: Tensor) -> str:
    return str(torch.export.export(model, (given,), strict=True).graph)


def trace_symbols(model: nn.Module, _: Tensor) -> str:
    return str(torch.fx.symbolic_trace(model).graph)


def trace_operators(model: nn.Module, given: Tensor) -> str:
    """Its graph holds the counting, which looks at run time whether it is wanted: only the result is the same."""
    graph = make_fx(model, tracing_mode="fake", _allow_non_fake_inputs=True)(given)
    return str(graph(given))


def run_on_fakes(model: nn.Module, given: Tensor) -> str:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return str(model(mode.from_tensor(given)))


def small_moe() -> ToyMoE:
    return ToyMoE((6, 6))


def train(run: MetricsSession, model: nn.Module, given: Tensor) -> None:
    with run.step():
        model(given).sum().backward()


def capture_in_between(model: nn.Module, captures: Any, data: list[Tensor], folder: Path) -> tuple[list[str], Any]:
    """The captures of a tracked model after each batch that it trains on, and what was exported in the end."""
    with track(model, output_dir=folder, report=False, flops=False) as run:
        captured = []
        for capture, given in zip(captures, data):
            train(run, model, given)
            captured.append(capture(model, given))
            model.zero_grad()
        train(run, model, data[0])
        return captured, run.export(1)


@pytest.mark.parametrize(
    ("capture", "training"),
    [
        *itertools.product([trace, export, run_on_fakes], [True, False]),
        (export_strictly, True),
        (trace_operators, True),
    ],
)
def test_a_mixture_of_experts(capture: Callable[..., str], training: bool, tmp_path: Path, caplog: Any) -> None:
    """The same graph without an operator of ours, and the counts of what was trained."""
    torch._dynamo.reset()
    data = batches(1)
    expected = capture(small_moe().train(training), data[0])
    model = small_moe()

    def in_that_mode(model: nn.Module, given: Tensor) -> str:
        model.train(training)
        captured = capture(model, given)
        model.train()
        return captured

    (captured,), exported = capture_in_between(model, [in_that_mode], data, tmp_path)
    assert captured == expected
    assert "areal" not in captured
    assert exported.metrics["train_perf/tokens"] == 2 * data[0].numel()
    counts = [layer.counts.tolist() for layer in exported.expert_loads]
    assert counts == (2 * routed_by_hand(small_moe(), data)).tolist()
    assert messages(caplog) == []


@pytest.mark.parametrize("capture", [script, script_a_frozen_copy, trace_symbols], ids=lambda capture: capture.__name__)
def test_a_model_that_scripts(capture: Callable[..., str], tmp_path: Path, caplog: Any) -> None:
    given = torch.arange(6).view(2, 3)
    expected = capture(Words(), given)
    captured, exported = capture_in_between(Words(), [capture], [given], tmp_path)
    assert captured == [expected]
    assert exported.metrics["train_perf/tokens"] == 2 * 6
    assert messages(caplog) == []


class Nested(nn.Module):
    """A model of the Transformers kind inside another, whose hooks are called with what FX hands around."""

    base_model_prefix = "model"
    config = None

    def __init__(self) -> None:
        super().__init__()
        self.words = Words()

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.words(input_ids)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Nested()

    def forward(self, given: Tensor) -> Tensor:
        return 2 * self.inner(input_ids=given)


def test_symbols_are_no_tokens(tmp_path: Path, caplog: Any) -> None:
    given = torch.arange(6).view(2, 3)
    expected = trace_symbols(Outer(), given)
    captured, exported = capture_in_between(Outer(), [trace_symbols], [given], tmp_path)
    assert captured == [expected]
    assert exported.metrics["train_perf/tokens"] == 2 * 6
    assert messages(caplog) == []


def test_an_exported_program_runs_where_we_are_not(tmp_path: Path) -> None:
    """It is saved while its model is tracked, and computes the same as the model."""
    model, (given,) = small_moe(), batches(1)
    with track(model, output_dir=tmp_path, report=False) as run:
        train(run, model, given)
        torch.export.save(torch.export.export(model, (given,), strict=False), tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    assert "areal" not in str(loaded.graph)
    torch.testing.assert_close(loaded.module()(given), model(given))
