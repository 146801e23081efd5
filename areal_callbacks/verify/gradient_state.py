"""Which calls train: gradients were asked for, and no checkpoint is computing again what it has computed before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from torch.autograd.function import Function
from torch.autograd.graph import _engine_run_backward

_ENGINE = _engine_run_backward.__code__
_CHECKPOINTS = "torch/utils/checkpoint.py"
_STAGES = "torch/distributed/pipelining/stage.py"
_MARK = "_recounted"


class GradientState:
    """Follows calls of ``torch.autograd.Function`` while entered, whose forwards run without gradients.

    A call trains if gradients are enabled, or were where the enclosing autograd function was called, and the frames
    between the call and the nearest backward hold no recomputation. The recomputations:

    * ``recompute_fn`` of torch's non-reentrant checkpoint;
    * the ``backward`` of an autograd function whose own ``forward`` ran training calls (torch's reentrant checkpoint,
      and others of its form).

    A forward with gradients in a hook of backward is neither, and trains. What a stage of torch's pipelines computes
    of made-up inputs, to learn the shapes of its outputs, does not.
    """

    def __init__(self) -> None:
        self._asked = threading.local()

    def __enter__(self) -> Self:
        original = vars(Function)["apply"]

        def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
            stack = self._stack()
            stack.append(torch.is_grad_enabled())
            try:
                return original.__func__(cls, *args, **kwargs)
            finally:
                stack.pop()

        self._original = original
        Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        Function.apply = self._original  # type: ignore[method-assign]

    def trains(self) -> bool:
        """Whether the call that is running on this thread trains."""
        stack = self._stack()
        if not (torch.is_grad_enabled() or (stack and stack[0])):
            return False
        frames = list(list_frames())
        for frame in frames:  # in a recomputation, too: autograd functions inside it recompute in a backward of its own
            if frame.f_code.co_name == "forward" and (context := _context_of(frame)) is not None:
                setattr(context, _MARK, True)
        return not any(_recomputes(frame) or _learns_shapes(frame) for frame in frames)

    def recomputes(self) -> bool:
        """Whether a checkpoint is computing again what runs on this thread."""
        return any(_recomputes(frame) for frame in list_frames())

    def _stack(self) -> list[bool]:
        if not hasattr(self._asked, "stack"):
            self._asked.stack = []
        stack: list[bool] = self._asked.stack
        return stack


def list_frames() -> Iterator[FrameType]:
    """The Python frames from the caller outwards, as far as the nearest backward."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _ENGINE:
        yield frame
        frame = frame.f_back


def _recomputes(frame: FrameType) -> bool:
    name = frame.f_code.co_name
    if name == "recompute_fn":
        return _is_of(frame, _CHECKPOINTS)
    return name == "backward" and getattr(_context_of(frame), _MARK, False)


def _learns_shapes(frame: FrameType) -> bool:
    return frame.f_code.co_name == "_compute_outputs" and _is_of(frame, _STAGES)


def _is_of(frame: FrameType, file: str) -> bool:
    return frame.f_code.co_filename.replace("\\", "/").endswith(file)


def _context_of(frame: FrameType) -> Any:
    """The ``ctx`` of an autograd function's own frame, else None."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return first if isinstance(first, torch.autograd.function.BackwardCFunction) else None
