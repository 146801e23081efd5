"""ms-swift: an external plugin, which makes ``areal`` one of its callbacks.

::

    echo "import areal_callbacks.integrations.swift" > areal_plugin.py
    swift sft --external_plugins areal_plugin.py --callbacks areal ...

The plugin is a file of the user's own, as ms-swift puts the folder of the file first on Python's path. It is configured
by the environment variable ``AREAL_CALLBACKS``.
"""

from __future__ import annotations

from typing import Any

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

try:
    from swift.callbacks import callbacks_map
except ImportError as error:
    raise ImportError("this plugin needs ms-swift: pip install ms-swift") from error

NAME = "areal"


def make_callback(args: Any, trainer: Any) -> AReaLMetricsCallback:  # noqa: ARG001
    """What ms-swift calls for each of its ``--callbacks``, with its arguments and its trainer."""
    return AReaLMetricsCallback()


callbacks_map[NAME] = make_callback
