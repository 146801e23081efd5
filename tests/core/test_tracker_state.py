"""What a tracker keeps and what callers must not notice: their tensors, gradients, modes, devices, memory, threads."""

from __future__ import annotations

import gc
import math
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from areal_callbacks.core.masks import MOST_WAITING
from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType

NAN = math.nan


def all_true(values):
    return torch.ones(torch.as_tensor(values).shape, dtype=torch.bool)


def test_inputs_are_not_changed_and_not_kept():
    tracker = StatsTracker()
    values, mask = torch.tensor([1.0, NAN, 3.0]), torch.tensor([True, False, True])
    tracker.stat_compact(mask, x=values)
    torch.testing.assert_close(values, torch.tensor([1.0, NAN, 3.0]), rtol=0, atol=0, equal_nan=True)
    assert mask.tolist() == [True, False, True]
    values.fill_(100.0)
    assert tracker.export() == {"x/avg": 2.0, "x/min": 1.0, "x/max": 3.0}


def test_gradients_are_not_held():
    tracker = StatsTracker()
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(2):
        tracker.stat_compact(all_true(weight), x=weight * 2)
        tracker.scalar(loss=(weight * 2).sum())
    records = tracker.collect()
    assert not records.rows.requires_grad
    assert records.metrics() == {"loss": 6.0, "loss__count": 2.0, "x/avg": 3.0, "x/min": 2.0, "x/max": 4.0}


@pytest.mark.parametrize("first", [True, False])
def test_records_may_be_made_inside_and_outside_inference_mode(first):
    tracker = StatsTracker()
    for inside in (first, not first, first):
        with torch.inference_mode(inside):
            tracker.denominator(valid=torch.ones(2, dtype=torch.bool))
            tracker.stat("valid", a=torch.tensor([1.0, 3.0]), b=torch.zeros(2), c=torch.zeros(2))
            tracker.scalar(loss=torch.tensor(4.0))
    with torch.inference_mode(not first):
        values = tracker.export(reset=False)
    assert (values["valid"], values["a/avg"], values["loss"], values["loss__count"]) == (6.0, 2.0, 4.0, 3.0)
    assert tracker.export() == values


def test_the_default_device_and_dtype_do_not_matter():
    tracker = StatsTracker()
    values, mask = torch.tensor([1.0, 3.0]), torch.ones(2, dtype=torch.bool)
    with torch.device("meta"):
        for name in "abc":
            tracker.stat_compact(mask, **{name: values})
        tracker.scalar(lr=0.5)
        assert tracker.export(key="b")["b/avg"] == 2.0
        tracker.stat_compact(mask, d=values)
        values = tracker.export()
    assert (values["lr"], values["a/max"], values["c/min"], values["d/avg"]) == (0.5, 3.0, 1.0, 2.0)


class Reads(TorchDispatchMode):
    """Notes the operators that hand a value to the host, which would wait for an accelerator."""

    found: ClassVar[set[str]] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name() in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select"):
            self.found.add(function.name())
        return function(*args, **kwargs or {})


def test_recording_reads_nothing_back_from_the_device():
    tracker = StatsTracker()
    with Reads() as reads:
        for _ in range(3):
            for _ in range(2):
                tracker.denominator(valid=torch.ones(2, 4, dtype=torch.bool))
            for _ in range(3):
                tracker.stat("valid", x=torch.ones(2, 4), y=torch.ones(2, 4, dtype=torch.bfloat16))
            tracker.stat_compact(torch.ones(4, dtype=torch.bool), ReduceType.SUM, z=torch.ones(4))
            tracker.scalar(loss=torch.ones(()))
        assert reads.found == set()
        torch.ones(()).item()
    assert reads.found == {"aten::_local_scalar_dense"}, "the mode would have seen it"
    assert tracker.export()["loss"] == 1.0


def tensor_bytes(root):
    """Bytes of the distinct tensor storages that can be reached from an object."""
    storages, seen, queue = {}, set(), [root]
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif type(item).__module__.startswith("areal_callbacks") or isinstance(item, dict | list | tuple | deque):
            queue.extend(gc.get_referents(item))
    return sum(storages.values())


@pytest.mark.parametrize("metrics", [1, 2, 3, 5, 9, 100, 513])
def test_at_most_64_bytes_of_tensor_are_retained_per_metric(metrics):
    tracker = StatsTracker()
    for batch in range(3):
        mask = torch.ones(100 * (batch + 1), dtype=torch.bool)
        tracker.stat_compact(mask, **{f"m{index}": torch.rand(len(mask)) for index in range(metrics)})
    assert 32 * metrics <= tensor_bytes(tracker) <= 64 * metrics


def test_beside_its_count_a_denominator_retains_its_latest_mask():
    tracker = StatsTracker()
    for length in (50, 1000, 80):
        tracker.denominator(valid=torch.ones(length, dtype=torch.bool))
        tracker.stat("valid", x=torch.rand(length))
    assert tensor_bytes(tracker) <= 80 + 2 * 64


def test_the_masks_of_a_burst_are_dropped_when_the_next_one_comes():
    tracker = StatsTracker()
    for burst in (5, 3, 4):
        for _ in range(burst):
            tracker.denominator(valid=torch.ones(1000, dtype=torch.bool))
        for _ in range(burst):
            tracker.stat("valid", x=torch.rand(1000))
    assert tensor_bytes(tracker) <= 5 * 1000 + 2 * 64


def test_a_denominator_that_is_only_counted_retains_a_bounded_number_of_masks():
    tracker = StatsTracker()
    for _ in range(3 * MOST_WAITING):
        tracker.denominator(valid=torch.ones(10, dtype=torch.bool))
    assert tensor_bytes(tracker) <= 10 * MOST_WAITING + 2 * 64
    assert tracker.export() == {"valid": 30.0 * MOST_WAITING}
    assert tensor_bytes(tracker) == 0


def test_many_threads_lose_nothing_while_another_exports():
    tracker, exports, done = StatsTracker(), [], threading.Event()

    def work(_):
        for _ in range(200):
            tracker.scalar(x=1.0)
            tracker.stat_compact(torch.ones(2, dtype=torch.bool), ReduceType.SUM, y=torch.ones(2))

    def drain():
        while not done.is_set():
            exports.append(tracker.export())

    exporter = threading.Thread(target=drain)
    exporter.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    done.set()
    exporter.join()
    exports.append(tracker.export())
    assert sum(export.get("x__count", 0.0) for export in exports) == 800.0
    assert sum(export.get("y", 0.0) for export in exports) == 1600.0
