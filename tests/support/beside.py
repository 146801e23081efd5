"""A recount beside every session of a test, compared with all that it exports: no test asks for it.

The tests of the hosts run inside :class:`RecountBeside`, in this process and in rank processes. What it cannot see is
in :data:`NOT_SEEN`, and nowhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from torch import nn

from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.types import Export
from areal_callbacks.safety.patches import Patches
from areal_callbacks.session import MetricsSession
from areal_callbacks.session.exporter import Exporter
from areal_callbacks.verify import Recount, Totals
from areal_callbacks.verify.comparison import align_stacks
from areal_callbacks.verify.totals import LayerKey, sum_over_ranks

NOT_SEEN = {
    "compile": "compiled code runs without the compiler while a dispatch mode is active",
    "no_wait_between_exports": "asks whether the package waits, and the recount does at every step",
    "an_export_is_two_collectives": "likewise",
    "test_copies": "copies the model with its hooks, and the recount's lead to the original",
    "a_copy_made": "likewise",
    "pickle": "likewise",
    "replicas_in_one_process": "each replica runs on a thread of its own, and a dispatch mode sees one thread",
    "test_each_measures_its_own": "several trainings at once, which the recount does not tell apart",
    "outer_measurement": "likewise",
    "the_collator_names_the_padding": "the recount asks models for the padding id, and no collator",
}
"""Part of a test's name → why nothing is recounted beside it.

Processes that a test starts by a command are not seen either: the recount is in this process, and in those of
:class:`~support.distributed.Ranks`.
"""


@dataclass
class Course:
    """What one session exported so far, and the recount of this rank; None for what it does not tell.

    Attributes:
        before: the recount when the session was attached.
        cut: the same at its last reduction.
        recounted: the same at its last export, without what was before.
        topology: whether this rank's tokens and routed assignments count.
        models: those that it observes.
    """

    tokens: float | None
    routed: dict[LayerKey, list[int]] | None
    before: Totals
    cut: Totals
    recounted: Totals = field(default_factory=Totals)
    topology: tuple[bool, bool] = True, True
    models: list[nn.Module] = field(default_factory=list)

    @classmethod
    def start(cls, config: MetricsConfig, before: Totals) -> Self:
        """Nothing is exported yet."""
        tokens, routed = 0.0 if config.throughput else None, {} if config.moe_balance.enabled else None
        return cls(tokens, routed, before, before)

    def add(self, export: Export, rule: str) -> None:
        """An export; lengths that the test tells by itself are no reading of ours."""
        self.recounted = subtract(self.cut, self.before)
        is_trained = "train_perf/seconds" in export.metrics
        if self.tokens is not None:
            tokens = export.metrics.get("train_perf/tokens", None if is_trained else 0.0)
            is_told = bool(tokens) and rule in ("", "token_count_fn")
            self.tokens = None if tokens is None or is_told else self.tokens + tokens
        if self.routed is not None and export.expert_loads is not None:
            summed = Totals(routed=self.routed)
            for layer in export.expert_loads:
                summed.add_routed((layer.stack, layer.layer), layer.counts.tolist())
        elif is_trained:
            self.routed = None


class RecountBeside:
    """Recounts what every session observes from the moment at which it is attached until it closes.

    Attributes:
        courses: one for each session, in the order in which they were attached.
    """

    def __init__(self) -> None:
        self.courses: list[Course] = []
        self._recount = Recount()
        self._open: dict[Exporter, tuple[MetricsSession, Course]] = {}
        self._patches = Patches("recount", self._fail)
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._patches.wrap(MetricsSession, "attach", self._attach)
        self._patches.wrap(MetricsSession, "close", self._close)
        self._patches.wrap(Exporter, "reduce", self._reduce)
        self._patches.wrap(Exporter, "take", self._take)
        self._undo.callback(self._patches.undo)
        self._undo.enter_context(self._recount)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._undo.close()

    def _attach(self, session: MetricsSession, model: Any, *args: Any, **kwargs: Any) -> Generator[None]:
        models = [model] if isinstance(model, nn.Module) else list(model)
        self._recount.add(*models)
        if session._exporter not in self._open:
            course = Course.start(session.config, self._recount.totals.copy())
            self._open[session._exporter] = session, course
            self.courses.append(course)
        self._open[session._exporter][1].models.extend(models)
        yield

    def _close(self, session: MetricsSession) -> Generator[None]:
        yield
        if session._exporter in self._open:
            _, course = self._open.pop(session._exporter)
            others = {model for _, other in self._open.values() for model in other.models}
            self._recount.forget(*(model for model in course.models if model not in others))
            course.models.clear()

    def _reduce(self, exporter: Exporter, *args: Any, measured: bool) -> Generator[None]:
        yield
        if measured and exporter in self._open:
            self._open[exporter][1].cut = self._recount.totals.copy()

    def _take(self, exporter: Exporter, *args: Any, **kwargs: Any) -> Generator[None, Any, None]:
        """What is exported, before a part of it is selected."""
        export: Export | None = yield
        if export is not None and exporter in self._open:
            session, course = self._open[exporter]
            course.add(export, session.rule)
            course.topology = session.topology.tokens, session.topology.routes

    def _fail(self, error: BaseException) -> None:
        raise AssertionError("the recount beside this test failed") from error


def subtract(later: Totals, earlier: Totals) -> Totals:
    """What was counted between two moments."""
    routed = {
        layer: [now - then for now, then in zip(counts, earlier.routed.get(layer, [0] * len(counts)))]
        for layer, counts in later.routed.items()
    }
    return Totals(later.tokens - earlier.tokens, routed=routed, digest=later.digest, unread=later.unread)


def check(ranks: Sequence[Sequence[Course]]) -> None:
    """Compare the sessions of all ranks, each with the recounts of the ranks whose data counts.

    Raises:
        AssertionError: something differs.
    """
    assert len({len(courses) for courses in ranks}) == 1, "a rank has sessions of its own"
    for courses in zip(*ranks):
        summed = sum_over_ranks((course.recounted, *course.topology) for course in courses)
        assert not summed.unread, summed.unread
        first = courses[0]
        if first.tokens is not None:
            assert first.tokens == summed.tokens, f"exported {first.tokens} tokens, recounted {summed.tokens}"
        if first.routed is not None:
            ours, others = align_stacks(first.routed, summed.routed)
            used = [{key: counts for key, counts in side.items() if any(counts)} for side in (ours, others)]
            assert used[0] == used[1], f"exported {used[0]}, recounted {used[1]}"
