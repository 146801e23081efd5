"""Real processes over gloo for tests: long-lived ranks that run one function after the other.

    def job(group, number):            # module level, first argument a fresh process group
        ...
        return something_picklable

    def test_it(two_ranks):
        first, second = two_ranks.run(job, 3)

Every job has a time limit: a hang or an abort fails the test and fresh ranks serve the next one. While
``Ranks.compare`` is set every job is recounted beside, and it is given the recounts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from support.beside import Course


class RankError(AssertionError):
    """A rank raised, died, or did not finish in time."""


class Ranks:
    """``world`` processes with a default gloo group and torchrun's environment variables."""

    compare: ClassVar[Callable[[list[list[Course]]], None] | None] = None

    def __init__(self, world: int) -> None:
        self.world = world
        self._processes: list[Any] = []
        self._pipes: list[Any] = []
        self._is_worn = False

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 150) -> list[Any]:
        """Call ``function(group, *args)`` on every rank and return the results in rank order."""
        return self.run_from(function.__code__.co_filename, function.__qualname__, *args, timeout=timeout)

    def survivors(self, function: Callable[..., Any], *args: Any, dying: int, timeout: float = 60) -> list[Any]:
        """The same where a rank dies: what the others return. The ranks are fresh afterwards."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function.__code__.co_filename, function.__qualname__, args, False))
        living = {rank: pipe for rank, pipe in enumerate(self._pipes) if rank != dying}
        try:
            for rank, pipe in living.items():
                if not pipe.poll(timeout):
                    raise RankError(f"rank {rank} did not outlive rank {dying}")
            return [self._receive(rank, pipe)[0] for rank, pipe in living.items()]
        finally:
            self.close()

    def run_from(self, path: str | Path, name: str, *args: Any, timeout: float = 150) -> list[Any]:
        """The same for a function in a file that this process must not import."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((str(path), name, args, self.compare is not None))
        results: dict[int, Any] = {}
        waiting = dict(enumerate(self._pipes))
        while waiting:
            ready = multiprocessing.connection.wait(list(waiting.values()), timeout)
            if not ready:
                self.close()
                raise RankError(f"ranks {sorted(waiting)} did not finish {name} within {timeout} s")
            for rank, pipe in list(waiting.items()):
                if pipe in ready:
                    results[rank] = self._receive(rank, pipe)
                    del waiting[rank]
        if self._is_worn:
            self.close()
        if self.compare is not None:
            self.compare([results[rank][1] for rank in range(self.world)])
        return [results[rank][0] for rank in range(self.world)]

    def _receive(self, rank: int, pipe: Any) -> tuple[Any, list[Course]]:
        try:
            failed, value, threads = pipe.recv()
            self._is_worn = self._is_worn or threads > _MOST_THREADS
        except EOFError:
            self.close()
            raise RankError(f"rank {rank} died") from None
        if failed:
            self.close()
            raise RankError(f"rank {rank} raised:\n{value}")
        return value

    def _start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        for rank in range(self.world):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, self.world, port), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(mine)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes, self._is_worn = [], [], False


def _serve(pipe: Any, rank: int, world: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    import datetime

    import torch
    import torch.distributed as dist
    from support.beside import RecountBeside

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    modules: dict[str, ModuleType] = {}
    with contextlib.suppress(EOFError):
        while True:
            path, name, args, is_recounted = pipe.recv()
            # Only now has every rank left the job before: one that is still connecting needs its peers' groups.
            destroy_groups(kept=[dist.group.WORLD])
            threads = _count_threads()
            try:
                function = getattr(_load(path, modules), name)
                with RecountBeside() if is_recounted else contextlib.nullcontext() as recounted:
                    value = function(dist.new_group(), *args)
                answer = False, (value, recounted.courses if recounted else [])
            except BaseException:
                answer = True, traceback.format_exc()
            pipe.send((*answer, threads))


_MOST_THREADS = 200
"""Each process group has three, which wake up a hundred times a second as long as anything refers to it."""


def _count_threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else 0


def list_groups() -> list[Any]:
    """The process groups that there are."""
    import torch.distributed as dist

    return list(dist.distributed_c10d._world.pg_map)


def destroy_groups(kept: Collection[Any]) -> None:
    """Destroy all others: those of a job, or of a layout, that is over."""
    import torch.distributed as dist

    for group in list_groups():
        if not any(group is one for one in kept):
            dist.destroy_process_group(group)


def _load(path: str, modules: dict[str, ModuleType]) -> ModuleType:
    if path not in modules:
        spec = importlib.util.spec_from_file_location(f"ranks_{Path(path).stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        modules[path] = module
    return modules[path]
