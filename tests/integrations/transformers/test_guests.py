"""What a row of scalars cannot carry goes into the Trainer's own trackers, whichever callbacks it has for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.readback import tensorboard_events
from support.tiny_trainer import EXPERTS, LAYERS, make_trainer, our_rows
from transformers.integrations import integration_utils

from areal_callbacks import MetricsConfig
from areal_callbacks.integrations._transformers_guests import guests_of
from areal_callbacks.integrations.transformers import AReaLMetricsCallback
from areal_callbacks.writers.base import MetricWriter

TRACKERS = ["WandbCallback", "TensorBoardCallback", "SwanLabCallback", "TrackioCallback", "MLflowCallback"]


@pytest.mark.parametrize("names", [[], ["TensorBoardCallback"], TRACKERS], ids=["none", "one", "all"])
def test_every_tracker_callback_has_a_guest(names: list[str], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    for name in names:
        trainer.add_callback(getattr(integration_utils, name)())
    guests = guests_of(trainer, MetricsConfig())
    assert len({type(guest) for guest in guests}) == len(guests) == len(names)
    assert all(isinstance(guest, MetricWriter) for guest in guests)


@pytest.mark.parametrize("balance", [True, False])
def test_tensorboard_has_a_picture_of_the_loads_beside_every_row(balance: bool, tmp_path: Path) -> None:
    callback = AReaLMetricsCallback(report=False, moe_balance=balance)
    trainer = make_trainer(tmp_path, callbacks=[callback], report_to=["tensorboard"])
    trainer.train()
    (file,) = tmp_path.rglob("events.out.*")
    events = tensorboard_events(file.parent)
    if not balance:
        assert events.Tags()["images"] == []
        return
    shown = [(image.step, image.height, image.width) for image in events.Images("moe_balance/expert_loads")]
    assert shown == [(row["step"], LAYERS, EXPERTS) for row in our_rows(trainer)]
