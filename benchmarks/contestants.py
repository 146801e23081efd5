"""Trackers that keep the average, minimum and maximum of masked tensors, behind one interface for bench_peers.py.

AReaL's tracker is read out of the wheel ``areal``, alone: what it imports of its package is a logger, the name of the
platform and one helper for lists, which stand here instead.
"""

from __future__ import annotations

import itertools
import logging
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker


class Contestant(Protocol):
    """Records tensors under a mask and exports them over a group of processes."""

    def record(self, mask: Tensor, values: dict[str, Tensor]) -> None: ...

    def export(self) -> dict[str, float]: ...


class Ours:
    """This project's."""

    def __init__(self, group: Any) -> None:
        self._group, self._tracker = group, StatsTracker("bench")

    def record(self, mask: Tensor, values: dict[str, Tensor]) -> None:
        self._tracker.denominator(valid=mask)
        self._tracker.stat("valid", **values)

    def export(self) -> dict[str, float]:
        return self._tracker.export(reduce_group=self._group)


class AReaL:
    """AReaL's own: keeps every tensor until the export, which reduces metric by metric."""

    def __init__(self, group: Any) -> None:
        self._group, self._tracker = group, load_areal_tracker("bench")

    def record(self, mask: Tensor, values: dict[str, Tensor]) -> None:
        self._tracker.denominator(valid=mask)
        self._tracker.stat("valid", **values)

    def export(self) -> dict[str, float]:
        exported: dict[str, float] = self._tracker.export(reduce_group=self._group)
        return exported


class TorchMetrics:
    """A MetricCollection of a mean, a minimum and a maximum for each name, which synchronises when it computes."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._collection: Any = None

    def record(self, mask: Tensor, values: dict[str, Tensor]) -> None:
        if self._collection is None:
            self._collection = _make_collection(list(values), self._group)
        for name, each in values.items():
            chosen = each[mask]
            for part in ("avg", "min", "max"):
                self._collection[f"{name}/{part}"].update(chosen)

    def export(self) -> dict[str, float]:
        exported = {name: float(value) for name, value in self._collection.compute().items()}
        self._collection.reset()
        return exported


def _make_collection(names: list[str], group: Any) -> Any:
    from torchmetrics import MaxMetric, MeanMetric, MetricCollection, MinMetric

    kinds = {"avg": MeanMetric, "min": MinMetric, "max": MaxMetric}
    parts = itertools.product(names, kinds.items())
    metrics = {f"{name}/{part}": kind(process_group=group, sync_on_compute=True) for name, (part, kind) in parts}
    return MetricCollection(metrics, compute_groups=False)


class Lightning:
    """What ``self.log(name, value, on_step=True, sync_dist=True)`` does inside a DDP trainer, without the trainer."""

    def __init__(self, group: Any) -> None:
        from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection

        self._group, self._results = group, _ResultCollection(training=True)
        self._recorded: dict[str, Tensor] = {}

    def record(self, mask: Tensor, values: dict[str, Tensor]) -> None:
        for name, each in values.items():
            chosen = each[mask]
            parts = {"avg": chosen.mean(), "min": chosen.min(), "max": chosen.max()}
            self._recorded |= {f"{name}/{part}": value for part, value in parts.items()}

    def export(self) -> dict[str, float]:
        for name, value in self._recorded.items():
            self._results.log(
                "training_step",
                name,
                value,
                on_step=True,
                on_epoch=False,
                reduce_fx={"avg": "mean", "min": "min", "max": "max"}[name[-3:]],  # type: ignore[arg-type]
                sync_dist=dist.is_initialized(),
                sync_dist_fn=_reduce_ddp,
                sync_dist_group=self._group,
                batch_size=1,
            )
        return {name: float(value) for name, value in self._results.metrics(on_step=True)["log"].items()}


def _reduce_ddp(value: Tensor, group: Any = None, reduce_op: Any = "mean") -> Tensor:
    """As ``DDPStrategy.reduce``."""
    from lightning.fabric.utilities.distributed import _sync_ddp_if_available

    return _sync_ddp_if_available(value, group, reduce_op=reduce_op)


def load_areal_tracker(name: str) -> Any:
    """A ``DistributedStatsTracker`` of AReaL; ImportError without its wheel in the environment or beside it."""
    modules: dict[str, Any] = {
        "areal": {},
        "areal.infra": {},
        "areal.infra.platforms": {"current_platform": SimpleNamespace(is_initialized=lambda: False, device_type="cpu")},
        "areal.utils": {"logging": logging},
        "areal.utils.seqpack": {"flat2d": lambda lists: list(itertools.chain(*lists))},
    }
    before = {module: sys.modules.get(module) for module in modules}
    for module, contents in modules.items():
        sys.modules[module] = ModuleType(module)
        vars(sys.modules[module]).update(contents)
    try:
        tracker: dict[str, Any] = {"__name__": "areal_tracker"}
        exec(compile(_areal_source(), "stats_tracker.py", "exec"), tracker)
    finally:
        for module, original in before.items():
            sys.modules.pop(module)
            if original is not None:
                sys.modules[module] = original
    return tracker["DistributedStatsTracker"](name)


def _areal_source() -> str:
    wheels = sorted(Path(sys.prefix).glob("areal-*.whl"))
    if not wheels:
        raise ImportError("no wheel of areal in the environment; make bench downloads it")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        return wheel.read("areal/utils/stats_tracker.py").decode()


def find_contestants() -> dict[str, type[Any]]:
    """Name → class of those whose packages are installed."""
    found: dict[str, type[Any]] = {"areal_callbacks": Ours}
    for name, contestant in (("AReaL", AReaL), ("torchmetrics", TorchMetrics), ("Lightning self.log", Lightning)):
        try:
            contestant(None).record(torch.ones(1, dtype=torch.bool), {"probe": torch.ones(1)})
            found[name] = contestant
        except ImportError as error:
            print(f"{name} is left out: {error}")
    return found
