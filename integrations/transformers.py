"""One callback for the Hugging Face Trainer and every trainer derived from it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.core.reporting import report_once
from areal_callbacks.monitors.sequence_lengths import sequence_lengths
from areal_callbacks.patches import Patches
from areal_callbacks.session import MetricsSession
from areal_callbacks.topology import Topology, default_world

try:
    from accelerate.utils import DistributedType
    from torch.optim import Optimizer
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations import integration_utils
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError("this callback needs transformers: pip install 'areal-callbacks[transformers]'") from error

_EVALUATION_PREFIXES = ("eval_", "test_")


class AReaLMetricsCallback(TrainerCallback, ExportableState):
    """Puts throughput, MoE balance, timings and whatever is recorded in ``stats_tracker`` into the Trainer's own logs.

    ::

        trainer = Trainer(model=model, args=args, train_dataset=dataset, callbacks=[AReaLMetricsCallback()])

    The numbers arrive in the Trainer's own row and step, under their specified names, in ``log_history``, the console
    and every ``report_to`` tracker, and in ``<output_dir>/areal_metrics/metrics.jsonl`` with the expert counts.

    Training time runs from ``on_step_begin`` to ``on_step_end``: batch transfer, forward, backward, optimizer. Ranks
    meet for an export at the ``every``-th logging event, before a checkpoint is saved, and at the end.

    Args:
        config: a :class:`MetricsConfig`, a mapping of its keys or the path of a YAML file.
        evaluate_before_train: evaluate once before the first step.
        **options: configuration keys, e.g. ``every=10`` or ``moe_balance=False``.

    Raises:
        ValueError: an unknown key or a bad value, with the choices.
    """

    def __init__(
        self,
        *,
        config: MetricsConfig | Mapping[str, Any] | str | None = None,
        evaluate_before_train: bool = False,
        **options: Unpack[MetricsOptions],
    ) -> None:
        self.config = MetricsConfig.make(config, **options)
        self.evaluate_before_train = evaluate_before_train
        self.session: MetricsSession | None = None
        self.saved_totals: dict[str, Any] = {}
        self._patches = Patches()
        self._trainer: Trainer | None = None
        self._events = 0
        self._reduced_at = -1
        self._due = False
        self._own_names: frozenset[str] = frozenset()

    # -- life of a training

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._release()
        trainer = _calling_trainer()
        if trainer is None:
            report_once("transformers:trainer", "no Trainer called on_train_begin: nothing will be measured")
            return
        session = MetricsSession(self.config, output_dir=Path(args.output_dir, "areal_metrics"), name=args.run_name or "")
        session.attach(trainer.model_wrapped, _optimizer(trainer), _topology(trainer), device=args.device)
        self.session, self._trainer = session, trainer
        self._events, self._reduced_at, self._due = 0, state.global_step, False
        self._restore_totals(state)
        self._wrap(trainer)
        _observe_trl(trainer, session, self._patches)
        if self.evaluate_before_train and state.global_step == 0 and not args.eval_on_start:
            trainer.evaluate()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.session is not None:
            self.session.begin()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._release()

    def _release(self) -> None:
        """Undo everything; also after an exception, for which the Trainer has no event."""
        self._patches.undo()
        if self.session is not None:
            self.saved_totals = self.session.state_dict()
            self.session.close()
        self.session = self._trainer = None

    # -- what has no event of its own

    def _wrap(self, trainer: Trainer) -> None:
        handler, wrap = trainer.callback_handler, self._patches.wrap
        for owner, name in (
            (trainer, "_run_epoch"),
            (trainer, "_evaluate"),
            (handler, "on_epoch_begin"),
        ):
            wrap(owner, name, self._released_on_error)
        wrap(trainer, "_finalize_training", self._around_finalize)
        wrap(trainer, "_save_checkpoint", self._around_save)
        wrap(handler, "on_step_end", self._around_boundary)  # around all callbacks: a later one may still ask for a log
        wrap(handler, "on_epoch_end", self._around_boundary)
        wrap(handler, "on_log", self._around_log)
        wrap(integration_utils, "rewrite_logs", self._around_rewrite)
        if _context_parallel_size(trainer) > 1:
            wrap(trainer, "training_step", self._around_sharded_step)

    def _released_on_error(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except BaseException:
            self._release()
            raise

    def _around_boundary(
        self,
        original: Callable[..., TrainerControl],
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
    ) -> TrainerControl:
        if self.session is not None:
            self.session.end()
        control = original(args, state, control)
        trainer = self._trainer
        if trainer is not None and control.should_log and state.global_step > trainer._globalstep_last_logged:
            self._events += 1
            if self._events % self.config.every == 0:
                self._reduce(state)
                self._due = True
        return control

    def _around_save(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The totals in a checkpoint are whole; nothing is logged for them."""
        if self._trainer is not None:
            self._reduce(self._trainer.state)
        return original(*args, **kwargs)

    def _around_finalize(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The tail interval joins the row of ``train_runtime``."""
        if self._trainer is not None and self.session is not None:
            self._reduce(self._trainer.state)
            self._due = self.session.has_pending
        return self._released_on_error(original, *args, **kwargs)

    def _reduce(self, state: TrainerState) -> None:
        """Collective. Its condition is the step count, which is equal on all ranks."""
        if self.session is not None and state.global_step > self._reduced_at:
            self._reduced_at = state.global_step
            self.session.reduce()

    def _around_log(
        self,
        original: Callable[..., TrainerControl],
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> TrainerControl:
        metrics = self._metrics_for(logs, state)
        logs.update(metrics)
        if metrics and state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].update(metrics)
        self._own_names = frozenset(metrics)
        try:
            return original(args, state, control, logs, **kwargs)
        finally:
            self._own_names = frozenset()

    def _metrics_for(self, logs: Mapping[str, Any], state: TrainerState) -> dict[str, float]:
        if self.session is None or not self._due or any(name.startswith(_EVALUATION_PREFIXES) for name in logs):
            return {}
        self._due = False
        host = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        export = self.session.emit(state.global_step, host)
        return export.metrics if export is not None else {}

    def _around_rewrite(self, original: Callable[..., dict[str, Any]], logs: Mapping[str, Any]) -> dict[str, Any]:
        """Trackers show our names as they are, not under ``train/``."""
        others = {name: value for name, value in logs.items() if name not in self._own_names}
        return {**original(others), **{name: logs[name] for name in self._own_names if name in logs}}

    def _around_sharded_step(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Context parallelism shards the batch in place before the model sees it."""
        lengths = sequence_lengths((), inputs) if isinstance(inputs, Mapping) else None
        if lengths is not None and self.session is not None:
            self.session.count_sequences(lengths)
        return original(model, inputs, *args, **kwargs)

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """For the Trainer's checkpoint; called on the saving rank only, after the ranks have met."""
        totals = self.saved_totals if self.session is None else self.session.state_dict()
        return {
            "args": {"config": self.config.to_dict(), "evaluate_before_train": self.evaluate_before_train},
            "attributes": {"saved_totals": totals},
        }

    def _restore_totals(self, state: TrainerState) -> None:
        name = type(self).__name__
        saved = state.stateful_callbacks.setdefault(name, self.state())  # a checkpoint of a run without this callback
        saved = saved[-1] if isinstance(saved, list) else saved
        if self.session is not None and self.config.resume_totals and state.global_step > 0:
            self.session.load_state_dict(saved["attributes"]["saved_totals"])


def _calling_trainer() -> Trainer | None:
    """No event hands a callback its trainer; it is the one that is calling."""
    frame = sys._getframe(1)
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), Trainer):
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def _observe_trl(trainer: Trainer, session: MetricsSession, patches: Patches) -> None:
    """TRL's trainers generate and compute losses in methods of their own; trl is imported only if it is in use."""
    if any(base.__module__.partition(".")[0] == "trl" for base in type(trainer).__mro__):
        from areal_callbacks.integrations import trl

        trl.observe(trainer, session, patches)


