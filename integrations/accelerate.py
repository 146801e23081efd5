"""One call for training loops that are written with Accelerate."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.core.reporting import report_once
from areal_callbacks.monitors.sequence_lengths import sequence_lengths
from areal_callbacks.patches import Patches
from areal_callbacks.session import MetricsSession
from areal_callbacks.step_exports import StepExports
from areal_callbacks.topology import Topology
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.guests import swanlab_guest, tensorboard_guest, trackio_guest, wandb_guest

try:
    from accelerate import Accelerator
    from accelerate.utils import DistributedType
except ImportError as error:
    raise ImportError("this integration needs accelerate: pip install 'areal-callbacks[accelerate]'") from error

TOTALS_FILE = "areal_callbacks.json"
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
        accelerator: before or after ``prepare``.
        config: a :class:`MetricsConfig`, a mapping of its keys or the path of a YAML file.
        **options: configuration keys.

    Returns:
        The running metrics; the same object if this accelerator was enabled before.

    Raises:
        ValueError: an unknown key or a bad value, with the choices.
    """
    running: AcceleratorMetrics | None = vars(accelerator).get(_ATTRIBUTE)
    if running is None:
        running = AcceleratorMetrics(accelerator, MetricsConfig.make(config, **options))
        setattr(accelerator, _ATTRIBUTE, running)
    return running


