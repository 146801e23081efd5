"""A recount beside the sessions of a script, cut where they reduce."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from areal_callbacks.core.expert_loads import ExpertLoads
from areal_callbacks.core.types import Export
from areal_callbacks.safety.patches import Patches
from areal_callbacks.session import MetricsSession
from areal_callbacks.topology import Topology
from areal_callbacks.verify.recount import Recount
from areal_callbacks.verify.totals import Totals, sum_over_ranks

SUMS = frozenset({"train_perf/tokens", "train_perf/estimated_flops", "train_perf/input_frames"})
"""The metrics of an interval that add up over intervals."""


class Enough(BaseException):
    """Enough steps were made: ends the script without looking like one of its own errors."""


class Exported:
    """What sessions exported: sums of metrics, and the loads of every layer."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.loads = ExpertLoads(())
        self.rule: str | None = None

    def add(self, export: Export) -> None:
        """Add an export."""
        for name, value in export.metrics.items():
            if name in SUMS:
                self.sums[name] = self.sums.get(name, 0.0) + value
        if export.expert_loads is not None:
            self.loads = self.loads.merge(export.expert_loads)


class Beside:
    """Recounts what every session observes, from the moment it is attached, until a number of optimizer steps.

    Args:
        steps: after so many steps of an optimizer the sessions export, and :class:`Enough` is raised.

    Attributes:
        exported: what the sessions said.
        recounted: the recount at the last reduction that was exported, summed over the ranks.
        steps: optimizer steps made.
    """

    def __init__(self, steps: int) -> None:
        self.exported = Exported()
        self.recounted = Totals()
        self.steps = 0
        self._limit = steps
        self._recount = Recount(flops=True)
        self._cut = Totals()
        self._sessions: list[MetricsSession] = []
        self._made: Counter[int] = Counter()
        self._patches = Patches("verify", self._fail)
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        self._patches.wrap(MetricsSession, "attach", self._attach)
        self._patches.wrap(MetricsSession, "reduce", self._reduce)
        self._patches.wrap(MetricsSession, "emit", self._emit)
        self._undo.callback(self._patches.undo)
        self._undo.callback(register_optimizer_step_post_hook(self._after_step).remove)
        self._undo.enter_context(self._recount)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._undo.close()
        for session in self._sessions:  # which print what they have to say now, and not after the comparison
            session.close()

    @property
    def has_sessions(self) -> bool:
        """Whether anything was observed."""
        return bool(self._sessions)

    def _attach(self, session: MetricsSession, model: Any, *args: Any, **kwargs: Any) -> Generator[None]:
        self._recount.add(*([model] if isinstance(model, nn.Module) else model))
        if session not in self._sessions:
            self._sessions.append(session)
        yield

    def _reduce(self, session: MetricsSession, *, measured: bool = True) -> Generator[None]:
        yield
        if measured:
            self._cut = _sum_over_ranks(self._recount.totals.copy(), session.topology)

    def _emit(self, session: MetricsSession, *args: Any, **kwargs: Any) -> Generator[None, Any, None]:
        export: Export | None = yield
        if export is not None:
            self.exported.add(export)
            self.exported.rule = getattr(session, "rule", None)
            self.recounted = self._cut

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._made[id(optimizer)] += 1
        self.steps = max(self._made.values())
        if self.steps >= self._limit:
            for session in self._sessions:
                session.reduce()
                session.emit(self.steps)
            raise Enough

    def _fail(self, error: BaseException) -> None:
        self._recount.totals.note(f"the recount failed: {error!r}")
        self.recounted.note(f"the recount failed: {error!r}")


def _sum_over_ranks(totals: Totals, topology: Topology) -> Totals:
    """The recounts of all ranks whose data counts; every rank calls it."""
    if topology.size == 1:
        return totals
    gathered: list[Any] = [None] * topology.size
    dist.all_gather_object(gathered, (totals, topology.tokens, topology.routes), group=topology.world)
    return sum_over_ranks(gathered)
