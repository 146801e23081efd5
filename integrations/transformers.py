"""One callback for the Hugging Face Trainer and every trainer derived from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.integrations._transformers_host import (
    ExportableState,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    calling_trainer,
)
from areal_callbacks.integrations._transformers_run import TransformersRun
from areal_callbacks.safety.door import attempt, guarded_entry
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.session import MetricsSession

_WITHOUT = {"token_count_fn": "masks are read", "on_finding": "nobody is told of findings"}
_FUNCTIONS: dict[str, Callable[..., Any]] = {}  # what a checkpoint can only name, by that name


class AReaLMetricsCallback(TrainerCallback, ExportableState):
    """Puts throughput, MoE balance, timings and whatever is recorded in ``stats_tracker`` into the Trainer's own logs.

    ::

        trainer = Trainer(model=model, args=args, train_dataset=dataset, callbacks=[AReaLMetricsCallback()])

    The numbers arrive in the Trainer's own row and step, under their specified names, in ``log_history``, the console
    and every ``report_to`` tracker, and in ``<output_dir>/areal_metrics/metrics.jsonl`` with the expert counts.

    Training time runs from ``on_step_begin`` to ``on_step_end``: batch transfer, forward, backward, optimizer. Ranks
    meet for an export at the first logging event after ``every`` steps, before a checkpoint is saved, and at the end.

    Args:
        config: a :class:`MetricsConfig`, a mapping of its keys or the path of a YAML file.
        evaluate_before_train: evaluate once before the first step.
        **options: configuration keys, e.g. ``every=10`` or ``moe_balance=False``.

    Raises:
        ValueError: an unknown key or a bad value, with the choices.

    Attributes:
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
        options["token_count_fn"] = _function("token_count_fn", options.get("token_count_fn"))
        options["on_finding"] = _function("on_finding", options.get("on_finding"))
        self.config = MetricsConfig.make(config, **options)
        self.evaluate_before_train = evaluate_before_train
        self.saved_totals: dict[str, Any] = {}
        self._runs: list[TransformersRun] = []  # the last one is the innermost, of a trainer inside another's training

    @property
    def session(self) -> MetricsSession | None:
        """What runs during a training; None before and after."""
        return self._runs[-1].session if self._runs else None

    # -- life of a training

    @guarded_entry
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        trainer = calling_trainer()
        if trainer is None:
            report_once("transformers:trainer", "no Trainer called on_train_begin: nothing will be measured")
            return
        self._end_runs(trainer)
        if _is_second(self, trainer):
            report_once("transformers:twice", "this Trainer has two metrics callbacks: the later one does nothing")
            return
        run = TransformersRun(trainer, self.config, self._keep_totals)
        self._runs.append(run)
        run.start(self)
        self._restore_totals(run, state)
        self._evaluate_first(args, state)

    @guarded_entry
    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._asked_for_evaluation:
            self._asked_for_evaluation = args.eval_on_start = False

    @guarded_entry
    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._runs:
            self._runs[-1].session.begin()

    @guarded_entry
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        trainer = calling_trainer()
        if trainer is not None:
            self._end_runs(trainer)

    def _end_runs(self, trainer: Trainer) -> None:
        """Those of this trainer, and those that are over: an exception may have ended them."""
        for run in [run for run in self._runs if run.trainer is trainer]:
            run.detach()
        self._runs = [run for run in self._runs if not run.is_over]

    def _keep_totals(self, totals: dict[str, Any] | None) -> None:
        self.saved_totals = totals or {}
        if self._asked_for_evaluation:  # which raised
            self._asked_for_evaluation = self._runs[-1].trainer.args.eval_on_start = False
        self._runs = [run for run in self._runs if not run.is_over]

    _asked_for_evaluation = False

    def _evaluate_first(self, args: TrainingArguments, state: TrainerState) -> None:
        """By the Trainer's own means, once all callbacks have begun."""
        if self.evaluate_before_train and state.global_step == 0 and not args.eval_on_start:
            self._asked_for_evaluation = args.eval_on_start = True

    # -- checkpoints and copies

    def state(self) -> dict[str, Any]:
        """For the Trainer's checkpoint; called on the saving rank only, after the ranks have met."""
        return self._describe() or {}

    @guarded_entry
    def _describe(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "config": self.config.to_dict(),
            "evaluate_before_train": self.evaluate_before_train,
        }
        for name in ("token_count_fn", "on_finding"):
            if getattr(self.config, name) is not None:
                arguments[name] = _remember(getattr(self.config, name))
        totals = self.saved_totals if self.session is None else self.session.state_dict()
        return {"args": arguments, "attributes": {"saved_totals": totals}}

    def _restore_totals(self, run: TransformersRun, state: TrainerState) -> None:
        name = type(self).__name__
        saved = state.stateful_callbacks.setdefault(name, self.state())  # a checkpoint of a run without this callback
        if self.config.resume_totals and state.global_step > 0:
            totals = attempt("session:totals", "the saved totals cannot be read, they restart", _totals_in, saved)
            if totals is not None:
                run.session.load_state_dict(totals)

    def __getstate__(self) -> dict[str, Any]:
        """A copy belongs to no training."""
        return {**vars(self), "_runs": []}


def _totals_in(saved: Any) -> Any:
    """What :meth:`AReaLMetricsCallback.state` put into a checkpoint."""
    return (saved[-1] if isinstance(saved, list) else saved)["attributes"]["saved_totals"]


def _function(name: str, given: Callable[..., Any] | str | None) -> Callable[..., Any] | None:
    """The user's function, also where a checkpoint could only keep its name."""
    if not isinstance(given, str):
        return given
    if given not in _FUNCTIONS:
        report_once("transformers:function", f"the checkpoint's {name} {given} is not given, {_WITHOUT[name]}")
    return _FUNCTIONS.get(given)


def _remember(function: Callable[..., Any]) -> str:
    name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    _FUNCTIONS[name] = function
    return name


def _is_second(callback: AReaLMetricsCallback, trainer: Trainer) -> bool:
    """An earlier one stands in the Trainer's list; this one may also stand inside another callback."""
    ours = [known for known in trainer.callback_handler.callbacks if isinstance(known, AReaLMetricsCallback)]
    return bool(ours) and ours[0] is not callback