class AcceleratorMetrics:
    """Rides on one accelerator until ``accelerator.end_training()`` or :meth:`close`.

    Training time begins with a training forward and ends with the optimizer step, or with backward where no step follows.
    The ranks meet at every ``every``-th optimizer step; what they reduced joins the next ``accelerator.log``, on whatever
    ranks and however rarely that is called. ``save_state`` keeps the totals beside the other states.

    Args:
        accelerator: whose ``prepare``, ``backward``, ``log`` and ``end_training`` are listened to.
        config: of the session.
    """

    def __init__(self, accelerator: Accelerator, config: MetricsConfig) -> None:
        folder = Path(accelerator.logging_dir or accelerator.project_dir or ".", "areal_metrics")
        self.session = MetricsSession(config, output_dir=folder, guests=_guests(accelerator, config))
        self._exports = StepExports(self.session)
        self._accelerator = accelerator
        self._topology = _topology(accelerator)
        self._seen: list[Any] = []
        self._last_logged: int | None = None
        self._totals: dict[str, Any] | None = None
        self._patches = Patches()
        self._state_hooks = [
            accelerator.register_save_state_pre_hook(self._save_totals),
            accelerator.register_load_state_pre_hook(self._load_totals),
        ]
        self._wrap()
        self._adopt()

    def close(self) -> None:
        """Undo every wrap and hook without meeting the other ranks."""
        self._patches.undo()
        for hook in self._state_hooks:
            hook.remove()
        self._state_hooks.clear()
        self.session.close()
        vars(self._accelerator).pop(_ATTRIBUTE, None)

    # -- what the accelerator does

    def _wrap(self) -> None:
        for name in ("prepare", "prepare_model", "prepare_optimizer"):
            self._patches.wrap(self._accelerator, name, self._around_prepare)
        self._patches.wrap(self._accelerator, "backward", self._around_backward)
        self._patches.wrap(self._accelerator, "log", self._around_log)
        self._patches.wrap(self._accelerator, "end_training", self._around_end)
        if getattr(self._accelerator.parallelism_config, "cp_enabled", False):
            self._patches.wrap(self._accelerator, "maybe_context_parallel", self._around_context_parallel)

    def _around_prepare(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        prepared = original(*args, **kwargs)
        self._adopt()
        return prepared

    def _adopt(self) -> None:
        """Observe the models and optimizers that the accelerator has come to know."""
        for model in self._new(self._accelerator._models):
            self.session.attach(
                model, topology=self._topology, device=self._accelerator.device, begin_with_forward=True
            )
            self._restore()
        for optimizer in self._new(self._accelerator._optimizers):
            if self._accelerator.distributed_type == DistributedType.DEEPSPEED:
                report_once(
                    "accelerate:deepspeed",
                    "DeepSpeed steps inside backward: optimizer steps are not timed or counted",
                )
                continue
            self.session.observe_optimizer(optimizer)
            self._patches.wrap(optimizer, "step", self._around_step)

    def _new(self, known: list[Any]) -> list[Any]:
        new = [item for item in known if all(item is not seen for seen in self._seen)]
        self._seen += new
        return new

    def _around_backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not self._accelerator.sync_gradients:
            self.session.end()
        elif self._accelerator.distributed_type == DistributedType.DEEPSPEED:
            self._exports.boundary()
        return result

    def _around_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self._accelerator.sync_gradients:
            if self._accelerator.optimizer_step_was_skipped:
                self.session.optimizer_skipped()
            self._exports.boundary()
        return result

    def _around_log(
        self, original: Callable[..., Any], values: dict[str, Any], step: int | None = None, **kwargs: Any
    ) -> Any:
        self._last_logged = step
        host = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
        return original({**values, **self._exports.metrics(step, host)}, step=step, **kwargs)

    def _around_end(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The tail gets a row of its own, unless no tracker takes one."""
        self._exports.reduce()
        step = self._exports.steps if self._last_logged is None else self._last_logged
        metrics = self._exports.metrics(step)
        self.close()
        if metrics and self._accelerator.trackers:
            self._accelerator.log(metrics, step=step)
        return original(*args, **kwargs)

    @contextlib.contextmanager
    def _around_context_parallel(
        self, original: Callable[..., Any], buffers: list[torch.Tensor] | None = None, *args: Any, **kwargs: Any
    ) -> Iterator[None]:
        """The buffers hold the batch before it is sharded in place."""
        training = torch.is_grad_enabled() and any(model.training for model in self._accelerator._models)
        lengths = sequence_lengths(buffers or (), {}) if training else None
        if lengths is not None:
            self.session.count_sequences(lengths)
        with original(buffers, *args, **kwargs):
            yield

    # -- checkpoints

    def _save_totals(self, models: list[nn.Module], weights: list[Any], output_dir: str) -> None:
        if self._accelerator.is_main_process:
            Path(output_dir, TOTALS_FILE).write_text(json.dumps(self.session.state_dict()))

    def _load_totals(self, models: list[nn.Module], input_dir: str) -> None:
        path = Path(input_dir, TOTALS_FILE)
        if self.session.config.resume_totals and path.exists():
            self._totals = json.loads(path.read_text())
            self._restore()

    def _restore(self) -> None:
        if self._totals is not None and self.session.is_attached:
            self.session.load_state_dict(self._totals)
            self._totals = None


def _topology(accelerator: Accelerator) -> Topology:
    mesh = accelerator.torch_device_mesh
    return Topology.data_parallel() if mesh is None else Topology.from_mesh(mesh)


def _guests(accelerator: Accelerator, config: MetricsConfig) -> list[MetricWriter]:
    """What ``accelerator.log`` cannot carry, into its trackers, which are opened later and on the main process."""

    def tracker(name: str) -> Any:
        return next((tracker.tracker for tracker in accelerator.trackers if tracker.name == name), None)

    names = {str(getattr(kind, "value", getattr(kind, "name", kind))) for kind in accelerator.log_with}
    balance = config.moe_balance
    guests = {
        "wandb": lambda: wandb_guest(balance, lambda: tracker("wandb"), step_key=None),
        "tensorboard": lambda: tensorboard_guest(balance, lambda: tracker("tensorboard")),
        "swanlab": lambda: swanlab_guest(balance, lambda: tracker("swanlab")),
        "trackio": lambda: trackio_guest(balance, lambda: tracker("trackio")),
    }
    return [make() for name, make in guests.items() if name in names]
