"""TensorBoard: event files read back."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.readback import single, tensorboard_rows
from support.readback import tensorboard_events as events
from support.report_runs import loads
from support.tracker_conformance import TrackerConformance
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from torch.utils.tensorboard import SummaryWriter

from areal_callbacks.config.options import MoEBalanceConfig
from areal_callbacks.config.trackers import TensorBoardConfig
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.tensorboard import TensorBoardGuest, TensorBoardWriter
from areal_callbacks.writers.tracker_runs import HostRun

KEY = "moe_balance/expert_loads"
BALANCE = MoEBalanceConfig()
LOADS = loads({("", 0): [5, 5, 5, 5], ("", 1): [16, 0, 0, 0], ("encoder", 0): [1, 3]})
EXPORT = Export(7, {"train_perf/tokens": 4096.0, "nan": math.nan}, LOADS, {"loss": 1.5}, 123.0)


def pixels(accumulator: EventAccumulator, tag: str) -> np.ndarray[Any, Any]:
    (image,) = accumulator.Images(tag)
    return np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))


def charts(accumulator: EventAccumulator) -> dict[str, layout_pb2.Chart]:
    (event,) = accumulator.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout()
    layout.ParseFromString(event.tensor_proto.string_val[0])
    return {chart.title: chart for category in layout.category for chart in category.chart}


class TestConformance(TrackerConformance):
    name, kind = "tensorboard", "SummaryWriter"

    def section(self, folder: Path) -> TensorBoardConfig:
        return TensorBoardConfig(path=str(folder / "tb"))

    def rows(self, folder: Path) -> dict[int, dict[str, float]]:
        return tensorboard_rows(folder / "tb")

    def keep(self, metrics: dict[str, float]) -> dict[str, float]:
        return single(metrics)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> EventAccumulator:
    folder = tmp_path_factory.mktemp("run")
    writer = TensorBoardWriter(TensorBoardConfig(), BALANCE)
    writer.open(Run(folder))
    writer.write(EXPORT)
    early = events(folder / "tensorboard")
    assert [event.value for event in early.Scalars("loss")] == [1.5]
    writer.close()
    writer.close()
    return events(folder / "tensorboard")


def test_scalars_carry_step_and_time(written: EventAccumulator) -> None:
    assert set(written.Tags()["scalars"]) == {"train_perf/tokens", "nan", "loss"}
    (event,) = written.Scalars("train_perf/tokens")
    assert (event.step, event.wall_time, event.value) == (7, 123.0, 4096.0)
    assert math.isnan(written.Scalars("nan")[0].value)


def test_an_image_per_stack_has_a_pixel_per_expert(written: EventAccumulator) -> None:
    assert set(written.Tags()["images"]) == {"moe_balance/expert_loads", "moe_balance/encoder/expert_loads"}
    white, black, red = [247, 247, 247], [0, 0, 0], [178, 24, 43]
    assert pixels(written, "moe_balance/expert_loads").tolist() == [[white] * 4, [red, black, black, black]]
    assert pixels(written, "moe_balance/encoder/expert_loads").shape == (1, 2, 3)
    assert [event.step for event in written.Images("moe_balance/expert_loads")] == [7]


def test_the_custom_scalars_page_finds_the_metrics(written: EventAccumulator) -> None:
    page = charts(written)
    (pattern,) = page["max over ideal, every layer"].multiline.tag
    for tag, expected in {
        "moe_balance/layer_12/max_over_ideal": True,
        "moe_balance/encoder/layer_0/max_over_ideal": True,
        "moe_balance/max_over_ideal_max": False,
        "moe_balance/layer_12/expert_3/tokens": False,
    }.items():
        assert bool(re.fullmatch(pattern, tag)) is expected
    (pattern,) = page["tokens per second"].multiline.tag
    assert re.fullmatch(pattern, "train_perf/tokens_per_second")
    assert re.fullmatch(pattern, "train_perf/cumulative_tokens_per_second")
    (series,) = page["logp_diff (average, extrema)"].margin.series
    assert (series.value, series.lower, series.upper) == tuple(
        f"ppo_actor/train_infer/logp_diff/{part}" for part in ("avg", "min", "max")
    )


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SummaryWriter]:
    writer = SummaryWriter(str(tmp_path))
    yield writer
    writer.close()


def test_a_guest_adds_images_and_the_page_and_leaves_scalars_and_closing_to_the_host(
    tmp_path: Path, host: SummaryWriter
) -> None:
    guest = TensorBoardGuest(HostRun(lambda: host), BALANCE)
    guest.open(Run(tmp_path / "elsewhere"))
    guest.write(EXPORT)
    guest.close()
    host.add_scalar("loss", 2.5, 7)
    host.flush()
    accumulator = events(tmp_path)
    assert accumulator.Tags()["scalars"] == ["loss"]
    assert [event.value for event in accumulator.Scalars("loss")] == [2.5]
    assert len(accumulator.Tags()["images"]) == 2
    assert "tokens per second" in charts(accumulator)
    assert not (tmp_path / "elsewhere").exists()


def test_a_rarer_image_shows_the_counts_since_the_one_before(tmp_path: Path) -> None:
    first, second = ({("", 0): counts} for counts in ([3, 1], [1, 3]))
    writer = TensorBoardWriter(TensorBoardConfig(), MoEBalanceConfig(expert_table_every=2))
    writer.open(Run(tmp_path))
    for step, counts in enumerate((first, second, first)):
        writer.write(Export(step, {}, loads(counts)))
    writer.close()
    accumulator = events(tmp_path / "tensorboard")
    assert [event.step for event in accumulator.Images(KEY)] == [1]
    assert pixels(accumulator, KEY).tolist() == [[[247, 247, 247]] * 2]


def test_the_folder_can_be_chosen_and_exports_without_loads_have_no_image(tmp_path: Path) -> None:
    writer = TensorBoardWriter(TensorBoardConfig(path=str(tmp_path / "tb")), BALANCE)
    writer.open(Run(tmp_path))
    writer.write(Export(1, {"a": 1.0}))
    writer.close()
    assert events(tmp_path / "tb").Tags()["images"] == []
