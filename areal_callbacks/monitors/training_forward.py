"""The one rule for which forwards are training forwards, and what a forward was given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.module_tracker import ModuleTracker

from areal_callbacks.monitors.captured import is_captured
from areal_callbacks.safety.door import Observer
from areal_callbacks.safety.hooks import Attachments


class ForwardListener(Protocol):
    """Told about training forwards."""

    def on_forward(self) -> None:
        """A training forward begins."""

    def on_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, last: bool) -> bool:
        """What a model was given: nested models first, the outermost module at last. Says if that was enough."""


_BACKWARD = ModuleTracker()


class TrainingForward(Observer):
    """Knows, while a forward runs, whether it is one that trains.

    Asked where a model is entered: training mode, gradients enabled, not a recomputation inside backward, not traced.
    So evaluation, ``no_grad`` forwards, generation and activation recomputation do not count, and what runs inside a
    counting forward does, also under reentrant checkpointing, which hides the gradients from inner modules.

    Two kinds of entries are watched: the outermost module that the loop calls, and inside it the models that take their
    inputs by keyword. Such a model decides for itself (a reference model runs under ``no_grad`` inside a training step)
    and knows its inputs best; the outermost arguments are offered to the listener only if no model inside could tell: a
    strategy may call the outermost module with the raw batch.

    Attributes:
        active: inside a training forward now. Read by counting operators at run time.
        forwards: training forwards so far.
    """

    family = "training_forward"

    def __init__(self, listener: ForwardListener | None = None) -> None:
        self.active = False
        self.forwards = 0
        self._ignoring = False
        self._listener = listener
        self._roots: list[nn.Module] = []
        self._without_inputs: set[nn.Module] = set()
        self._outermost: _Entry | None = None
        self._model: _Entry | None = None
        self._attachments = Attachments(self)

    def attach(self, roots: Iterable[nn.Module], *, inputs_of: Iterable[nn.Module] | None = None) -> None:
        """Hook the modules that the training loop calls, and the models nested in them.

        Args:
            roots: the outermost modules.
            inputs_of: the roots whose arguments are offered to the listener; all by default.
        """
        roots = list(roots)
        readable = set(roots if inputs_of is None else inputs_of)
        for root in roots:
            self._roots.append(root)
            if root not in readable:
                self._without_inputs.update((root, *_find_nested_models(root)))
            for module in (root, *_find_nested_models(root)):
                if module._compiled_call_impl is None:
                    self._attachments.hook(module.register_forward_pre_hook, self._before_eager, with_kwargs=True)
                    self._attachments.hook(module.register_forward_hook, self._after_eager, always_call=True)
                else:  # module.compile() traces the hooks: stay outside of what was compiled
                    self._wrap(module, "_compiled_call_impl")

    def attach_method(self, module: nn.Module, name: str) -> None:
        """Treat a call of ``module.<name>`` as a forward of the module, for hosts that do not use ``__call__``."""
        self._roots.append(module)
        self._wrap(module, name)

    def ignore_calls(self, owner: object, name: str) -> None:
        """No forward inside a call of ``owner.<name>`` trains, whatever it looks like: a host tries out shapes, say."""
        self._attachments.wrap(owner, name, self._ignore)

    def _ignore(self, *args: Any, **kwargs: Any) -> Generator[None]:
        before, self._ignoring = self._ignoring, True
        try:
            yield
        finally:
            self._ignoring = before

    def detach(self) -> None:
        self._attachments.undo()
        self._roots.clear()
        self._without_inputs.clear()
        self._outermost, self._model, self.active = None, None, False

    def _wrap(self, module: nn.Module, name: str) -> None:
        self._attachments.wrap(module, name, functools.partial(self._around, module))

    def _before_eager(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling():
            self._before(module, args, kwargs)

    def _after_eager(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not torch.compiler.is_compiling():
            self._after(module)

    def _around(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> Generator[None]:
        self._before(module, args, kwargs)
        try:
            yield
        finally:
            self._after(module)

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A root is nested in nothing, so it also repairs what an interrupted forward left open (torch calls no hook for
        # KeyboardInterrupt).
        if self._outermost is None or self._outermost.module is module or module in self._roots:
            self._outermost, self._model = _Entry(module, args, kwargs), None
            self._enter(self._outermost)
        if not _takes_model_inputs(module):
            return
        if self._model is None:
            self._model = _Entry(module, args, kwargs)
            self._enter(self._model)
        if self._model.trains and not self._model.is_read and module not in self._without_inputs:
            if isinstance(self._outermost.module, nn.DataParallel):  # a replica is given a part of the batch
                return
            self._model.is_read = self._offer((), _by_name(module, args, kwargs), last=False)
            self._outermost.is_read |= self._model.is_read

    def _enter(self, entry: _Entry) -> None:
        began = self.active
        entry.trains = entry.trains and not self._ignoring
        self.active = entry.trains
        self.forwards += self.active and not began
        if self.active and not began and self._listener is not None:
            self._listener.on_forward()

    def _after(self, module: nn.Module) -> None:
        if self._outermost is None:
            return
        if self._model is not None and module is self._model.module:
            self._model, self.active = None, self._outermost.trains
        if module is self._outermost.module:
            if self._outermost.trains and not self._outermost.is_read and module not in self._without_inputs:
                self._offer(self._outermost.args, self._outermost.kwargs, last=True)
            self._outermost, self._model, self.active = None, None, False

    def _offer(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, last: bool) -> bool:
        return self._listener is None or self._listener.on_inputs(args, kwargs, last=last)


class _Entry:
    """A call in progress: whether it trains, and whether its inputs could be read."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.module = module
        is_trainable = module.training and torch.is_grad_enabled()
        self.trains = is_trainable and not _is_recomputation() and not is_captured()
        self.is_read = False
        self.args, self.kwargs = (args, kwargs) if self.trains else ((), {})


def _is_recomputation() -> bool:
    """Inside backward, except where reentrant checkpointing of the whole model makes it the forward with gradients."""
    if not _BACKWARD.is_bw:
        return False
    node = torch._C._current_autograd_node()
    return node is None or not node.name().endswith("CheckpointFunctionBackward")


def _find_nested_models(root: nn.Module) -> list[nn.Module]:
    return [module for module in root.modules() if module is not root and _takes_model_inputs(module)]


def _takes_model_inputs(module: nn.Module) -> bool:
    """A model of the Transformers kind: it has a configuration and takes its inputs by keyword."""
    return hasattr(module, "base_model_prefix") and ("config" in vars(module) or hasattr(type(module), "config"))


def _by_name(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**dict(zip(_parameter_names(type(module).forward), args)), **kwargs} if args else kwargs


@functools.lru_cache(maxsize=64)
def _parameter_names(forward: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(forward).parameters)[1:]
