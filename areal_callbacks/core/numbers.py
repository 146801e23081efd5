"""One conversion to Python numbers of whatever a host reports or a user records. Loads no torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from torch import Tensor


def as_number(value: object) -> float | int | None:
    """``value`` as a Python number, or None where it is not one real number. Never raises, never communicates.

    ============================================  ==================================================================
    Given                                         Result
    ============================================  ==================================================================
    Python and NumPy integers, bool               int, all digits
    other real numbers (NumPy, Decimal, ...)      float; NaN and infinities stay
    tensor or array with one element              float; waits for its device
    DTensor with one element                      float where this rank holds the full value, else None: reading the
                                                  full value is a collective, and other ranks may not be here
    meta or fake tensor, masked element           None: there is no value
    an integer that no float can hold             None
    complex number, text, bytes, anything else    None
    ============================================  ==================================================================
    """
    if type(value) is float:
        return value
    try:
        plain = _read_element(value)
        if not hasattr(plain, "__float__") and not hasattr(plain, "__index__"):
            return None
        number = float(plain)
        return int(value) if isinstance(value, Integral) else number
    except Exception:  # noqa: BLE001 - a host may report any object, whose methods may raise anything
        return None


def keep_numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Those of a mapping that :func:`as_number` takes, as floats."""
    numbers = {name: as_number(value) for name, value in values.items()}
    return {name: float(number) for name, number in numbers.items() if number is not None}


def read_local(tensor: Tensor) -> Tensor | None:
    """The values of a tensor, detached, on its device and as they are on this rank.

    Neither communicates nor waits for the device.

    Args:
        tensor: any shape, floating, integer or bool.

    Returns:
        A plain tensor. None if there are no values (meta device, fake tensor), or if it is a DTensor of which this rank
        holds only a part.
    """
    local = _read_local_part(tensor) if hasattr(tensor, "placements") else tensor
    if local is None or local.is_meta or hasattr(local, "fake_mode"):
        return None
    return local.detach()


def _read_element(value: object) -> Any:
    """What an array or tensor with one element holds; everything else as it is."""
    if _is_tensor(value):
        scalar = read_local(value)
        return None if scalar is None else scalar.item()
    if not hasattr(value, "dtype"):
        return value
    # NumPy's own float() warns about arrays with one element, drops imaginary parts and ignores masks.
    array: Any = value
    return array.reshape(()).tolist()


def _is_tensor(value: object) -> TypeGuard[Tensor]:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _read_local_part(tensor: Any) -> Tensor | None:
    """Of a DTensor that every mesh dimension either repeats or has one rank for; None if there are other parts."""
    sizes = tensor.device_mesh.shape
    if all(placement.is_replicate() or size == 1 for placement, size in zip(tensor.placements, sizes)):
        local: Tensor = tensor.to_local()
        return local
    return None
