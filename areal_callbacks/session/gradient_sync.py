"""The moment at which a loop without other common events makes all its ranks meet: gradients are synchronised."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from areal_callbacks.safety.attributes import read_attribute
from areal_callbacks.safety.door import Observer, guarded
from areal_callbacks.safety.hooks import Attachments
from areal_callbacks.session.step_exports import StepExports


class GradientSync(Observer):
    """Tells a run's exports after which calls of backward every rank is there.

    A rank may refuse an optimizer step, skip a log call, evaluate alone, or train something of its own. It cannot leave
    out a backward in which the others wait for its gradients: one after a forward that prepared a wrapped model for
    their reduction. Such a forward is DDP's outside of ``no_sync()``, FSDP's likewise, and that of tensor-parallel
    models and DeepSpeed's engines, whose ranks exchange something in every forward.

    Inside a ``Join`` a rank that has run out of batches answers the gradients' collectives of the others, but not ours.
    The ranks meet at its end, unless that is an exception.

    Args:
        exports: those of the run; the session has its topology.
    """

    family = "gradient synchronisation"

    def __init__(self, exports: StepExports) -> None:
        self._exports = exports
        self._is_prepared = self._joins = False
        self._attachments = Attachments(self)

    @guarded
    def add(self, model: nn.Module) -> None:
        """Observe a model as the loop calls it; in one process there is nothing to observe."""
        if self._exports.session.topology.is_one_process:
            return
        for wrapper in _find_wrappers(model):
            self._attachments.hook(wrapper.register_forward_hook, self._after_forward)
        if not self._joins:
            self._joins = True
            self._attachments.wrap(Join, "__enter__", self._around_enter)
            self._attachments.wrap(Join, "__exit__", self._around_exit)

    @guarded
    def backward_ended(self) -> None:
        """The loop has called backward. Collective if that synchronised gradients and an export is due."""
        if self._is_prepared:
            self._is_prepared = False
            self._exports.after_synchronisation()

    def detach(self) -> None:
        self._attachments.undo()

    def _after_forward(self, wrapper: nn.Module, args: Any, output: Any) -> None:
        if torch.is_grad_enabled() and _synchronises(wrapper):
            self._is_prepared = True

    def _around_enter(self, join: Join) -> Generator[None]:
        yield
        if join._enable:
            self._exports.begin_uneven()

    def _around_exit(self, join: Join, kind: type[BaseException] | None, *error: Any) -> Generator[None]:
        is_complete = False
        try:
            yield
            is_complete = kind is None
        finally:
            if join._enable:
                self._exports.end_uneven(is_complete=is_complete)


def _find_wrappers(model: nn.Module) -> list[nn.Module]:
    """The outermost modules in whose forward or backward the ranks exchange something; none of a plain module."""
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module not in inside and _is_wrapper(module):
            found.append(module)
            inside.update(module.modules())
    return found or [model] * any(hasattr(parameter, "placements") for parameter in model.parameters())


def _is_wrapper(module: nn.Module) -> bool:
    """DDP, FSDP1, FSDP2 or a DeepSpeed engine."""
    is_known = isinstance(module, DistributedDataParallel | FullyShardedDataParallel)
    return is_known or hasattr(module, "set_requires_gradient_sync") or _is_engine(module)


def _is_engine(module: nn.Module) -> bool:
    return any(cls.__module__.partition(".")[0] == "deepspeed" for cls in type(module).__mro__)


def _synchronises(wrapper: nn.Module) -> bool:
    """The backward of the forward that has just run will make the ranks meet."""
    if isinstance(wrapper, DistributedDataParallel):
        return bool(wrapper.require_backward_grad_sync)
    if isinstance(wrapper, FullyShardedDataParallel):
        return bool(wrapper._sync_gradients)
    return read_attribute(_sharded_group(wrapper), "reduce_grads") is not False


def _sharded_group(wrapper: nn.Module) -> Any:
    """What FSDP2 keeps of the parameters of a module of its own; None for any other module."""
    find = read_attribute(wrapper, "_get_fsdp_state")
    return None if find is None else read_attribute(find(), "_fsdp_param_group")
