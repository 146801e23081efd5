"""The one rule for which forwards are training forwards, and what a forward was given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from torch.utils.module_tracker import ModuleTracker

from areal_callbacks.core.guard import Observer, guarded
from areal_callbacks.patches import Patches


class ForwardListener(Protocol):
    """Told about training forwards."""

    def on_forward(self) -> None:
        """A training forward begins."""

    def on_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, last: bool) -> bool:
        """What a model was given: nested models first, at last the outermost module. Returns whether that was enough."""


_BACKWARD = ModuleTracker()


class TrainingForward(Observer):
    """Knows, while a forward runs, whether it is one that trains.

    Asked once, at the outermost module: training mode, gradients enabled, not a recomputation inside backward. So
    evaluation, ``no_grad`` forwards, generation and activation recomputation do not count, and what runs inside a
    counting forward does, also under reentrant checkpointing, which hides the gradients from inner modules.

    The arguments are offered to the listener at the first nested model that takes them by keyword, and at the outermost
    call only if that was not enough: a strategy may call the outermost module with the raw batch.

    Attributes:
        active: inside a training forward now. Read by counting operators at run time.
    """

    family = "training_forward"

    def __init__(self, listener: ForwardListener | None = None) -> None:
        self.active = False
        self._listener = listener
        self._roots: list[nn.Module] = []
        self._outermost: nn.Module | None = None
        self._arguments: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
        self._handles: list[RemovableHandle] = []
        self._patches = Patches()

    def attach(self, roots: Iterable[nn.Module]) -> None:
        """Hook the modules that the training loop calls, and the models nested in them."""
        for root in roots:
            self._roots.append(root)
            for module in (root, *_nested_models(root)):
                if module._compiled_call_impl is None:
                    self._handles.append(module.register_forward_pre_hook(self._before_eager, with_kwargs=True))
                    self._handles.append(module.register_forward_hook(self._after_eager, always_call=True))
                else:  # module.compile() traces the hooks: stay outside of what was compiled
                    self._patches.wrap(module, "_compiled_call_impl", functools.partial(self._around, module))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._patches.undo()
        self._roots.clear()
        self._outermost, self._arguments, self.active = None, None, False

    def _before_eager(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling():
            self._before(module, args, kwargs)

    def _after_eager(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002
        if not torch.compiler.is_compiling():
            self._after(module)

    def _around(self, module: nn.Module, compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._before(module, args, kwargs)
        try:
            return compiled(*args, **kwargs)
        finally:
            self._after(module)

    @guarded
    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A root is nested in nothing, so it also repairs what an interrupted forward left open (torch calls no hook for
        # KeyboardInterrupt).
        if self._outermost is None or module in self._roots:
            self._outermost = module
            self.active = module.training and torch.is_grad_enabled() and not _is_recomputation()
            self._arguments = (args, kwargs) if self.active and self._listener is not None else None
            if self.active and self._listener is not None:
                self._listener.on_forward()
        if self._arguments is not None and _takes_model_inputs(module):
            self._offer((args, kwargs), last=False)

    @guarded
    def _after(self, module: nn.Module) -> None:
        if module is self._outermost:
            if self._arguments is not None:
                self._offer(self._arguments, last=True)
            self._outermost, self._arguments, self.active = None, None, False

    def _offer(self, arguments: tuple[tuple[Any, ...], Mapping[str, Any]], *, last: bool) -> None:
        if self._listener is None or self._listener.on_inputs(*arguments, last=last):
            self._arguments = None


def _is_recomputation() -> bool:
    """Inside backward, except where reentrant checkpointing of the whole model makes that the forward with gradients."""
    if not _BACKWARD.is_bw:
        return False
    node = torch._C._current_autograd_node()
    return node is None or not node.name().endswith("CheckpointFunctionBackward")


def _nested_models(root: nn.Module) -> list[nn.Module]:
    return [module for module in root.modules() if module is not root and _takes_model_inputs(module)]


def _takes_model_inputs(module: nn.Module) -> bool:
    """A model of the Transformers kind: it has a configuration and takes its inputs by keyword."""
    return hasattr(module, "base_model_prefix") and hasattr(module, "config")
