"""Whether a model is read instead of run: what is recorded into a graph then must not be ours, and counts nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import _symbolic_trace as fx
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)
"""``torch.export`` reads the model; torch 2.6 does not tell."""


def is_captured() -> bool:
    """TorchScript or FX traces the model, or its tensors have no values; for code that is not compiled."""
    if torch._C._get_tracing_state() is not None or getattr(fx, "_is_fx_tracing_flag", False):
        return True
    if not torch._C._len_torch_dispatch_stack():
        return False
    return any(isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack())
