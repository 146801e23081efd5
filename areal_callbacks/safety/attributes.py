"""Reading what an object of the host says about itself."""

from __future__ import annotations

from typing import Any


def read_attribute(owner: object, name: str) -> Any:
    """An attribute of an object of the host; None if there is none, or if it is a property that raises.

    Objects are asked for what only some of them have, maybe before they are set up.
    """
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - then it has no value
        return None
