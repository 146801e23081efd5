"""One call for training loops that are written with Accelerate."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.integrations._accelerate_host import (
    TOTALS_FILE,
    AcceleratedOptimizer,
    Accelerator,
    is_opaque,
    may_train,
    size_of,
)
from areal_callbacks.integrations._accelerate_run import AcceleratorRun
from areal_callbacks.monitors.throughput.lengths import sequence_lengths
from areal_callbacks.safety.door import Call, Observer, guarded, guarded_entry
from areal_callbacks.safety.hooks import Hook
from areal_callbacks.safety.patches import Patches
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.session import MetricsSession
from areal_callbacks.session.saved_totals import SavedTotals

_ATTRIBUTE = "_areal_callbacks"


def enable(
    accelerator: Accelerator,
    *,
    config: MetricsConfig | Mapping[str, Any] | str | None = None,
    **options: Unpack[MetricsOptions],
) -> AcceleratorMetrics:
    """Measure whatever this accelerator prepares, and add it to the rows of ``accelerator.log``.

    ::

        accelerator = Accelerator(log_with="tensorboard", project_dir="out")
        enable(accelerator, every=10)

    Args:
        accelerator: before or after ``prepare``; before it where ``prepare`` compiles the model.
        config: a :class:`MetricsConfig`, a mapping of its keys or the path of a YAML file.
        **options: configuration keys.

    Returns:
        The running metrics; the same object if this accelerator was enabled before. A configuration that is given then
        takes the place of the earlier one, unless something was prepared for training meanwhile.

    Raises:
        ValueError: an unknown key or a bad value, with the choices.
    """
    running: AcceleratorMetrics | None = vars(accelerator).get(_ATTRIBUTE)
    if running is None:
        running = AcceleratorMetrics(accelerator, MetricsConfig.make(config, **options))
        setattr(accelerator, _ATTRIBUTE, running)
        running.start()
    elif config is not None or options:
        running.configure(MetricsConfig.make(config, **options))
    return running


class AcceleratorMetrics(Observer):
    """Measures one accelerator until ``accelerator.end_training()`` or :meth:`close`; a context manager as well.

    The ranks meet at every ``every``-th backward that synchronises gradients, and one process reduces at every
    ``every``-th optimizer step; what was reduced joins the next ``accelerator.log``, on
    whatever ranks and however rarely that is called. ``save_state`` keeps the totals beside the other states. After
    ``free_memory`` a new training begins. The accelerator is not kept: when it is freed, everything is undone.

    Args:
        accelerator: whose ``prepare``, ``backward``, ``log`` and ``end_training`` are wrapped.
        config: of the next session.

    Attributes:
        config: as given, or as :meth:`configure` set it.
    """

    family = "accelerate"

    def __init__(self, accelerator: Accelerator, config: MetricsConfig) -> None:
        self.config = config
        self._reference: weakref.ref[Accelerator] | None = weakref.ref(accelerator, lambda _: self._abandon())
        self._run: AcceleratorRun | None = None
        self._steps_before = 0
        self._waiting: list[Any] = []
        self._seen: list[Any] = []
        self._totals: dict[str, Any] | None = None
        self._patches = Patches(self.family)
        self._state_hooks: list[Any] = []

    @guarded
    def start(self) -> None:
        """Wrap the accelerator's methods, and observe what it has prepared already."""
        accelerator = self._accelerator
        self._state_hooks = [
            accelerator.register_save_state_pre_hook(Hook(self, self._save_totals)),
            accelerator.register_load_state_pre_hook(Hook(self, self._load_totals)),
        ]
        for name, around in self._arounds().items():
            self._patches.wrap(accelerator, name, around)
        self._adopt([*accelerator._models, *accelerator._optimizers])

    @property
    def _accelerator(self) -> Any:
        """None after the end."""
        return None if self._reference is None else self._reference()

    @property
    def session(self) -> MetricsSession | None:
        """What measures; None until an optimizer was prepared, and after the end."""
        return None if self._run is None else self._run.session

    @guarded_entry
    def configure(self, config: MetricsConfig) -> None:
        """Take another configuration, as long as nothing is measured."""
        if self._run is None:
            self.config = config
        elif config != self.config:
            report_once("accelerate:configured", "this accelerator is measured already: its configuration stays")

    @guarded_entry
    def close(self) -> None:
        """Undo every wrap and hook without meeting the other ranks; a ``with`` block that ends well logs the tail."""
        if self._reference is None:
            return
        accelerator, self._reference = self._reference(), None
        self._take_off()
        self._release()
        if accelerator is not None:
            vars(accelerator).pop(_ATTRIBUTE, None)

    def _take_off(self) -> None:
        self._patches.undo()
        for hook in self._state_hooks:
            hook.remove()
        self._state_hooks.clear()

    @guarded_entry
    def _abandon(self) -> None:
        """The accelerator is being freed."""
        self._reference = None
        self._take_off()
        self._release(AcceleratorRun.abandon)

    detach = close

    def __enter__(self) -> AcceleratorMetrics:
        return self

    @guarded_entry
    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.finish()
        self.close()

    @guarded
    def finish(self) -> None:
        """Log the tail, if every rank comes here, and undo everything."""
        if self._run is None and any(isinstance(item, nn.Module) for item in self._waiting):
            report_once("accelerate:optimizer", "no optimizer was prepared: nothing was measured")
        self._log_tail()
        self.close()

    @guarded
    def _log_tail(self) -> None:
        step, metrics = (None, {}) if self._run is None else self._run.finish()
        self._release()
        if metrics:
            self._accelerator.log(metrics, step=step)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of the accelerator is not measured."""
        return type(None), ()

    def _release(self, end: Callable[[AcceleratorRun], None] = AcceleratorRun.close) -> None:
        """End the run and drop every reference to what was prepared."""
        if self._run is not None:
            run, self._run = self._run, None
            self._steps_before = run.steps
            end(run)
        self._seen.clear()
        self._waiting.clear()

    # -- what is prepared

    def _arounds(self) -> dict[str, Callable[..., Any]]:
        arounds: dict[str, Callable[..., Any]] = {
            "prepare": self._around_prepare,
            "prepare_model": self._around_prepare,
            "prepare_optimizer": self._around_prepare,
            "backward": self._around_backward,
            "log": self._around_log,
            "free_memory": self._around_free_memory,
            "end_training": self._around_end,
        }
        if size_of(self._accelerator, "cp") > 1:
            arounds["maybe_context_parallel"] = self._around_context_parallel
        return arounds

    def _around_prepare(self, *args: Any, **kwargs: Any) -> Generator[None, Any]:
        prepared = yield
        self._adopt(prepared if isinstance(prepared, tuple | list) else [prepared])

    def _adopt(self, prepared: Iterable[Any]) -> None:
        """Observe models and optimizers; a model that no optimizer belongs to is not trained."""
        if is_opaque(self._accelerator):
            return
        new = [item for item in prepared if may_train(item) and all(item is not seen for seen in self._seen)]
        self._seen += new
        self._waiting += new
        kinds = (nn.Module, AcceleratedOptimizer)
        if all(any(isinstance(item, kind) for item in self._seen) for kind in kinds):
            self._open()
            self._restore()

    def _open(self) -> None:
        if self._run is None:
            self._run = AcceleratorRun(self._accelerator, self.config, self._steps_before)
        while self._waiting:
            self._run.observe(self._waiting.pop(0))

    def _around_free_memory(self, *args: Any, **kwargs: Any) -> Generator[None]:
        """A training is over, and the next may begin."""
        try:
            self._log_tail()
        finally:
            try:
                self._release()
            finally:
                yield

    # -- a step

    def _around_backward(self, *args: Any, **kwargs: Any) -> Generator[None]:
        yield
        if self._run is not None:
            self._run.backward_ended()

    def _around_context_parallel(
        self, buffers: list[torch.Tensor] | None = None, *args: Any, **kwargs: Any
    ) -> Generator[None]:
        """The buffers hold the batch before it is sharded in place."""
        training = torch.is_grad_enabled() and any(model.training for model in self._accelerator._models)
        lengths = sequence_lengths(buffers or (), {}) if training else None
        if lengths is not None and self.session is not None:
            self.session.count_sequences(lengths)
        yield

    # -- rows

    def _around_log(self, values: Any, step: Any = None, *args: Any, **kwargs: Any) -> Generator[Call]:
        if self._run is not None and isinstance(values, Mapping):
            yield Call(({**self._run.row(step, values), **values}, step, *args), kwargs)

    def _around_end(self, *args: Any, **kwargs: Any) -> Generator[None]:
        """The tail gets a row of its own; whatever happens to that, the accelerator ends."""
        try:
            self.finish()
        finally:
            try:
                self.close()
            finally:
                yield

    # -- checkpoints

    def _save_totals(self, models: list[nn.Module], weights: list[Any], output_dir: str) -> None:
        """Without an export: other ranks may not save."""
        if self._run is not None:
            self._run.session.forget_wait()
        if self._run is not None and self._accelerator.is_main_process:
            self._run.keep()
            SavedTotals(Path(output_dir, TOTALS_FILE)).write(self._run.session.state_dict())

    def _load_totals(self, models: list[nn.Module], input_dir: str) -> None:
        if self.config.resume_totals:
            self._totals = SavedTotals(Path(input_dir, TOTALS_FILE)).read()
            self._restore()

    def _restore(self) -> None:
        if self._totals is not None and self.session is not None:
            totals, self._totals = self._totals, None
            self.session.load_state_dict(totals)
