"""The moment at which Accelerate's data loaders move a batch to the device; the Hugging Face Trainer uses them, too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from areal_callbacks.safety.door import attempt
from areal_callbacks.safety.patches import Patches
from areal_callbacks.session.spans import include_calls


def include_batch_moves(
    patches: Patches, include: Callable[[], AbstractContextManager[None]], is_training: Callable[[object], bool]
) -> None:
    """Count moving a batch as training time.

    Args:
        patches: take the wrap off again.
        include: the session's ``included``.
        is_training: given the batch, says whether it is moved for training.
    """

    def wrap() -> None:
        from accelerate import data_loader

        include_calls(patches, data_loader, "send_to_device", include, is_training)

    attempt("accelerate:batches", "moving batches is left out of the training time", wrap)
