"""Adds the callbacks to trainers that a script makes, as soon as the script imports their framework."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from areal_callbacks.config import MetricsConfig
from areal_callbacks.patches import Patches

_PATCHES = Patches()


def observe_frameworks() -> None:
    """From now on, every trainer or accelerator that is made in this process is observed, once.

    Raises:
        ValueError: a bad ``AREAL_CALLBACKS``, before anything runs.
    """
    MetricsConfig.from_environment()
    for name, observe in _FRAMEWORKS.items():
        if name in sys.modules:
            observe(sys.modules[name])
        else:
            sys.meta_path.insert(0, _AfterImport(name, observe))


def stop_observing() -> None:
    """Undo :func:`observe_frameworks` for what is made from now on."""
    _PATCHES.undo()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _AfterImport)]


def _observe_accelerate(module: ModuleType) -> None:
    def around(original: Callable[..., None], accelerator: Any, *args: Any, **kwargs: Any) -> None:
        original(accelerator, *args, **kwargs)
        if not _made_by_trainer():
            from areal_callbacks.integrations.accelerate import enable

            enable(accelerator)

    _PATCHES.wrap(module.Accelerator, "__init__", around)


def _observe_transformers(module: ModuleType) -> None:
    def around(original: Callable[..., None], trainer: Any, *args: Any, **kwargs: Any) -> None:
        original(trainer, *args, **kwargs)
        from areal_callbacks.integrations.transformers import AReaLMetricsCallback

        if not any(isinstance(callback, AReaLMetricsCallback) for callback in trainer.callback_handler.callbacks):
            trainer.add_callback(AReaLMetricsCallback())

    _PATCHES.wrap(module.Trainer, "__init__", around)


def _observe_lightning(module: ModuleType) -> None:
    def around(original: Callable[..., None], trainer: Any, *args: Any, **kwargs: Any) -> None:
        original(trainer, *args, **kwargs)
        from areal_callbacks.integrations.lightning import AReaLMetricsCallback

        if not any(isinstance(callback, AReaLMetricsCallback) for callback in trainer.callbacks):
            trainer.callbacks.insert(0, AReaLMetricsCallback())  # checkpoint callbacks stay last

    _PATCHES.wrap(module.Trainer, "__init__", around)


_FRAMEWORKS: dict[str, Callable[[ModuleType], None]] = {
    "accelerate.accelerator": _observe_accelerate,
    "transformers.trainer": _observe_transformers,
    "lightning.pytorch.trainer.trainer": _observe_lightning,
    "pytorch_lightning.trainer.trainer": _observe_lightning,
}


def _made_by_trainer() -> bool:
    """A Hugging Face Trainer makes an accelerator of its own, which its callback observes."""
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    frame = sys._getframe(1)
    while trainer is not None and frame is not None:
        if isinstance(frame.f_locals.get("self"), trainer):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module right after its first import."""

    def __init__(self, name: str, observe: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._observe = observe

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._observe(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
