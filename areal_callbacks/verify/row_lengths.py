"""Arguments that tell how many ids of each row are no padding: a number for each row, as recurrent layers take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def name_lengths(holds: Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
    """Arguments that are called lengths, first those that share their first word with the ids.

    Those that share it with another tensor belong to that.

    Args:
        holds: names of the arguments that are the ids.
        arguments: of the call.
    """
    lengths = [name for name in arguments if _is_length(name)]
    mine = {name.split("_")[0] for name in holds}
    tensors = {name for name, value in arguments.items() if isinstance(value, Tensor) and name not in lengths}
    others = {name.split("_")[0] for name in tensors} - mine
    own = [name for name in lengths if name.split("_")[0] in mine]
    return [*own, *(name for name in lengths if name.split("_")[0] not in others)]


def tells_rows(arguments: Mapping[str, Any], rows: int, width: int) -> bool:
    """A mask or lengths for so many rows are among the arguments."""
    shapes = [(name, value.shape) for name, value in arguments.items() if isinstance(value, Tensor)]
    is_masked = any(name.endswith("mask") and shape == (rows, width) for name, shape in shapes)
    return is_masked or any(_is_length(name) and shape == (rows,) for name, shape in shapes)


def _is_length(name: str) -> bool:
    return name.rpartition("_")[2] in ("length", "lengths", "len", "lens")
