"""What is recorded when a run is closed already, in the last events of its host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_callbacks import stats_tracker
from areal_callbacks.core.rendezvous import Rendezvous
from areal_callbacks.safety.door import guarded_entry
from areal_callbacks.session import open_sessions

if TYPE_CHECKING:
    from areal_callbacks.session.exporter import Exporter
    from areal_callbacks.session.outputs import Outputs
    from areal_callbacks.topology import Topology


class LateRecords:
    """A block whose records in the global trackers become a row of metrics.jsonl.

    Collective, if every rank leaves the block without an exception; else they are dropped: they are not the next run's.
    Records belong to another session that is open.

    Args:
        exporter: of the closed session.
        outputs: of the closed session.
        topology: who contributes what.
        step: of the row; that of the last one.
    """

    def __init__(self, exporter: Exporter, outputs: Outputs, topology: Topology, step: int) -> None:
        self._exporter, self._outputs, self._topology, self._step = exporter, outputs, topology, step
        self._rendezvous = Rendezvous(topology.world)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._take()
        else:
            self._rendezvous.leave()

    @guarded_entry
    def _take(self) -> None:
        if open_sessions.first() is not None:
            self._rendezvous.leave()
            return
        is_whole, recorded = self._rendezvous.join(), stats_tracker.collect_all()
        if is_whole:
            self._exporter.reduce(lambda: recorded, self._topology, measured=False)
            export = self._exporter.take(self._step, {})
            if export is not None and self._topology.is_writer:
                self._outputs.append(export)
