"""One training of a Hugging Face Trainer, from ``on_train_begin`` to its end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_callbacks.core.file_names import RUN_FOLDER
from areal_callbacks.integrations._batch_moves import include_batch_moves
from areal_callbacks.integrations._transformers_guests import guests_of
from areal_callbacks.integrations._transformers_host import (
    EPOCH_METHODS,
    HAS_FINAL_METHOD,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    integration_utils,
    optimizer_of,
    padding_of,
    report_old_trainer,
    size_of,
    topology_of,
)
from areal_callbacks.safety.door import Call, Observer, Result, attempt, end_on_error, guarded
from areal_callbacks.safety.patches import Patches
from areal_callbacks.session import MetricsSession
from areal_callbacks.session.schedule import LoggingEvents
from areal_callbacks.writers.console_line import describe_in_words

if TYPE_CHECKING:
    from areal_callbacks.config import MetricsConfig
    from areal_callbacks.core.types import Export

_EVALUATION_PREFIXES = ("eval_", "test_")


class TransformersRun(Observer):
    """Observes a trainer while it trains, and joins the rows that it logs.

    Ranks meet where the trainer logs, before it saves a checkpoint, and at the end.

    Args:
        trainer: is training now.
        config: what to measure.
        ended: called once with the totals when the run ends, however that is.

    Attributes:
        trainer: as given.
        session: what measures.
        is_over: the run has ended.
    """

    family = "transformers"

    def __init__(self, trainer: Trainer, config: MetricsConfig, ended: Callable[[dict[str, Any] | None], None]) -> None:
        self.trainer = trainer
        self.is_over = False
        self.session = MetricsSession(
            config.for_split_sequences(size_of(trainer, "sp")),
            output_dir=Path(trainer.args.output_dir, RUN_FOLDER),
            name=trainer.args.run_name or "",
            guests=attempt(
                "transformers:guests", "no tables of expert loads in the trackers", guests_of, trainer, config
            )
            or (),
        )
        self._events = LoggingEvents(self.session, trainer.state.global_step)
        self.session.start_from(trainer.state.global_step)
        self._patches = Patches(self.family)
        self._ended = ended
        self._own_names: frozenset[str] = frozenset()
        self._words = ""
        self._is_fetching = False

    @guarded
    def start(self, callback: object) -> None:
        """Attach everything; ``callback`` is the one that made this run."""
        trainer = self.trainer
        report_old_trainer()
        self.session.attach(
            trainer.model_wrapped,
            optimizer_of(trainer),
            topology_of(trainer),
            device=trainer.args.device,
            padding=attempt("transformers:padding", "the tokenizer does not tell its padding", padding_of, trainer),
        )
        self._wrap(callback)
        include_batch_moves(self._patches, self.session.included, lambda _: self._is_fetching)
        _observe_trl(trainer, self.session, self._patches)

    def detach(self) -> None:
        """End the run without meeting the other ranks; also after an exception, for which the Trainer has no event."""
        if self.is_over:
            return
        self.is_over = True
        self._patches.undo()
        self._events.progress = self.trainer.state.global_step
        self._events.keep()
        self._ended(self.session.state_dict())
        self._events.close()

    # -- what has no event of its own

    def _wrap(self, callback: object) -> None:
        trainer, handler, wrap = self.trainer, self.trainer.callback_handler, self._patches.wrap
        wrap(trainer, "_save_checkpoint", self._around_save)
        wrap(trainer, "get_batch_samples", self._around_fetch)
        wrap(handler, "on_step_end", self._around_boundary)  # around all callbacks: a later one may still ask for a log
        wrap(handler, "on_epoch_end", self._around_boundary)
        wrap(handler, "on_log", self._around_log)
        wrap(integration_utils, "rewrite_logs", self._around_rewrite)
        if self.session.config.console != "full":
            for printer in handler.callbacks:
                if isinstance(printer, PrinterCallback | ProgressCallback):
                    wrap(printer, "on_log", self._around_print)
        if size_of(trainer, "cp") > 1:
            wrap(trainer, "training_step", self._around_sharded_step)
        for owner, name in [
            *((later, "on_train_begin") for later in _callbacks_after(callback, handler.callbacks)),
            (handler, "on_epoch_begin"),
            *((trainer, name) for name in (*EPOCH_METHODS, "_evaluate")),
        ]:
            wrap(owner, name, end_on_error(self.detach))
        wrap(trainer, "_evaluate", self._around_evaluation)
        if HAS_FINAL_METHOD:
            wrap(trainer, "_finalize_training", self._around_finalize)
        wrap(handler, "on_train_end", self._around_train_end)

    def _around_fetch(self, *args: Any, **kwargs: Any) -> Generator[None]:
        """The model may still be in the mode of the last evaluation; the batches of an evaluation do not come here."""
        self._is_fetching = True
        try:
            yield
        finally:
            self._is_fetching = False

    def _around_evaluation(self, *args: Any, **kwargs: Any) -> Generator[None]:
        with self.session.excluded():
            yield

    def _around_boundary(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> Generator[None, TrainerControl]:
        self.session.end()
        control = yield
        if control.should_log and state.global_step > self.trainer._globalstep_last_logged:
            self._events.reached(state.global_step)

    def _around_save(self, *args: Any, **kwargs: Any) -> Generator[None]:
        """The totals in a checkpoint are whole; nothing is logged for them.

        Every rank is here: the Trainer itself gathers its FLOPs from all of them when it saves.
        """
        self._events.reduce(self.trainer.state.global_step)
        with self.session.excluded():
            yield

    def _around_finalize(self, *args: Any, **kwargs: Any) -> Generator[None]:
        """The tail interval joins the row of ``train_runtime``, with what a last evaluation recorded."""
        try:
            self._events.finish(self.trainer.state.global_step)
        finally:
            try:
                yield
            finally:
                self.detach()

    def _around_train_end(self, *args: Any, **kwargs: Any) -> Generator[None]:
        """Before any callback: some end their tracker's run then, which the report is handed to."""
        self.detach()
        with self.session.late_records():
            yield

    def _around_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        **kwargs: Any,
    ) -> Generator[Call]:
        metrics = self._metrics_for(logs, state)
        if metrics and state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].update(metrics)
        self._own_names = frozenset(metrics)
        try:
            with self.session.excluded():
                yield Call((args, state, control, {**logs, **metrics}), kwargs)
        finally:
            self._own_names, self._words = frozenset(), ""

    def _around_print(self, *args: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> Generator[Call]:
        """The terminal shows the host's own scalars and a few words of ours; everybody else gets everything."""
        shown = {name: value for name, value in (logs or {}).items() if name not in self._own_names}
        if self._words and self.session.config.console == "compact":
            shown["areal"] = self._words
        yield Call(args, {**kwargs, "logs": shown})

    def _metrics_for(self, logs: Mapping[str, Any], state: TrainerState) -> dict[str, float]:
        if all(str(name).startswith(_EVALUATION_PREFIXES) or name == "epoch" for name in logs):
            return {}
        if not HAS_FINAL_METHOD and "train_runtime" in logs:  # the last row, on every rank
            self._events.finish(state.global_step)
        export = self._events.export(state.global_step, logs)
        self._words = "" if export is None else describe_in_words(export.metrics, _count_experts(export))
        return {} if export is None else export.metrics

    def _around_rewrite(self, logs: Mapping[str, Any]) -> Generator[Call, dict[str, Any], Result]:
        """Trackers show our names as they are, not under ``train/``."""
        own = {name: value for name, value in logs.items() if name in self._own_names}
        rewritten = yield Call(({name: value for name, value in logs.items() if name not in own},), {})
        return Result({**rewritten, **own})

    def _around_sharded_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Generator[None]:
        """Context parallelism shards the batch in place before the model sees it."""
        self.session.count_inputs(inputs)
        yield


def _count_experts(export: Export) -> int:
    return sum(len(layer.counts) for layer in export.expert_loads or ())


def _callbacks_after(callback: object, callbacks: list[Any]) -> list[Any]:
    """Those that begin later, or their classes if they have slots; none if ``callback`` stands inside another one."""
    positions = [position for position, known in enumerate(callbacks) if known is callback]
    later = callbacks[positions[0] + 1 :] if positions else []
    return [known if hasattr(known, "__dict__") else type(known) for known in later]


def _observe_trl(trainer: Trainer, session: MetricsSession, patches: Patches) -> None:
    """TRL's trainers generate and compute losses in methods of their own; trl is imported only if it is in use."""
    if any(base.__module__.partition(".")[0] == "trl" for base in type(trainer).__mro__):
        from areal_callbacks.integrations import _trl_policy

        _trl_policy.observe(trainer, session, patches)
