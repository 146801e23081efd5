"""In which number format a model computes its matrix products, seen in its first training forward."""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from areal_callbacks.flops.peaks import computing_dtype
from areal_callbacks.monitors.compilation import runs_compiled
from areal_callbacks.monitors.training_forward import TrainingForward
from areal_callbacks.safety.door import Observer
from areal_callbacks.safety.hooks import Attachments

_SAMPLE = 64
_FP8 = ("Float8Linear", "FP8Linear")
_OTHER_FORMATS = ("Linear8bitLt", "MXLinear", "NVFP4Linear")
"""Layers of bitsandbytes and torchao whose products are in a format without a column in the table of peaks."""


class ProductFormat(Observer):
    """Reads the dtype that layers with weights put out, which autocast, wherever a host enters it, has decided.

    A sample of the layers is hooked for one training forward; the format of the most weights counts. What is compiled
    is not hooked: then autocast around the forward tells, or weights of 16 bits. float32 weights alone do not, because
    a host may enter autocast inside of what is compiled.

    Args:
        parts: of the model.
        device: where it trains.
        forward: tells which forwards train.
    """

    family = "product_format"

    def __init__(self, parts: Sequence[nn.Module], device: torch.device, forward: TrainingForward) -> None:
        self._device = device
        self._forward = forward
        self._parts = weakref.WeakSet(parts)
        self._weights: Counter[str] = Counter()
        self._autocast: str | None = None
        self._attachments = Attachments(self)
        for module in _sample(list(_find_matrices(parts))):
            weights = cast("Tensor", module.weight).numel()
            self._attachments.hook(module.register_forward_hook, functools.partial(self._see, weights))

    def on_forward(self) -> None:
        """The first training forward begins."""
        if torch.is_autocast_enabled(self._device.type):
            self._autocast = str(torch.get_autocast_dtype(self._device.type))

    def _see(self, weights: int, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._forward.active and not torch.compiler.is_compiling() and (name := _format_of(module, output)):
            self._weights[name] += weights

    def detach(self) -> None:
        """Take the hooks off."""
        self._attachments.undo()

    def take(self) -> str | None:
        """A column of the table of peaks, and no hooks any more; None where the format cannot be told."""
        self.detach()
        found = self._weights.most_common(1)[0][0] if self._weights else self._guess()
        self._parts.clear()
        if self.failed or found is None or found in _OTHER_FORMATS:
            return None
        return computing_dtype(found, tf32=self._device.type == "cuda" and allows_tf32(), fp8=found == "fp8")

    def _guess(self) -> str | None:
        dtypes = {p.dtype for part in self._parts for p in part.parameters() if p.dim() > 1 and p.is_floating_point()}
        halves = [str(dtype) for dtype in dtypes if dtype.itemsize == 2]
        return self._autocast or (halves[0] if len(halves) == len(dtypes) == 1 else None)


def allows_tf32() -> bool:
    """Whether float32 products of CUDA devices may use TensorFloat-32."""
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)  # since PyTorch 2.9, where reading allow_tf32 may raise
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def _find_matrices(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Layers that multiply by a matrix of their own, outside of what is compiled."""
    for module in modules:
        if runs_compiled(module) or type(module).__name__ == "OptimizedModule":
            continue
        weight = dict(module.named_parameters(recurse=False)).get("weight")
        if weight is not None and weight.dim() == 2 and "Embedding" not in type(module).__name__:
            yield module
        yield from _find_matrices(module.children())


def _sample(modules: list[nn.Module]) -> list[nn.Module]:
    return modules[:: -(-len(modules) // _SAMPLE) or 1]


def _format_of(module: nn.Module, output: Any) -> str | None:
    name = type(module).__name__
    if name in _OTHER_FORMATS:
        return name
    if name in _FP8 or _is_fp8_of_transformer_engine(module):
        return "fp8"
    outputs = output if isinstance(output, tuple | list) else (output,)
    return next((str(o.dtype) for o in outputs if isinstance(o, Tensor) and o.is_floating_point()), None)


def _is_fp8_of_transformer_engine(module: nn.Module) -> bool:
    """Its layers compute in fp8 inside ``fp8_autocast``."""
    if not any(cls.__module__.startswith("transformer_engine") for cls in type(module).__mro__):
        return False
    states = getattr(sys.modules.get("transformer_engine.pytorch.fp8"), "FP8GlobalStateManager", None)
    return states is not None and bool(states.is_fp8_enabled())
