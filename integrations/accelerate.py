"""One call for training loops that are written with Accelerate."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.integrations._accelerate_host import (
    AcceleratedOptimizer,
    Accelerator,
    free_folder,
    give_back_folder,
    guests_of,
    is_opaque,
    may_train,
    measurable,
    read_totals,
    size_of,
    steps_are_hidden,
    topology_of,
    write_totals,
)
from areal_callbacks.monitors.throughput.lengths import sequence_lengths
from areal_callbacks.safety.patches import Patches
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.session import MetricsSession
from areal_callbacks.session.step_exports import StepExports

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
    elif config is not None or options:
        running.configure(MetricsConfig.make(config, **options))
    return running


class AcceleratorMetrics:
    """Rides on one accelerator until ``accelerator.end_training()`` or :meth:`close`; a context manager as well.

    Training time begins with a training forward and ends with the optimizer step, or with backward where no step
    follows. The ranks meet at every ``every``-th optimizer step; what they reduced joins the next ``accelerator.log``,
    on whatever ranks and however rarely that is called. ``save_state`` keeps the totals beside the other states. After
    ``free_memory`` a new training begins.

    Args:
        accelerator: whose ``prepare``, ``backward``, ``log`` and ``end_training`` are listened to.
        config: of the session.

    Attributes:
        config: what the next session is made with.
        session: what measures; None until an optimizer was prepared, and after the end.
    """

    def __init__(self, accelerator: Accelerator, config: MetricsConfig) -> None:
        self.config = config
        self.session: MetricsSession | None = None
        self._accelerator = accelerator
        self._exports: StepExports | None = None
        self._steps_before = 0
        self._waiting: list[Any] = []
        self._seen: list[Any] = []
        self._folder: Path | None = None
        self._gives_step = True
        self._totals: dict[str, Any] | None = None
        self._patches = Patches()
        self._step_patches = Patches()
        self._state_hooks = [
            accelerator.register_save_state_pre_hook(self._save_totals),
            accelerator.register_load_state_pre_hook(self._load_totals),
        ]
        self._wrap()
        self._adopt([*accelerator._models, *accelerator._optimizers])

    def configure(self, config: MetricsConfig) -> None:
        """Take another configuration, as long as nothing is measured."""
        if self.session is None:
            self.config = config
        elif config != self.config:
            report_once("accelerate:configured", "this accelerator is measured already: its configuration stays")

    def close(self) -> None:
        """Undo every wrap and hook without meeting the other ranks."""
        self._patches.undo()
        for hook in self._state_hooks:
            hook.remove()
        self._state_hooks.clear()
        self._release()
        vars(self._accelerator).pop(_ATTRIBUTE, None)

    def __enter__(self) -> AcceleratorMetrics:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _release(self) -> None:
        """Hold on to nothing that was prepared. What nobody has logged goes to the files."""
        self._step_patches.undo()
        if self._exports is not None:
            self._steps_before = self._exports.steps
            self._exports.flush()
        if self.session is not None:
            self.session.close()
        self.session = self._exports = None
        self._seen.clear()
        self._waiting.clear()
        give_back_folder(self._folder)

    # -- what is prepared

    def _wrap(self) -> None:
        around: dict[str, Callable[..., Any]] = {
            "prepare": self._around_prepare,
            "prepare_model": self._around_prepare,
            "prepare_optimizer": self._around_prepare,
            "backward": self._around_backward,
            "log": self._around_log,
            "join_uneven_inputs": self._around_uneven_inputs,
            "free_memory": self._around_free_memory,
            "end_training": self._around_end,
        }
        if size_of(self._accelerator, "cp") > 1:
            around["maybe_context_parallel"] = self._around_context_parallel
        for name, replacement in around.items():
            self._patches.wrap(self._accelerator, name, replacement)

    def _around_prepare(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        prepared = original(*args, **kwargs)
        self._adopt(prepared if isinstance(prepared, tuple | list) else [prepared])
        return prepared

    def _adopt(self, prepared: Iterable[Any]) -> None:
        """Observe models and optimizers; a model that no optimizer belongs to is not trained."""
        if is_opaque(self._accelerator):
            return
        new = [item for item in prepared if may_train(item) and all(item is not seen for seen in self._seen)]
        self._seen += new
        self._waiting += new
        has_model, has_optimizer = (
            any(isinstance(item, kind) for item in self._seen) for kind in (nn.Module, AcceleratedOptimizer)
        )
        if has_model and has_optimizer:
            self._open()
            self._restore()

    def _open(self) -> None:
        accelerator = self._accelerator
        if self.session is None:
            config = measurable(self.config, accelerator)
            guests = guests_of(accelerator, config, lambda: self._gives_step)
            self._folder = free_folder(accelerator)
            self.session = MetricsSession(config, output_dir=self._folder, guests=guests)
            self._exports = StepExports(self.session, files_only=not accelerator.log_with)
            self._exports.steps = self._steps_before
        topology = topology_of(accelerator)
        while self._waiting:
            item = self._waiting.pop(0)
            if isinstance(item, nn.Module):
                self.session.attach(item, topology=topology, device=accelerator.device, begin_with_forward=True)
            elif not steps_are_hidden(accelerator):
                self._observe(self.session, item)

    def _observe(self, session: MetricsSession, optimizer: AcceleratedOptimizer) -> None:
        session.observe_optimizer(optimizer)
        if optimizer.scaler is not None:
            session.expect_optimizer(may_skip=True)
        self._step_patches.wrap(optimizer, "step", functools.partial(self._around_step, optimizer))

    def _around_free_memory(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._release()
        return original(*args, **kwargs)

    # -- a step

    def _around_backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self.session is None or self._exports is None:
            return result
        if self._accelerator.sync_gradients and steps_are_hidden(self._accelerator):
            self._exports.boundary()
        else:
            self.session.may_end()
        return result

    def _around_step(
        self, optimizer: AcceleratedOptimizer, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        result = original(*args, **kwargs)
        if self.session is not None and self._exports is not None and self._accelerator.sync_gradients:
            if optimizer.step_was_skipped:
                self.session.optimizer_skipped()
            self._exports.boundary()
        return result

    @contextlib.contextmanager
    def _around_uneven_inputs(
        self, original: Callable[..., Any], joinables: Any, even_batches: bool | None = None
    ) -> Iterator[Any]:
        """A rank that has run out of batches answers the gradients' collectives of the others, but not ours."""
        accelerator = self._accelerator
        is_even = accelerator.even_batches if even_batches is None else even_batches
        uneven = accelerator.multi_device and not is_even
        meeting = self._exports.uneven() if self._exports is not None and uneven else contextlib.nullcontext()
        with meeting, original(joinables, even_batches=even_batches) as value:
            yield value

    @contextlib.contextmanager
    def _around_context_parallel(
        self, original: Callable[..., Any], buffers: list[torch.Tensor] | None = None, *args: Any, **kwargs: Any
    ) -> Iterator[None]:
        """The buffers hold the batch before it is sharded in place."""
        training = torch.is_grad_enabled() and any(model.training for model in self._accelerator._models)
        lengths = sequence_lengths(buffers or (), {}) if training else None
        if lengths is not None and self.session is not None:
            self.session.count_sequences(lengths)
        with original(buffers, *args, **kwargs):
            yield

    # -- rows

    def _around_log(self, original: Callable[..., Any], values: Any, step: Any = None, *args: Any, **kw: Any) -> Any:
        return original({**self._row(step, values), **values}, step, *args, **kw)

    def _row(self, step: int | None, values: Mapping[str, Any]) -> dict[str, float]:
        if self._exports is None:
            return {}
        self._gives_step = step is not None
        return self._exports.metrics(step, values)

    def _around_end(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The tail gets a row of its own."""
        step, metrics = None, dict[str, float]()
        if self._exports is not None:
            self._exports.finish()
            step = self._exports.tail_step
            metrics = self._row(step, {})
        elif any(isinstance(item, nn.Module) for item in self._waiting):
            report_once("accelerate:optimizer", "no optimizer was prepared: nothing was measured")
        self.close()
        if metrics:
            self._accelerator.log(metrics, step=step)
        return original(*args, **kwargs)

    # -- checkpoints

    def _save_totals(self, models: list[nn.Module], weights: list[Any], output_dir: str) -> None:
        """Without an export: nobody knows whether the other ranks save too."""
        if self.session is not None and self._accelerator.is_main_process:
            write_totals(output_dir, self.session.state_dict())

    def _load_totals(self, models: list[nn.Module], input_dir: str) -> None:
        if self.config.resume_totals:
            self._totals = read_totals(input_dir)
            self._restore()

    def _restore(self) -> None:
        if self._totals is not None and self.session is not None:
            totals, self._totals = self._totals, None
            try:
                self.session.load_state_dict(totals)
            except (AttributeError, KeyError, TypeError) as error:
                report_once("accelerate:load", f"the totals in the checkpoint are damaged: {error!r}")
