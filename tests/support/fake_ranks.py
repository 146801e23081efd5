"""One process as any rank of a world that does not communicate, or as all ranks of one that does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

_OPERATIONS = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.MAX: torch.maximum}
_STACK = 256 * 1024


@contextmanager
def rank_of(rank: int, world: int) -> Iterator[None]:
    """This process as one rank of a world that does not communicate."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@dataclass
class Collective:
    """One ``all_reduce`` of the simulated world."""

    operation: dist.ReduceOp
    value: Tensor

    @property
    def name(self) -> str:
        """``MAX`` or ``SUM``."""
        return "SUM" if self.operation == dist.ReduceOp.SUM else "MAX"


class SimulatedGroup:
    """Stands for a process group in one rank's code."""

    def __init__(self, world: SimulatedWorld, rank: int) -> None:
        self.world, self.rank = world, rank
        self.done = 0
        """Collectives that this rank has behind it."""
        self.cpu = 0.0
        """Seconds of CPU in this rank's code, without the simulation's own."""
        self._since = 0.0

    def size(self) -> int:
        """Number of ranks."""
        return self.world.size

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around this rank's code."""
        self._since = time.thread_time()
        yield
        self.cpu += time.thread_time() - self._since

    @contextmanager
    def communicating(self) -> Iterator[int]:
        """Around a collective; gives its number."""
        self.cpu += time.thread_time() - self._since
        yield self.done
        self.done += 1
        self._since = time.thread_time()


class SimulatedWorld:
    """Runs every rank's own code over a process group that does nothing but compare, combine and count.

    Each rank is a thread; only one runs at a time, until its next collective. Ranks that do not call the same
    collectives with the same operation, dtype and size, which would hang or abort a real group, fail the run.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.collectives: list[Collective] = []
        self.groups = [SimulatedGroup(self, rank) for rank in range(size)]
        self._waiting: Collective | None = None

    def run(self, job: Callable[[SimulatedGroup], Any], alone_after: int | None = None) -> list[Any]:
        """The results of ``job(group)`` in rank order; groups live on, so that a second run continues the first.

        Args:
            job: one rank's code.
            alone_after: collectives after which only the first rank goes on, here and in later runs; for worlds whose
                ranks together would need too much memory from there on.
        """
        threading.stack_size(_STACK)
        ranks = [_Rank(job, group) for group in self.groups]
        threading.stack_size(0)
        try:
            with self._communicating():
                while not self._round(ranks):
                    if len(self.collectives) == alone_after:
                        self._abort(ranks[1:])
                        del ranks[1:], self.groups[1:]
        finally:
            self._abort(ranks)
        return [rank.result for rank in ranks]

    def replay(self, job: Callable[[SimulatedGroup], Any], rank: int) -> Any:
        """The job of one rank again, alone in this thread, from the first collective on."""
        group = SimulatedGroup(self, rank)
        with self._communicating(), group.running():
            return job(group)

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: SimulatedGroup | None = None) -> None:
        """In place of ``torch.distributed.all_reduce``."""
        assert group is not None
        assert op != dist.ReduceOp.MAX or not tensor.isnan().any(), "a backend's MAX may lose a NaN"
        with group.communicating() as number:
            if number == len(self.collectives):
                self._contribute(tensor, op)
                _Rank.pause()
            tensor.copy_(self.collectives[number].value)

    def _contribute(self, tensor: Tensor, op: Any) -> None:
        if self._waiting is None:
            self._waiting = Collective(op, tensor.clone())
            return
        first, total = self._waiting.operation, self._waiting.value
        mine, theirs = (op, tensor.dtype, tensor.shape), (first, total.dtype, total.shape)
        assert mine == theirs, f"ranks call different collectives: {theirs} and {mine}"
        _OPERATIONS[op](total, tensor, out=total)

    def _round(self, ranks: list[_Rank]) -> bool:
        """Every rank up to its next collective or its end; whether all have ended."""
        ended = [rank.proceed() for rank in ranks]
        assert all(ended) or not any(ended), f"{sum(ended)} of {len(ranks)} ranks ended, the others wait for them"
        if self._waiting is not None:
            self.collectives.append(self._waiting)
            self._waiting = None
        return all(ended)

    def _abort(self, ranks: list[_Rank]) -> None:
        for rank in ranks:
            rank.abort()

    @contextmanager
    def _communicating(self) -> Iterator[None]:
        with (
            mock.patch.object(dist, "all_reduce", self.all_reduce),
            mock.patch.object(dist, "get_rank", lambda group: group.rank),
            mock.patch.object(dist, "get_world_size", lambda group: group.size()),
            mock.patch.object(dist, "get_backend_config", return_value="cpu:gloo"),
        ):
            yield


class _Rank(threading.Thread):
    """One rank's code, which runs between :meth:`proceed` and :meth:`pause`."""

    def __init__(self, job: Callable[[SimulatedGroup], Any], group: SimulatedGroup) -> None:
        super().__init__(daemon=True)
        self._job, self._group = job, group
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._aborted = False
        self._ended = False
        self._error: BaseException | None = None
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            self._wait()
            with self._group.running():
                self.result = self._job(self._group)
        except BaseException as error:
            self._error = error
        self._ended = True
        self._back.release()

    def proceed(self) -> bool:
        """Let the rank run up to its next collective; whether it has ended."""
        if not self._ended:
            self._go.release()
            self._back.acquire()
        if self._error is not None:
            raise AssertionError(f"rank {self._group.rank} raised") from self._error
        return self._ended

    @staticmethod
    def pause() -> None:
        """Called by the rank: let the others run."""
        rank = threading.current_thread()
        assert isinstance(rank, _Rank)
        rank._back.release()
        rank._wait()

    def abort(self) -> None:
        self._aborted = True
        self._go.release()
        self.join()

    def _wait(self) -> None:
        self._go.acquire()
        if self._aborted:
            raise SystemExit
