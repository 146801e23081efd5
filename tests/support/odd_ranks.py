"""Trainings on two ranks of which one leaves something out that the host does not need from it.

Each is run without us and with us, and returns the trained parameters. The model is tiny: what matters is who waits
for whom.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join

STEPS = 6


class Loop:
    """A loop over a host, in whose places a case does something else on one rank.

    Attributes:
        rank: of this process.
        others: a batch, different on each rank.
    """

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.others = torch.full((2, 4), 1.0 + self.rank)

    def train(self, steps: int = STEPS, *, refuses: Callable[[int], bool] = lambda step: False) -> None:
        for step in range(steps):
            self.backward(self.model(self.others).sum())
            if not (self.rank == 1 and refuses(step)):
                self.optimizer.step()
            self.optimizer.zero_grad()
            self.log(step)

    def log(self, step: int) -> None: ...

    def parameters(self) -> list[float]:
        return [float(value) for value in torch.cat([p.detach().flatten() for p in self.model.parameters()])]

    model: nn.Module
    optimizer: Any
    backward: Callable[[torch.Tensor], None]
    end: Callable[[], None]
    no_sync: Callable[[], contextlib.AbstractContextManager[Any]]


class Accelerated(Loop):
    def __init__(self, folder: str, measure: bool, every: int) -> None:
        from support.tiny_accelerate import Rows, make_accelerator

        from areal_callbacks.integrations.accelerate import enable

        super().__init__()
        self.tracker = Rows()
        self.host = make_accelerator(folder, log_with=[self.tracker])
        self.ours = enable(self.host, every=every, report=False) if measure else None
        plain = _model()
        self.model, self.optimizer = self.host.prepare(plain, torch.optim.SGD(plain.parameters(), 0.1))
        self.backward, self.end = self.host.backward, self.host.end_training
        self.no_sync = lambda: self.host.no_sync(self.model)

    def log(self, step: int) -> None:
        if self.rank == 0 and step % 2:
            self.host.log({"loss": 0.0}, step=step)


class Fabricated(Loop):
    def __init__(self, folder: str, measure: bool, every: int) -> None:
        from lightning.fabric import Fabric

        from areal_callbacks.integrations.lightning import AReaLFabricCallback

        super().__init__()
        self.ours = AReaLFabricCallback(output_dir=folder, report=False, every=every)
        self.host = Fabric(accelerator="cpu", devices=2, strategy="ddp", callbacks=[self.ours] if measure else [])
        self.host.launch()
        plain = _model()
        self.model, self.optimizer = self.host.setup(plain, torch.optim.SGD(plain.parameters(), 0.1))
        self.backward, self.end = self.host.backward, self.ours.close
        self.no_sync = lambda: self.host.no_backward_sync(self.model)

    def log(self, step: int) -> None:
        if self.rank == 1 and step % 3 == 1:
            self.host.log("loss", 0.0, step)


class Plain(Loop):
    def __init__(self, folder: str, measure: bool, every: int) -> None:
        from areal_callbacks.integrations.fsdp import track

        super().__init__()
        self.model = nn.parallel.DistributedDataParallel(_model())
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.ours = track(self.model, self.optimizer, output_dir=folder, report=False) if measure else None
        self.backward = lambda loss: loss.backward()
        self.no_sync = self.model.no_sync
        self.every = every

    def log(self, step: int) -> None:
        if self.ours is not None and step % self.every == 0:
            self.ours.export(step)

    def end(self) -> None:
        if self.ours is not None:
            self.ours.__exit__(None, None, None)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


HOSTS: dict[str, Callable[[str, bool, int], Any]] = {
    "Accelerate": Accelerated,
    "Fabric": Fabricated,
    "plain loops": Plain,
}


# -- what one rank leaves out, or does alone


def refused_step(loop: Any) -> None:
    loop.train(refuses=lambda step: step in (1, 2))
    loop.end()


def every_step_refused(loop: Any) -> None:
    loop.train(refuses=lambda step: True)
    loop.end()


def evaluation(loop: Any) -> None:
    loop.train(3)
    if loop.rank == 0:
        inner = getattr(loop.model, "module", loop.model)
        inner.eval()
        with torch.no_grad():
            inner(torch.ones(3, 4))
        inner.train()
    loop.train(3)
    loop.end()


def something_of_its_own(loop: Any) -> None:
    """One rank trains a probe that nobody else has."""
    probe = nn.Linear(4, 1)
    for _ in range(3):
        loop.train(1)
        if loop.rank == 1:
            loop.backward(probe(torch.ones(2, 4)).sum())
    loop.end()


def more_micro_batches(loop: Any) -> None:
    for _ in range(3):
        with loop.no_sync():
            for _ in range(1 + loop.rank):
                loop.backward(loop.model(loop.others).sum())
        loop.train(1)
    loop.end()


def uneven_join(loop: Any) -> None:
    """``Join`` of torch itself."""
    wrapped = next(module for module in loop.model.modules() if isinstance(module, nn.parallel.DistributedDataParallel))
    original, loop.log = loop.log, lambda step: None
    with Join([wrapped]):
        loop.train(2 + 2 * loop.rank)
    wrapped._join_config = wrapped._join_config._replace(enable=False)  # torch leaves it on
    loop.log = original
    loop.end()


def end_on_one_rank(loop: Any) -> None:
    loop.train()
    if loop.rank == 0:
        loop.end()


def end_by_exception(loop: Any) -> None:
    loop.train()
    with contextlib.suppress(RuntimeError):
        if loop.rank == 1:
            raise RuntimeError("planted")
        loop.end()


def saved_alone(loop: Any) -> None:
    loop.train(3)
    if loop.rank == 0:
        loop.host.save_state(os.environ["ODD_FOLDER"])
    loop.train(3)
    loop.end()


def freed_alone(loop: Any) -> None:
    loop.train()
    if loop.rank == 1:
        loop.host.free_memory()
    loop.end()


def closed_alone(loop: Any) -> None:
    loop.train(3)
    if loop.rank == 1 and loop.ours is not None:
        loop.ours.close()
    loop.train(3)
    loop.end()


def recorded_alone(loop: Any) -> None:
    """New keys at every step, on one rank, some of which cannot be read."""
    from areal_callbacks import stats_tracker

    for step in range(3):
        if loop.rank == 1:
            stats_tracker.scalar(**{f"only/{step}": 1.0, "bad": torch.ones((), device="meta")})
        loop.train(1)
    loop.end()


@contextlib.contextmanager
def _lasting_group() -> Iterator[None]:
    """``end_training`` destroys the process group, which the next case needs; nobody waits long for a rank."""
    from areal_callbacks.core import rendezvous

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "destroy_process_group", lambda *_: None)
        patch.setattr(rendezvous, "TIMEOUT", 0.3)
        yield


def run(_group: Any, host: str, case: str, folder: str, measure: bool, every: int = 2) -> list[float]:
    """The parameters after a case."""
    os.environ["ODD_FOLDER"] = f"{folder}/state"
    with _lasting_group():
        loop = HOSTS[host](folder, measure, every)
        globals()[case](loop)
        found: list[float] = loop.parameters()
        ours = getattr(loop, "ours", None)
        if ours is not None:
            ours.close()
    return found


def die(_group: Any, host: str, folder: str) -> list[float]:
    """The second rank is gone before the end, without a word."""
    with _lasting_group():
        loop = HOSTS[host](folder, True, 2)
        loop.train()
        if loop.rank == 1:
            os._exit(1)
        loop.end()
    found: list[float] = loop.parameters()
    return found
