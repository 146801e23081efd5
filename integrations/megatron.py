"""Megatron: loops over megatron.core, and Megatron-LM's own ``pretrain``, in a changed script or an unchanged one.

::

    torchrun ... -m areal_callbacks.run pretrain_gpt.py ...                        # a script as it is

    install()                                                                      # in a script, before pretrain(...)

    with attach(model_chunks, optimizer) as metrics:                               # a loop over megatron.core
        data_iterator = metrics.unmeasured(data_iterator)
        for iteration in range(1, iterations + 1):
            with metrics.step():
                forward_backward(data_iterator=data_iterator, model=model_chunks, ...)
                optimizer.step()
            log(metrics.export(iteration).metrics)
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Unpack

if __name__ == "__main__":  # an older name of that command; nothing of Megatron is imported before the script
    runpy.run_module("areal_callbacks.run", run_name="__main__")
    sys.exit()

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.integrations._megatron_lm import Installation, UnknownLoopError, import_training
from areal_callbacks.integrations._megatron_run import AReaLMetricsCallback
from areal_callbacks.integrations._megatron_session import MegatronSession, attach, make_topology
from areal_callbacks.safety.reporting import report_once

__all__ = ["AReaLMetricsCallback", "MegatronSession", "attach", "install", "make_topology", "uninstall"]

_installed: list[Installation] = []


def install(
    training: ModuleType | None = None,
    *,
    config: MetricsConfig | Mapping[str, Any] | str | None = None,
    writer_rank: int | None = None,
    **options: Unpack[MetricsOptions],
) -> None:
    """Make Megatron-LM's ``pretrain`` measure; call it before ``pretrain``. An earlier installation is replaced.

    Where a function of its training loop is missing or lacks an argument, nothing is measured; one message names it and
    the version.

    Args:
        training: the module that holds Megatron-LM's training functions; by default ``megatron.training.training``.
        config: as for :func:`attach`.
        writer_rank: as for :func:`attach`.
        **options: configuration keys.

    Raises:
        ImportError: there is no Megatron-LM.
        ValueError: an unknown key or a bad value, with the choices.
    """
    uninstall()
    settings = MetricsConfig.make(config, **options)
    training = training or import_training()
    try:
        _installed.append(Installation(training, settings, writer_rank))
    except UnknownLoopError as error:
        report_once(f"megatron:{training.__name__}", str(error))


def uninstall() -> None:
    """Put every function of Megatron-LM back and close what still measures; without an installation, nothing."""
    while _installed:
        _installed.pop().undo()