def _optimizer(trainer: Trainer) -> Optimizer | None:
    """The optimizer that really steps, where its steps can be seen."""
    if trainer.accelerator.distributed_type == DistributedType.DEEPSPEED:
        report_once("transformers:deepspeed", "DeepSpeed steps inside backward: optimizer steps are not timed or counted")
        return None
    return trainer.optimizer if isinstance(trainer.optimizer, Optimizer) else None


def _topology(trainer: Trainer) -> Topology:
    """Tensor-parallel ranks repeat each other's data; context-parallel ranks share sequences but route their own part."""
    tensor_rank = _rank_in(trainer, "tp", trainer.get_tp_size())
    context_rank = _rank_in(trainer, "cp", trainer.get_cp_size())
    if trainer.get_sp_size() > 1:
        report_once(
            "transformers:sp",
            "sequence parallelism hands every rank a part of each sequence: estimated FLOPs take each part as a sequence",
        )
    return Topology(
        world=default_world(),
        tokens=tensor_rank == 0 and context_rank == 0,
        routes=tensor_rank == 0,
        stats=tensor_rank == 0,
    )


def _rank_in(trainer: Trainer, dimension: str, size: int) -> int:
    if size <= 1:
        return 0
    mesh = trainer.accelerator.torch_device_mesh
    if mesh is not None and dimension in (mesh.mesh_dim_names or ()):
        return int(mesh.get_local_rank(dimension))
    return int(trainer.args.process_index % size)  # a model parallelised at load time: the innermost dimension


def _context_parallel_size(trainer: Trainer) -> int:
    return int(trainer.get_cp_size())
