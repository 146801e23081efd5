"""Generation inside a training step is no training time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from areal_callbacks.safety.patches import Patches


class Rollouts:
    """Takes every call of ``generate`` on an observed model out of the training time.

    Args:
        is_training: training time runs now.
        excluded: takes out what runs inside it, as ``timeperf/rollout``.
    """

    def __init__(self, is_training: Callable[[], bool], excluded: Callable[[], AbstractContextManager[None]]) -> None:
        self._is_training = is_training
        self._excluded = excluded
        self._patches = Patches("rollout")

    def observe(self, models: Iterable[nn.Module]) -> None:
        """Every module in these models whose class has a method ``generate``."""
        for module in {module for model in models for module in model.modules() if _generates(module)}:
            if "generate" not in vars(module):
                self._patches.wrap(module, "generate", self._around)

    def undo(self) -> None:
        """Leave the models alone."""
        self._patches.undo()

    def _around(self, *args: Any, **kwargs: Any) -> Generator[None]:
        if not self._is_training():  # a model calls the ``generate`` of the one inside it
            return
        with self._excluded():
            yield


def _generates(module: nn.Module) -> bool:
    return callable(getattr(type(module), "generate", None))
