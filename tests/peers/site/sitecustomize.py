"""Python runs this at its start where this folder is on the path: each trainer made in the process gets our callback.

So do those in processes that a test launches.
"""

from __future__ import annotations

import os

if os.environ.get("AREAL_PEERS") == "attached":
    from areal_callbacks.run.autoload import observe_frameworks

    observe_frameworks()
