"""``${other.key}`` in a configuration, as AReaL's YAML files have it (OmegaConf's notation)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from areal_callbacks.config.messages import show

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_ENVIRONMENT = "oc.env:"
_DEEPEST = 16


def resolve(value: Any, document: Mapping[str, Any], source: str) -> Any:
    """``value`` with every ``${a.b}`` replaced by what the document holds there.

    ``${oc.env:NAME}`` and ``${oc.env:NAME,default}`` read the environment. A reference that is the whole text keeps the
    type of what it refers to.

    Args:
        value: of the document: a mapping, list or scalar.
        document: the whole configuration.
        source: where it came from, for messages.

    Raises:
        ValueError: a reference leads nowhere, or in a circle.
    """
    return _resolve(value, document, source, _DEEPEST)


def _resolve(value: Any, document: Mapping[str, Any], source: str, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _resolve(item, document, source, depth) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_resolve(item, document, source, depth) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    if depth == 0:
        raise ValueError(f"{source}: {show(value)} refers to itself")
    whole = _REFERENCE.fullmatch(value)
    if whole is not None:
        return _resolve(_look_up(whole[1], document, source), document, source, depth - 1)
    return _REFERENCE.sub(
        lambda match: str(_resolve(match[0], document, source, depth - 1)),
        value,
    )


def _look_up(reference: str, document: Mapping[str, Any], source: str) -> Any:
    if reference.startswith(_ENVIRONMENT):
        name, _, default = reference.removeprefix(_ENVIRONMENT).partition(",")
        found = os.environ.get(name.strip(), default.strip() or None)
        if found is None:
            raise ValueError(f"{source}: ${{{reference}}}: there is no such environment variable")
        return found
    value: Any = document
    for key in reference.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"{source}: ${{{show(reference)[1:-1]}}}: the configuration has no such key")
        value = value[key]
    return value
