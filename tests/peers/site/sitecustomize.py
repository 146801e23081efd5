"""Python runs this at its start where this folder is on the path: each trainer made in the process gets our callback.

So do those in processes that a test launches.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType


def observe_fabric(module: ModuleType) -> None:
    """Fabric has no place for a script's callbacks but its constructor."""
    from areal_callbacks.integrations.lightning import AReaLFabricCallback

    original = module.Fabric.__init__

    def construct(self: object, *args: object, **kwargs: object) -> None:
        given = kwargs.get("callbacks") or []
        kwargs["callbacks"] = [*(given if isinstance(given, list) else [given]), AReaLFabricCallback()]
        original(self, *args, **kwargs)

    module.Fabric.__init__ = construct


if os.environ.get("AREAL_PEERS") == "attached":
    from areal_callbacks.run import autoload

    autoload.observe_frameworks()
    sys.meta_path.insert(0, autoload._AfterImport("lightning.fabric.fabric", observe_fabric))
