"""Whether the other ranks of a training are measured, and whether they have come to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal_callbacks.core.attendance import Attendance
from areal_callbacks.core.rendezvous import Rendezvous
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.topology import Topology

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class OtherRanks:
    """Those that this rank reduces with.

    Args:
        world: every training rank; None for one process.
    """

    def __init__(self, world: ProcessGroup | None) -> None:
        self._rendezvous = Rendezvous(world)
        self._attendance = None if world is None else Attendance(world)

    def find(self, topology: Topology) -> Topology:
        """The topology to reduce in: that of this rank alone where not all are measured.

        Asks once, and may wait for ranks that come late.
        """
        attendance = self._attendance
        if topology.world is None or attendance is None or attendance.is_complete():
            return topology
        self._rendezvous.forget()
        self._rendezvous = Rendezvous(None)
        report_once("session:alone", "not every rank is measured: the numbers are those of this rank alone")
        return topology.left_alone(writes=attendance.is_first)

    def join(self) -> bool:
        """Whether all ranks are at the end of the training, the same on every rank."""
        return self._rendezvous.join()

    def leave(self) -> None:
        """This rank's measurement is over."""
        self._rendezvous.leave()
        if self._attendance is not None:
            self._attendance.leave()
