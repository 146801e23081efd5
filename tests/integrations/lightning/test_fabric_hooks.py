"""``fabric.call``: loops name their own hooks, and give them what they like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.fabric import Fabric
from lightning.pytorch import Callback
from support.readback import messages
from support.tiny_words import Words, batches, weights_of
from torch.optim import SGD

from areal_callbacks.integrations.lightning import AReaLFabricCallback, AReaLMetricsCallback

TRAINER_HOOKS = sorted(name for name in vars(Callback) if name.startswith("on_"))


class Custom:
    """A user's callback with hooks of its own."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.calls.append(("start", batch_idx))

    def after_everything(self, *, loss: float) -> None:
        self.calls.append(("after", loss))


def train(*callbacks: Any) -> tuple[list[float], list[Any]]:
    custom = Custom()
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[*callbacks, custom])
    fabric.launch()
    plain = Words()
    model, optimizer = fabric.setup(plain, SGD(plain.parameters(), 0.1))
    for hook in TRAINER_HOOKS:
        if hook != "on_train_batch_start":
            fabric.call(hook)
    for index, batch in enumerate(batches()):
        fabric.call("on_train_batch_start", batch, index)
        loss = model(**batch)
        fabric.backward(loss)
        fabric.call("on_before_optimizer_step", optimizer, 0)
        optimizer.step()
        optimizer.zero_grad()
        fabric.call("after_everything", loss=loss.item())
    fabric.call("on_train_end")
    fabric.call("teardown")
    fabric.call("state_dict")
    for callback in callbacks:
        callback.close()
    return weights_of(plain), custom.calls


@pytest.mark.parametrize("kind", [AReaLFabricCallback, AReaLMetricsCallback])
def test_hooks_of_any_name_pass(kind: type[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = train()
    callback = kind(output_dir=tmp_path / "with", report=False)
    assert train(callback) == expected
    assert messages(caplog) == []
    assert callback.session is None


def test_it_has_no_hook_of_the_trainer() -> None:
    assert [name for name in TRAINER_HOOKS if hasattr(AReaLFabricCallback, name)] == []
