"""Whether the calls of a module run compiled, so that what is inside them is not called, and what was compiled."""

from __future__ import annotations

from torch import nn


def runs_compiled(module: nn.Module) -> bool:
    """Whether ``module.compile()`` put compiled code in the place of its calls.

    Where the compiler is switched off (``TORCHDYNAMO_DISABLE=1``) it puts the plain call there.
    """
    compiled = module._compiled_call_impl
    return compiled is not None and compiled != module._call_impl


def uncompiled(module: nn.Module) -> nn.Module:
    """What ``torch.compile(module)`` was given, for what that returned; any other module itself."""
    return module.get_submodule("_orig_mod") if type(module).__name__ == "OptimizedModule" else module
