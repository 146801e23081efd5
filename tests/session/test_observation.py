"""Which monitors a run gets, and what is left of them if a model cannot be observed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.readback import messages
from support.sessions import batch, open_session, step
from support.tiny_trainer import moe_model, router_modules
from torch import nn

from areal_callbacks import MetricsSession


def test_a_model_of_another_size_costs_the_flops(
    session: MetricsSession, model: nn.Module, optimizer: torch.optim.Optimizer, caplog: pytest.LogCaptureFixture
) -> None:
    """Lengths of all models are pooled; a second model of the same size has the same formula."""
    session.attach(moe_model(seed=1))
    step(session, model, optimizer, 3)
    assert session.export(1).metrics["train_perf/estimated_flops"] == 12
    session.attach(other := moe_model(num_hidden_layers=1))
    step(session, model, optimizer, 3)
    with torch.no_grad():
        other(**batch(4))  # a teacher costs nothing
    assert session.export(2).metrics["train_perf/estimated_flops"] == 12
    step(session, model, optimizer, 3)
    other(**batch(4))
    metrics = session.export(3).metrics
    assert metrics["train_perf/tokens"] == 7
    assert "train_perf/estimated_flops" not in metrics
    assert "different sizes" in caplog.text
    session.close()


def test_data_parallel_peaks_add_up(tmp_path: Path) -> None:
    """DataParallel names its devices; without an accelerator it has none and works on one."""
    for devices, expected in (([], 1e12), ([0, 1], 2e12)):
        root = nn.DataParallel(nn.Linear(2, 2))
        root.device_ids = devices
        session = MetricsSession(output_dir=tmp_path, report=False, flops={"peak_flops": 1e12}).attach(root)
        session.count_sequences([3])
        assert session.export(1).metrics["train_perf/peak_flops_per_second"] == expected
        session.close()


def hooks_of(model: nn.Module, *optimizers: torch.optim.Optimizer) -> int:
    """Hooks that modules and optimizers carry."""
    modules = [hooks for module in model.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks)]
    steps = [hooks for one in optimizers for hooks in (one._optimizer_step_pre_hooks, one._optimizer_step_post_hooks)]
    return sum(map(len, [*modules, *steps]))


def refuse(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no hooks here")


def assert_told_once(told: list[str]) -> None:
    """The cause, then each family that it costs."""
    cause, *costs = told
    assert cause == "observation raised and is switched off: RuntimeError('no hooks here')"
    assert [cost.split(" failed on a rank")[0] for cost in costs] == ["'throughput'", "'moe_balance'"]


def test_if_attaching_fails_half_way_everything_is_taken_off(
    model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The last router refuses a hook when the others carry one."""
    router_modules(model)[-1].register_forward_hook = refuse
    session = open_session(tmp_path).attach(model, optimizer)
    assert hooks_of(model) == 0
    step(session, model, optimizer, 3, 4)
    session.tracker.scalar(kept=1.0)
    assert session.export(1).metrics == {"kept": 1.0}
    assert_told_once(messages(caplog))
    session.close()
    assert hooks_of(model, optimizer) == 0


def test_a_later_model_that_cannot_be_observed_ends_the_observation_of_all(
    session: MetricsSession, model: nn.Module, optimizer: torch.optim.Optimizer, caplog: pytest.LogCaptureFixture
) -> None:
    """Numbers of the first model alone would pass for those of the run."""
    step(session, model, optimizer, 3)
    assert session.export(1).metrics["train_perf/tokens"] == 3
    later = moe_model(seed=1)
    router_modules(later)[-1].register_forward_hook = refuse
    session.attach(later, torch.optim.SGD(later.parameters(), 0.1))
    assert hooks_of(model) == hooks_of(later) == 0
    for number in (4, 5):
        step(session, model, optimizer, number)
    session.tracker.scalar(kept=1.0)
    assert session.export(2).metrics == {"kept": 1.0}
    assert_told_once(messages(caplog))
    session.close()
    assert hooks_of(model, optimizer) == 0


def test_a_model_that_cannot_be_observed_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    closed = nn.Linear(2, 2)
    closed.register_forward_pre_hook = refuse
    session = open_session(tmp_path).attach(closed)
    session.tracker.scalar(kept=1.0)
    assert session.export(1).metrics == {"kept": 1.0}
    assert_told_once(messages(caplog))
    session.close()


def test_training_is_the_same_after_a_failed_attachment(tmp_path: Path) -> None:
    weights = []
    for refuses in (False, True):
        model = moe_model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if refuses:
            router_modules(model)[-1].register_forward_hook = refuse
        with open_session(tmp_path / str(refuses)).attach(model, optimizer) as session:
            step(session, model, optimizer, 5, 2)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(first, second) for first, second in zip(*weights))


@pytest.mark.parametrize("off", ["throughput", "moe_balance", "both"])
def test_what_is_switched_off_is_not_measured(
    off: str, model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    options = {name: off not in (name, "both") for name in ("throughput", "moe_balance")}
    with open_session(tmp_path, **options).attach(model, optimizer) as session:
        step(session, model, optimizer, 3)
        session.tracker.scalar(kept=1.0)
        export = session.export(1)
    assert ("train_perf/tokens" in export.metrics) == options["throughput"]
    assert ("moe_balance/worst_layer" in export.metrics) == options["moe_balance"]
    assert (export.expert_loads is not None) == options["moe_balance"]
    assert export.metrics["kept"] == 1.0


def test_a_session_without_a_model_exports_what_is_recorded(tmp_path: Path) -> None:
    with open_session(tmp_path) as session:
        with session.step():
            session.tracker.scalar(kept=1.0)
        assert session.export(1).metrics == {"kept": 1.0}


def test_a_configuration_that_cannot_be_read_costs_the_flops_only(
    model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class NotSetUp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.model
            self.lm_head = model.lm_head

        @property
        def config(self) -> Any:
            raise RuntimeError("call setup() first")

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return self.lm_head(hidden).sum()

    root = NotSetUp()
    with open_session(tmp_path, moe_balance=False).attach(root, optimizer) as session:
        with session.step():
            inputs = batch(3, 4)
            root(inputs["input_ids"], inputs["attention_mask"]).backward()
            optimizer.step()
        metrics = session.export(1).metrics
    assert metrics["train_perf/tokens"] == 7
    assert metrics["train_perf/optimizer_steps"] == 1
    (message,) = messages(caplog)
    assert "call setup() first" in message


def test_the_class_of_the_model_tells_its_head(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=50, num_labels=3, **sizes)
    ids = torch.tensor([[5, 6, 7, 8]])
    flops = {}
    for kind in (transformers.BertForSequenceClassification, transformers.BertForMaskedLM):
        model = kind(config).train()
        session = MetricsSession(output_dir=tmp_path / kind.__name__, report=False).attach(nn.ModuleDict({"m": model}))
        model(input_ids=ids)
        flops[kind.__name__] = session.export(1).metrics["train_perf/estimated_flops"]
        session.close()
    hidden, tokens = 8, 4
    # Forward and backward of: pooler and 3 logits once; transformation and 50 logits at every token.
    heads = 6 * (hidden * hidden + hidden * 3), 6 * tokens * (hidden * hidden + hidden * 50)
    assert flops["BertForSequenceClassification"] - flops["BertForMaskedLM"] == heads[0] - heads[1]
