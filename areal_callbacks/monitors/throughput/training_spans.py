"""When a rank trains, and how long it waits in between."""

from __future__ import annotations

from collections.abc import Callable

from areal_callbacks.monitors.throughput.timer import Timer
from areal_callbacks.safety.door import Observer, guarded


class TrainingSpans(Observer):
    """The events that begin and end training work, on the step path.

    Args:
        training: measures the spans and the gaps between them.
        clock: wall-clock seconds.

    Attributes:
        training: as given.
    """

    def __init__(self, training: Timer, clock: Callable[[], float]) -> None:
        self.training = training
        self._clock = clock
        self._since: float | None = None  # the last export, or the first training work
        self._has_begun = False

    @guarded
    def begin(self, *, trains: bool = True) -> None:
        """Training work starts, or what belongs to it and is no training by itself."""
        self._has_begun = self._has_begun or trains
        if self._since is None:
            self._since = self._clock()
        self.training.start()

    @guarded
    def end(self) -> None:
        """Training work ends."""
        self.training.stop()

    @guarded
    def may_end(self) -> None:
        """Training work has ended here if more begins next, and goes on if it is ended next."""
        self.training.may_stop()

    @guarded
    def leave_gap(self) -> bool:
        """What comes now is no part of the time between two steps; whether there has been a step before it."""
        return self.training.leave_gap()

    @guarded
    def enter_gap(self) -> None:
        """From now on the next step is waited for."""
        self.training.enter_gap()

    @guarded
    def forget_gap(self) -> None:
        """The time since the last step was not spent on waiting."""
        self.training.forget_gap()

    @property
    def running(self) -> bool:
        """Inside a training span."""
        return self.training.running

    def take_seconds(self, *, trained: bool) -> dict[str, list[float]]:
        """The times of the interval: they add over time, and their maximum counts over ranks.

        Args:
            trained: without training everything waits for the next interval with some; a batch may have been moved.
        """
        self._has_begun = self.training.running
        if not trained:
            return {
                "seconds": [0.0],
                "least_seconds": [0.0],
                "wall_seconds": [0.0],
                "waits": [0],
                "wait_seconds": [0.0],
            }
        seconds, gaps = self.training.take(), self.training.take_gaps()
        now = self._clock()
        wall, self._since = now - (now if self._since is None else self._since), now
        return {
            "seconds": [seconds],
            "least_seconds": [-seconds],
            "wall_seconds": [wall],
            "waits": [gaps is not None],
            "wait_seconds": [gaps or 0.0],
        }
