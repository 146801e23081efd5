"""Megatron-LM's training loop, measured from outside: through its callbacks where it takes them, else by name.

``pretrain`` calls ``setup_model_and_optimizer`` and ``train``, which calls ``train_step`` and ``training_log`` for
every iteration; all are looked up as globals of one module, so they can be replaced there before ``pretrain`` runs.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any

import megatron.core

from areal_callbacks.config import MetricsConfig
from areal_callbacks.integrations._megatron_run import AReaLMetricsCallback, Host, TrainingRun, host_scalars
from areal_callbacks.safety.door import Call
from areal_callbacks.safety.patches import Patches
from areal_callbacks.safety.reporting import report_once

_NEEDED: dict[str, tuple[str, ...]] = {
    "setup_model_and_optimizer": (),
    "train": (),
    "train_step": ("data_iterator", "model", "optimizer"),
    "training_log": ("iteration",),
}
"""Function → the arguments by whose names it is understood."""

_CONSEQUENCE = "nothing is measured, since this version's training loop is another one"


class UnknownLoopError(RuntimeError):
    """The training loop of this version cannot be measured from outside."""


def import_training() -> ModuleType:
    """Megatron-LM's module of training functions; ImportError without a Megatron-LM."""
    try:
        return importlib.import_module("megatron.training.training")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"no Megatron-LM to measure beside megatron.core {megatron.core.__version__}: put its repository on "
            f"PYTHONPATH, or pass the module that holds its pretrain() to install() ({error})"
        ) from error


class Installation:
    """The wrapped functions of one module, and the training that runs in it.

    Args:
        training: the module.
        config: what to measure.
        writer_rank: None for the last rank.

    Raises:
        UnknownLoopError: a function is missing, or lacks an argument.
    """

    def __init__(self, training: ModuleType, config: MetricsConfig, writer_rank: int | None) -> None:
        self._training = training
        self._callback = AReaLMetricsCallback(config=config, writer_rank=writer_rank)
        self._patches = Patches("megatron")
        if _parameters(getattr(training, "pretrain", None)).get("callbacks") is not None:
            self._join_callbacks()
        else:
            self._wrap_functions()
        if hasattr(training, "save_checkpoint"):
            self._patches.wrap(training, "save_checkpoint", self._around_save)
        if hasattr(training, "checkpoint_and_decide_exit"):
            self._patches.wrap(training, "checkpoint_and_decide_exit", self._around_decision)

    def undo(self) -> None:
        """Put the functions back and close the training that is still open."""
        self._patches.undo()
        self._callback.abandon()

    @property
    def _run(self) -> TrainingRun | None:
        return self._callback.run

    def _around_save(self, *args: Any, **kwargs: Any) -> Generator[None]:
        if self._run is not None:
            iteration = _bind(self._training.save_checkpoint, args, kwargs).arguments.get("iteration")
            if iteration is None:
                report_once("megatron:save", "save_checkpoint() takes no iteration: totals are not saved with it")
            else:
                self._run.on_save(int(iteration))
        yield

    def _around_decision(self, *args: Any, **kwargs: Any) -> Generator[None, Any]:
        """All ranks leave, by an interval, a duration or a signal; the writers are finished before that."""
        if (yield) is True:
            self._callback.end()

    # -- through callbacks

    def _join_callbacks(self) -> None:
        """Wherever ``pretrain`` was imported to, it is called with one callback more."""
        pretrain = vars(self._training)["pretrain"]
        loaded = {id(module): module for module in (self._training, *sys.modules.values())}
        for module in loaded.values():
            if isinstance(module, ModuleType) and vars(module).get("pretrain") is pretrain:
                self._patches.wrap(module, "pretrain", self._around_pretrain)

    def _around_pretrain(self, *args: Any, **kwargs: Any) -> Generator[Call]:
        self._callback.settings = lambda: _host(self._training)
        call = _bind(self._training.pretrain, args, kwargs)
        given: Any = call.arguments.get("callbacks")
        if hasattr(given, "add"):
            given.add(self._callback)
        else:
            call.arguments["callbacks"] = [*(given or ()), self._callback]
        try:
            yield Call(call.args, call.kwargs)
        except BaseException:
            self.undo()
            raise

    # -- by name

    def _wrap_functions(self) -> None:
        for name, arguments in _NEEDED.items():
            _check(self._training, name, arguments)
        self._patches.wrap(self._training, "setup_model_and_optimizer", self._around_setup)
        self._patches.wrap(self._training, "train", self._around_train)
        self._patches.wrap(self._training, "train_step", self._around_train_step)
        self._patches.wrap(self._training, "training_log", self._around_log)

    def _around_setup(self, *args: Any, **kwargs: Any) -> Generator[None, Any]:
        result = yield  # (model chunks, optimizer, scheduler)
        self._callback.start(_host(self._training), result[0])

    def _around_train(self, *args: Any, **kwargs: Any) -> Generator[None]:
        try:
            yield
        except BaseException:
            self.undo()
            raise
        self._callback.end()

    def _around_train_step(self, *args: Any, **kwargs: Any) -> Generator[Call]:
        if self._run is None or self._run.is_over:
            return
        session, call = self._run.session, _bind(self._training.train_step, args, kwargs)
        # Not earlier: the loop may have put a CUDA-graph wrapper around the optimizer's step meanwhile.
        session.observe_megatron_optimizer(call.arguments["optimizer"])
        call.arguments["data_iterator"] = session.unmeasured(call.arguments["data_iterator"])
        with session.step():
            yield Call(call.args, call.kwargs)

    def _around_log(self, *args: Any, **kwargs: Any) -> Generator[None]:
        yield
        if self._run is not None and not self._run.is_over:
            arguments = _bind(self._training.training_log, args, kwargs).arguments
            self._run.on_log(int(arguments["iteration"]), lambda: host_scalars(arguments))


def _check(training: ModuleType, name: str, arguments: tuple[str, ...]) -> None:
    function_name = f"megatron.core {megatron.core.__version__}: {training.__name__}.{name}"
    function = getattr(training, name, None)
    if function is None:
        raise UnknownLoopError(f"{function_name} does not exist: {_CONSEQUENCE}")
    parameters = _parameters(function)
    for argument in arguments:
        if argument not in parameters:
            taken = ", ".join(parameters)
            raise UnknownLoopError(f"{function_name} takes no argument {argument!r}, but ({taken}): {_CONSEQUENCE}")


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters) if callable(function) else {}


def _bind(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    return inspect.signature(function).bind(*args, **kwargs)


def _host(training: ModuleType) -> Host:
    """What Megatron-LM's command line and its global writers say."""

    def call(name: str) -> Any:
        function = vars(training).get(name)
        return function() if callable(function) else None

    args = call("get_args")
    return Host(
        iteration=int(getattr(args, "iteration", 0) or 0),
        log_interval=int(getattr(args, "log_interval", 1) or 1),
        save=getattr(args, "save", None),
        load=getattr(args, "load", None),
        name=getattr(args, "wandb_exp_name", None) or "",
        tensorboard=call("get_tensorboard_writer"),
        wandb=call("get_wandb_writer"),
    )
