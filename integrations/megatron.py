"""Megatron: loops over megatron.core, and Megatron-LM's own ``pretrain``, in a changed script or an unchanged one.

::

    torchrun ... -m areal_callbacks.integrations.megatron pretrain_gpt.py ...      # a script as it is

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
from pathlib import Path
from types import ModuleType
from typing import Any, Unpack

if __name__ == "__main__" and len(sys.argv) > 1:  # a Megatron beside the script comes before an installed one
    sys.path[0] = str(Path(sys.argv[1]).resolve().parent)

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.integrations._megatron_lm import Installation, import_training
from areal_callbacks.integrations._megatron_run import AReaLMetricsCallback
from areal_callbacks.integrations._megatron_session import MegatronSession, attach, make_topology

__all__ = ["AReaLMetricsCallback", "MegatronSession", "attach", "install", "main", "make_topology", "uninstall"]

_installed: list[Installation] = []


def install(
    training: ModuleType | None = None,
    *,
    config: MetricsConfig | Mapping[str, Any] | str | None = None,
    writer_rank: int | None = None,
    **options: Unpack[MetricsOptions],
) -> None:
    """Make Megatron-LM's ``pretrain`` measure; call it before ``pretrain``. An earlier installation is replaced.

    Args:
        training: the module that holds Megatron-LM's training functions; by default ``megatron.training.training``.
        config: as for :func:`attach`.
        writer_rank: as for :func:`attach`.
        **options: configuration keys.

    Raises:
        ImportError: there is no Megatron-LM.
        RuntimeError: a function of its training loop is missing or lacks an argument; names it and the version.
        ValueError: an unknown key or a bad value, with the choices.
    """
    uninstall()
    settings = MetricsConfig.make(config, **options)
    _installed.append(Installation(training or import_training(), settings, writer_rank))


def uninstall() -> None:
    """Put every function of Megatron-LM back and close what still measures; without an installation, nothing."""
    while _installed:
        _installed.pop().undo()


def main() -> None:
    """``python -m areal_callbacks.integrations.megatron SCRIPT ...``: run a Megatron-LM script and measure it.

    All arguments belong to the script; the configuration comes from the environment variable ``AREAL_CALLBACKS``.
    """
    if len(sys.argv) < 2:
        sys.exit("usage: python -m areal_callbacks.integrations.megatron SCRIPT [ARGUMENTS ...]")
    del sys.argv[0]
    install()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        uninstall()


if __name__ == "__main__":
    from areal_callbacks.integrations import megatron  # not this copy of the module, which the script cannot see

    megatron.main()
