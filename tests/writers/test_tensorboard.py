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
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from torch.utils.tensorboard import SummaryWriter

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.tensorboard import TensorBoardWriter, expert_load_images


def layer(stack: str, number: int, *counts: int) -> LayerLoads:
    return LayerLoads(stack, number, torch.tensor(counts, dtype=torch.int64))


LOADS = ExpertLoads((layer("", 0, 5, 5, 5, 5), layer("", 1, 16, 0, 0, 0), layer("encoder", 0, 1, 3)))
EXPORT = Export(7, {"train_perf/tokens": 4096.0, "nan": math.nan}, LOADS, {"loss": 1.5}, 123.0)


def events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def pixels(accumulator: EventAccumulator, tag: str) -> np.ndarray[Any, Any]:
    (image,) = accumulator.Images(tag)
    return np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))


def charts(accumulator: EventAccumulator) -> dict[str, layout_pb2.Chart]:
    (event,) = accumulator.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout()
    layout.ParseFromString(event.tensor_proto.string_val[0])
    return {chart.title: chart for category in layout.category for chart in category.chart}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> EventAccumulator:
    folder = tmp_path_factory.mktemp("run")
    writer = TensorBoardWriter()
    assert isinstance(writer, MetricWriter)
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


def test_a_guest_leaves_the_hosts_scalars_and_its_writer_alone(tmp_path: Path, host: SummaryWriter) -> None:
    writer = TensorBoardWriter(summary_writer=host)
    writer.open(Run(tmp_path / "elsewhere"))
    writer.write(EXPORT)
    writer.close()
    host.add_scalar("loss", 2.5, 7)
    host.flush()
    accumulator = events(tmp_path)
    assert [event.value for event in accumulator.Scalars("loss")] == [2.5]
    assert [event.value for event in accumulator.Scalars("train_perf/tokens")] == [4096.0]
    assert not (tmp_path / "elsewhere").exists()


def test_scalars_and_page_can_be_left_to_the_host(tmp_path: Path, host: SummaryWriter) -> None:
    writer = TensorBoardWriter(summary_writer=host, scalars=False, layout=False)
    writer.open(Run(tmp_path))
    writer.write(EXPORT)
    host.flush()
    tags = events(tmp_path).Tags()
    assert (tags["scalars"], tags["tensors"], len(tags["images"])) == ([], [], 2)


def test_the_folder_can_be_chosen_and_exports_without_loads_have_no_image(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path / "tb")
    writer.open(Run(tmp_path))
    writer.write(Export(1, {"a": 1.0}))
    writer.close()
    assert events(tmp_path / "tb").Tags()["images"] == []


def test_colours_diverge_around_the_ideal_load_and_padding_is_grey() -> None:
    image = expert_load_images(ExpertLoads((layer("", 0, 8, 2, 4, 4, 4, 4, 4, 2), layer("", 1, 0, 0))))
    colours = image["moe_balance/expert_loads"].tolist()
    double, half, ideal = colours[0][:3]
    assert ideal == [247, 247, 247]
    assert double[0] > double[2]
    assert half[2] > half[0]
    assert colours[1] == [[0, 0, 0]] * 2 + [[128, 128, 128]] * 6
    assert expert_load_images(None) == {}
