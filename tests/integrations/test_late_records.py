"""What callbacks record in the last events of a training is that training's, not the next one's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.recount import written_sum
from support.tiny_trainer import make_trainer

from areal_callbacks import stats_tracker


def record(*_: Any, **__: Any) -> None:
    stats_tracker.scalar(late=3.0)


def transformers(folder: Path, *, late: bool) -> None:
    from transformers import TrainerCallback

    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    class Late(TrainerCallback):
        on_train_end = record

    callbacks = [AReaLMetricsCallback(report=False), *([Late()] if late else [])]
    make_trainer(folder, callbacks=callbacks, max_steps=2).train()


def lightning(folder: Path, *, late: bool) -> None:
    from lightning.pytorch import Callback
    from support.tiny_lightning import Module, loader, trainer

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback

    class Late(Callback):
        on_train_end = record

    callbacks = [AReaLMetricsCallback(report=False), *([Late()] if late else [])]
    trainer(folder, *callbacks, max_steps=2).fit(Module(), loader())


@pytest.mark.filterwarnings("ignore::UserWarning:lightning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("host", [transformers, lightning])
def test_late_values_are_in_the_tail(host, tmp_path):
    stats_tracker.collect_all()
    host(tmp_path / "first", late=True)
    host(tmp_path / "second", late=False)
    assert written_sum(tmp_path / "first", "late") == 3.0
    assert written_sum(tmp_path / "second", "late") == 0.0
    assert not stats_tracker.collect_all().keys
