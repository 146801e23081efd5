"""Adds the callbacks to trainers that a script makes, as soon as the script imports their framework."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Generator
from functools import partial
from types import ModuleType
from typing import Any

from areal_callbacks.config import MetricsConfig
from areal_callbacks.run.after_import import AfterImport
from areal_callbacks.run.marks import mark_training
from areal_callbacks.safety.door import attempt
from areal_callbacks.safety.patches import Patches

_patches = Patches("autoload")
_undo = contextlib.ExitStack()
_added: weakref.WeakSet[Any] = weakref.WeakSet()


def observe_frameworks() -> None:
    """Observe the trainers, accelerators and Fabrics that are made in this process from now on, and Megatron-LM.

    Calling it again does nothing.

    Raises:
        ValueError: a bad ``AREAL_CALLBACKS``, before anything runs.
    """
    MetricsConfig.from_environment()
    if _is_observing():
        return
    for name, observe in _FRAMEWORKS.items():
        observe_safely = partial(_attempt, name, observe)
        if name in sys.modules:
            observe_safely(sys.modules[name])
        else:
            sys.meta_path.insert(0, AfterImport(name, observe_safely))


def stop_observing() -> None:
    """Undo :func:`observe_frameworks` for what is made from now on."""
    _patches.undo()
    _undo.close()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AfterImport)]


def _is_observing() -> bool:
    return len(_patches) > 0 or any(isinstance(finder, AfterImport) for finder in sys.meta_path)


def _attempt(name: str, action: Callable[..., None], *args: Any) -> None:
    """Report what fails, so that a script that runs without this package runs with it."""
    attempt(f"autoload:{name}", f"{name} cannot be observed", action, *args)


def _after_init(cls: type, name: str, observe: Callable[[Any], None]) -> None:
    def around(instance: Any, *args: Any, **kwargs: Any) -> Generator[None]:  # noqa: ARG001
        yield
        _attempt(name, observe, instance)

    _patches.wrap(cls, "__init__", around)


def _observe_accelerate(module: ModuleType) -> None:
    _after_init(module.Accelerator, "accelerate", _enable)


def _enable(accelerator: Any) -> None:
    if not _trainer_is_calling():
        from areal_callbacks.integrations.accelerate import enable

        enable(accelerator)


def _observe_transformers(module: ModuleType) -> None:
    _after_init(module.Trainer, "transformers", _add_to_trainer)
    _patches.wrap(module.Trainer, "add_callback", _around_add_callback)


def _add_to_trainer(trainer: Any) -> None:
    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    if not any(isinstance(callback, AReaLMetricsCallback) for callback in trainer.callback_handler.callbacks):
        callback = AReaLMetricsCallback()
        trainer.add_callback(callback)
        _added.add(callback)


def _around_add_callback(trainer: Any, callback: Any) -> Generator[None]:
    """Remove the callback that was added here if the script adds one of its own."""
    for ours in [known for known in trainer.callback_handler.callbacks if known in _added]:
        if callback is type(ours) or isinstance(callback, type(ours)):
            trainer.remove_callback(ours)
    yield


def _observe_lightning(module: ModuleType) -> None:
    _after_init(module.Trainer, "lightning", _add_to_lightning)


def _add_to_lightning(trainer: Any) -> None:
    from areal_callbacks.integrations.lightning import AReaLMetricsCallback

    if not any(isinstance(callback, AReaLMetricsCallback) for callback in trainer.callbacks):
        trainer.callbacks.insert(0, AReaLMetricsCallback())  # checkpoint callbacks stay last


def _observe_fabric(module: ModuleType) -> None:
    _after_init(module.Fabric, "fabric", _add_to_fabric)


def _add_to_fabric(fabric: Any) -> None:
    from areal_callbacks.integrations.lightning import AReaLFabricCallback, AReaLMetricsCallback

    ours = (AReaLFabricCallback, AReaLMetricsCallback)
    if not any(isinstance(callback, ours) for callback in fabric._callbacks):
        fabric._callbacks.append(AReaLFabricCallback())


def _observe_megatron(module: ModuleType) -> None:
    if os.environ.get("ACCELERATE_USE_MEGATRON_LM", "").lower() == "true":
        return  # Accelerate's engine calls some of these functions in a loop of its own
    from areal_callbacks.integrations.megatron import install, uninstall

    install(module)
    _undo.callback(uninstall)


def _observe_sessions(module: ModuleType) -> None:
    _patches.wrap(module.MetricsSession, "attach", _around_attach)


def _around_attach(*args: Any, **kwargs: Any) -> Generator[None]:  # noqa: ARG001
    yield
    mark_training()


_FRAMEWORKS: dict[str, Callable[[ModuleType], None]] = {
    "accelerate.accelerator": _observe_accelerate,
    "transformers.trainer": _observe_transformers,
    "megatron.training.training": _observe_megatron,
    "lightning.pytorch.trainer.trainer": _observe_lightning,
    "pytorch_lightning.trainer.trainer": _observe_lightning,
    "lightning.fabric.fabric": _observe_fabric,
    "lightning_fabric.fabric": _observe_fabric,
    "areal_callbacks.session.session": _observe_sessions,
}


def _trainer_is_calling() -> bool:
    """A Hugging Face Trainer makes an accelerator of its own, which its callback observes."""
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    frame = sys._getframe(1)
    while trainer is not None and frame is not None:
        if isinstance(frame.f_locals.get("self"), trainer):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
