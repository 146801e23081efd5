"""One callback for the Hugging Face Trainer and every trainer derived from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.integrations._transformers_guests import guests_of
from areal_callbacks.integrations._transformers_host import (
    ExportableState,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    calling_trainer,
    integration_utils,
    measurable,
    optimizer_of,
    topology_of,
)
from areal_callbacks.safety.patches import Patches
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.session import MetricsSession

_EVALUATION_PREFIXES = ("eval_", "test_")
_FUNCTIONS: dict[str, Callable[..., Any]] = {}  # what a checkpoint can only name, by that name


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

    Attributes:
        session: what runs during a training; None before and after.
        saved_totals: the cumulative counters, as a checkpoint keeps them.
    """

    def __init__(
        self,
        *,
        config: MetricsConfig | Mapping[str, Any] | str | None = None,
        evaluate_before_train: bool = False,
        **options: Unpack[MetricsOptions],
    ) -> None:
        if not isinstance(evaluate_before_train, bool):
            raise ValueError(f"evaluate_before_train must be True or False, got {evaluate_before_train!r}")  # noqa: TRY004
        options["token_count_fn"] = _function(options.get("token_count_fn"))
        self.config = MetricsConfig.make(config, **options)
        self.evaluate_before_train = evaluate_before_train
        self.session: MetricsSession | None = None
        self.saved_totals: dict[str, Any] = {}
        self._patches = Patches()
        self._trainer: Trainer | None = None
        self._events = 0
        self._reduced_at = -1
        self._due = False
        self._evaluates_first = False
        self._own_names: frozenset[str] = frozenset()

    # -- life of a training

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._release()
        trainer = calling_trainer()
        if trainer is None:
            report_once("transformers:trainer", "no Trainer called on_train_begin: nothing will be measured")
            return
        if _is_second(self, trainer):
            report_once("transformers:twice", "this Trainer has two metrics callbacks: the later one does nothing")
            return
        session = MetricsSession(
            measurable(self.config, trainer),
            output_dir=Path(args.output_dir, "areal_metrics"),
            name=args.run_name or "",
            guests=guests_of(trainer, self.config.moe_balance),
        )
        self.session, self._trainer = session, trainer
        session.attach(trainer.model_wrapped, optimizer_of(trainer), topology_of(trainer), device=args.device)
        self._events, self._reduced_at, self._due = 0, state.global_step, False
        self._evaluates_first = self.evaluate_before_train and state.global_step == 0 and not args.eval_on_start
        self._restore_totals(state)
        self._wrap(trainer)
        _observe_trl(trainer, session, self._patches)

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
        wrap(trainer, "_save_checkpoint", self._around_save)
        wrap(handler, "on_epoch_begin", self._around_epoch_begin)
        wrap(handler, "on_step_end", self._around_boundary)  # around all callbacks: a later one may still ask for a log
        wrap(handler, "on_epoch_end", self._around_boundary)
        wrap(handler, "on_log", self._around_log)
        wrap(integration_utils, "rewrite_logs", self._around_rewrite)
        if trainer.get_cp_size() > 1:
            wrap(trainer, "training_step", self._around_sharded_step)
        later_callbacks = handler.callbacks[handler.callbacks.index(self) + 1 :]
        guarded = [(callback, "on_train_begin") for callback in later_callbacks if hasattr(callback, "__dict__")]
        for owner, name in [*guarded, (handler, "on_epoch_begin"), (trainer, "_run_epoch"), (trainer, "_evaluate")]:
            wrap(owner, name, self._released_on_error)
        wrap(trainer, "_finalize_training", self._around_finalize)
        wrap(handler, "on_train_end", self._around_train_end)

    def _released_on_error(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except BaseException:
            self._release()
            raise

    def _around_epoch_begin(self, original: Callable[..., TrainerControl], *args: Any, **kwargs: Any) -> TrainerControl:
        """The first epoch is the first moment at which every callback has begun."""
        if self._evaluates_first and self._trainer is not None:
            self._evaluates_first = False
            self._trainer.evaluate()
        return original(*args, **kwargs)

    def _around_boundary(
        self,
        original: Callable[..., TrainerControl],
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> TrainerControl:
        if self.session is not None:
            self.session.end()
        control = original(args, state, control, **kwargs)
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
        """The tail interval joins the row of ``train_runtime``, with what a last evaluation recorded."""
        try:
            if self._trainer is not None and self.session is not None:
                if not self._reduce(self._trainer.state):
                    self.session.reduce(measured=False)
                self._due = self.session.has_pending
            return original(*args, **kwargs)
        finally:
            self._release()

    def _around_train_end(self, original: Callable[..., TrainerControl], *args: Any, **kwargs: Any) -> TrainerControl:
        """Before any callback: some end their tracker's run then, which the report is handed to."""
        self._release()
        return original(*args, **kwargs)

    def _reduce(self, state: TrainerState) -> bool:
        """Collective. Its condition is the step count, which is equal on all ranks."""
        due = self.session is not None and state.global_step > self._reduced_at
        if due and self.session is not None:
            self._reduced_at = state.global_step
            self.session.reduce()
        return due

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
        export = self.session.emit(state.global_step, logs)
        return export.metrics if export is not None else {}

    def _around_rewrite(self, original: Callable[..., dict[str, Any]], logs: Mapping[str, Any]) -> dict[str, Any]:
        """Trackers show our names as they are, not under ``train/``."""
        others = {name: value for name, value in logs.items() if name not in self._own_names}
        return {**original(others), **{name: logs[name] for name in self._own_names if name in logs}}

    def _around_sharded_step(
        self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Context parallelism shards the batch in place before the model sees it."""
        if self.session is not None:
            self.session.count_inputs(inputs)
        return original(model, inputs, *args, **kwargs)

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """For the Trainer's checkpoint; called on the saving rank only, after the ranks have met."""
        arguments: dict[str, Any] = {
            "config": self.config.to_dict(),
            "evaluate_before_train": self.evaluate_before_train,
        }
        if self.config.token_count_fn is not None:
            arguments["token_count_fn"] = _remember(self.config.token_count_fn)
        totals = self.saved_totals if self.session is None else self.session.state_dict()
        return {"args": arguments, "attributes": {"saved_totals": totals}}

    def _restore_totals(self, state: TrainerState) -> None:
        name = type(self).__name__
        saved = state.stateful_callbacks.setdefault(name, self.state())  # a checkpoint of a run without this callback
        if self.session is None or not self.config.resume_totals or state.global_step == 0:
            return
        try:
            self.session.load_state_dict(
                (saved[-1] if isinstance(saved, list) else saved)["attributes"]["saved_totals"]
            )
        except (LookupError, TypeError) as error:
            report_once("transformers:totals", f"the checkpoint's totals cannot be read, they restart: {error!r}")


def _function(given: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    """The user's function, also where a checkpoint could only keep its name."""
    if not isinstance(given, str):
        return given
    if given not in _FUNCTIONS:
        report_once("transformers:function", f"the checkpoint's token_count_fn {given} is not given: masks are read")
    return _FUNCTIONS.get(given)


def _remember(function: Callable[..., Any]) -> str:
    name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    _FUNCTIONS[name] = function
    return name


def _is_second(callback: AReaLMetricsCallback, trainer: Trainer) -> bool:
    return next(c for c in trainer.callback_handler.callbacks if isinstance(c, AReaLMetricsCallback)) is not callback


def _observe_trl(trainer: Trainer, session: MetricsSession, patches: Patches) -> None:
    """TRL's trainers generate and compute losses in methods of their own; trl is imported only if it is in use."""
    if any(base.__module__.partition(".")[0] == "trl" for base in type(trainer).__mro__):
        from areal_callbacks.integrations import trl

        trl.observe(trainer, session, patches)
