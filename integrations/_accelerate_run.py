"""One measurement of what an accelerator has prepared."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from areal_callbacks.config import MetricsConfig
from areal_callbacks.integrations._accelerate_host import (
    AcceleratedOptimizer,
    Accelerator,
    guests_of,
    size_of,
    steps_are_hidden,
    topology_of,
)
from areal_callbacks.integrations._batch_moves import include_batch_moves
from areal_callbacks.safety.door import attempt
from areal_callbacks.safety.later import end_later
from areal_callbacks.safety.patches import Patches
from areal_callbacks.session import MetricsSession, open_sessions
from areal_callbacks.session.gradient_sync import GradientSync
from areal_callbacks.session.spans import include_calls
from areal_callbacks.session.step_exports import StepExports


class AcceleratorRun:
    """Measures models and optimizers from ``prepare`` to ``free_memory`` or ``end_training``.

    Training time begins with a training forward and ends with the optimizer step, or with backward where no step
    follows; moving a batch and zeroing gradients are added.

    Args:
        accelerator: has prepared them, and is not kept.
        config: what to measure.
        steps: those of earlier runs of this accelerator.

    Attributes:
        session: what measures.
    """

    def __init__(self, accelerator: Accelerator, config: MetricsConfig, steps: int) -> None:
        self._reference = weakref.ref(accelerator)
        self._gives_step = True
        self._patches = Patches("accelerate")
        config = config.for_split_sequences(size_of(accelerator, "sp"))
        find_guests = functools.partial(guests_of, accelerator, config, self._row_has_step)
        self.session = MetricsSession(
            config,
            output_dir=attempt("accelerate:folder", "the accelerator has no readable folder", _folder_of, accelerator),
            guests=attempt("accelerate:guests", "no tables of expert loads in the trackers", find_guests) or (),
        )
        self._exports = StepExports(self.session, steps, files_only=not accelerator.log_with)
        self._sync = GradientSync(self._exports)
        include_batch_moves(self._patches, self.session.included, self._moves_for_training)

    @property
    def _accelerator(self) -> Any:
        return self._reference()

    @property
    def steps(self) -> int:
        """Steps so far, those of earlier runs among them."""
        return self._exports.progress

    def observe(self, item: nn.Module | AcceleratedOptimizer) -> None:
        """A model or optimizer was prepared."""
        accelerator = self._accelerator
        if isinstance(item, nn.Module):
            topology = topology_of(accelerator)
            self.session.attach(item, topology=topology, device=accelerator.device, begin_with_forward=True)
            self._sync.add(item)
        elif not steps_are_hidden(accelerator):
            self.session.observe_optimizer(item)
            if item.scaler is not None:
                self.session.expect_optimizer(may_skip=True)
            self._patches.wrap(item, "step", functools.partial(self._around_step, item))
            include_calls(self._patches, item, "zero_grad", self.session.included)

    def keep(self) -> None:
        """Bring the totals up to date where that takes no other rank."""
        self._exports.keep()

    def close(self) -> None:
        """Undo everything without meeting the other ranks; what was not logged goes to the files."""
        self._take_off()
        self._exports.close()

    def abandon(self) -> None:
        """The accelerator is freed: undo everything now, and write what was not logged later."""
        self._take_off()
        self.session.stop()
        end_later(self._exports.close)

    def _take_off(self) -> None:
        self._patches.undo()
        self._sync.detach()

    # -- a step

    def _moves_for_training(self, _: object) -> bool:
        return torch.is_grad_enabled() and any(model.training for model in self._accelerator._models)

    def backward_ended(self) -> None:
        """Gradients are there; without DeepSpeed the optimizer may step next."""
        self.session.may_end()
        if self._accelerator.sync_gradients:
            self._sync.backward_ended()
            if steps_are_hidden(self._accelerator):
                self._exports.boundary()

    def _around_step(self, optimizer: AcceleratedOptimizer, /, *args: Any, **kwargs: Any) -> Generator[None]:
        yield
        if self._accelerator.sync_gradients:
            if optimizer.step_was_skipped:
                self.session.optimizer_skipped()
            self._exports.boundary()

    # -- rows

    def row(self, step: int | None, values: Mapping[str, Any]) -> dict[str, float]:
        """What joins the accelerator's next row."""
        self._gives_step = step is not None
        return self._exports.metrics(step, values)

    def finish(self) -> tuple[int | None, dict[str, float]]:
        """Step and metrics of a row for the tail, if every rank ends its training."""
        self._exports.finish()
        step = self._exports.tail_step
        return step, self.row(step, {})

    def _row_has_step(self) -> bool:
        return self._gives_step


def _folder_of(accelerator: Accelerator) -> Path | None:
    """Beside the trackers' files."""
    parent = accelerator.logging_dir or accelerator.project_dir
    files = None if parent is None else open_sessions.local_folder(parent)
    return None if files is None else open_sessions.choose_beside(files)
