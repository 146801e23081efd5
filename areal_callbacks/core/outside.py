"""A number in place of the elements that a mask leaves out, so that a reduction over all is one over the others."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {
    torch.float16: (torch.int16, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float32: (torch.int32, 0x7F80_0000),
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000),
}
"""Floating dtype → integers of its width, and the one with the bits of infinity (IEEE 754: an exponent of ones)."""


class Outside:
    """Fills what one mask leaves out of tensors on the CPU; made once for all tensors under that mask.

    The bits of an element are cleared and those of the number set: ``torch.where`` takes elements one by one there, and
    needs fifteen times as long as an operation on bits.

    Args:
        mask: bool, on the CPU; False is outside.
    """

    def __init__(self, mask: Tensor) -> None:
        self._mask = mask
        self._masks: dict[torch.dtype, tuple[Tensor, Tensor]] = {}
        self._infinities: dict[tuple[torch.dtype, bool], Tensor] = {}

    def zero(self, values: Tensor) -> Tensor:
        """A copy of floating-point values with 0 outside."""
        integers, _ = _INTEGERS[values.dtype]
        inside, _ = self._bits(integers)
        return (values.view(integers) & inside).view(values.dtype)

    def fill_infinite_(self, zeroed: Tensor, *, negative: bool = False) -> Tensor:
        """What :meth:`zero` returned, in place with inf outside; then, or at once, with -inf."""
        integers, _ = _INTEGERS[zeroed.dtype]
        zeroed.view(integers).bitwise_or_(self._infinity(zeroed.dtype, negative))
        return zeroed

    def _bits(self, integers: torch.dtype) -> tuple[Tensor, Tensor]:
        """All bits inside and none outside, and the opposite."""
        if integers not in self._masks:
            inside = self._mask.to(integers).neg_()
            self._masks[integers] = inside, ~inside
        return self._masks[integers]

    def _infinity(self, dtype: torch.dtype, negative: bool) -> Tensor:
        """The bits of an infinity outside, none inside."""
        if (dtype, negative) not in self._infinities:
            integers, bits = _INTEGERS[dtype]
            sign = torch.iinfo(integers).min if negative else 0
            self._infinities[dtype, negative] = self._bits(integers)[1] & (bits + sign)
        return self._infinities[dtype, negative]


def is_plain(tensor: Tensor) -> bool:
    """Whether :class:`Outside` can read the bits: a tensor on the CPU, and no stand-in for one (fake, distributed)."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor


def with_known_bits(values: Tensor) -> Tensor:
    """The values in a dtype that :class:`Outside` takes: their own, or else float64."""
    return values if values.dtype in _INTEGERS else values.double()
