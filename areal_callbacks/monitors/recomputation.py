"""Whether a forward only recomputes activations for a backward."""

from __future__ import annotations

import sys
from types import FrameType

import torch
from torch.utils import checkpoint

_UNPACK = "unpack_hook"


def is_recomputation() -> bool:
    """A frame of non-reentrant checkpointing, of which all others that end in it are made, recomputes now.

    Whatever else runs inside backward trains: a gradient cache, a loss in a tensor hook. Reentrant checkpointing needs
    no rule of its own: of its two runs only one has gradients.
    """
    return torch._C._current_graph_task_id() != -1 and _is_unpacking()


def _is_unpacking() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _UNPACK and frame.f_code.co_filename == checkpoint.__file__:
            return True
        frame = frame.f_back
    return False
