"""A configuration as JSON-safe data without its secrets: what files and trackers may show to others."""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Real
from typing import Any

from areal_callbacks.core.numbers import as_number
from areal_callbacks.writers.secret_names import Secrecy, holds_secret, is_header, is_plain, judge_name
from areal_callbacks.writers.secret_shapes import hide_shapes
from areal_callbacks.writers.secret_text import REDACTED, redact_text

__all__ = ["REDACTED", "as_json_number", "redact"]

LEFT_OUT = "[left out: too large]"
"""Stands for what lies too deep, or comes after the budget of characters is spent."""

_MAX_DEPTH = 32
_MAX_TEXT = 1 << 16
_BUDGET = 1 << 21
_PER_VALUE = 8

_FLAG = re.compile(r"-{1,2}([A-Za-z_][\w.-]{0,200})")
_LOGIN_FLAGS = frozenset(("-u", "-U", "--user", "--proxy-user"))
_LOGIN = re.compile(r"([^\s:]{1,100}:)\S+")


def redact(config: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON-safe copy of ``config`` with the values of secrets replaced by ``[redacted]``.

    Secret is what a name says (``wandb_api_key``, ``password``, ``hub_token``, but neither ``max_tokens`` nor
    ``pad_token``), as a key, as an option of a command line, as a header, as a parameter of a URL, in JSON inside of a
    string; and what has the shape of a secret: ``user:password@`` in URLs, tokens of known services, private keys, long
    random texts. Non-finite numbers become the strings "NaN", "Infinity", "-Infinity"; what JSON cannot hold becomes
    its ``str``.

    The copy has at most some 2 million characters, whatever refers to itself or how often: texts are cut at 65,536
    characters, and what is nested deeper than 32 levels, or comes after the rest, is left out.
    """
    return _Copy().copy_mapping(config, _MAX_DEPTH)


def as_json_number(number: float) -> float | str:
    """``number`` as JSON can hold it: "NaN", "Infinity" or "-Infinity" where it is not finite."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else ("Infinity" if number > 0 else "-Infinity")


class _Copy:
    """One copy of a configuration, which counts its characters."""

    def __init__(self) -> None:
        self._left = _BUDGET

    def copy_mapping(self, config: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        """The entries in their order; of ``{"name": "HF_TOKEN", "value": ...}`` the first says what the second is."""
        named = next((name for key in ("name", "key") if isinstance(name := config.get(key), str)), "")
        copies: dict[str, Any] = {}
        for key, value in config.items():
            if self._left <= 0:
                copies["..."] = LEFT_OUT
                break
            name = hide_shapes(self._take(key), REDACTED)
            names_value = key == "value" and judge_name(named) is not Secrecy.NONE
            copies[name] = self._copy(named if names_value else name, value, depth)
        return copies

    def _copy(self, name: str, value: object, depth: int) -> Any:
        """``value`` as it may be shown under ``name``."""
        self._left -= _PER_VALUE
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, enum.Enum):
            return self._copy(name, value.value, depth - 1) if depth > 0 else LEFT_OUT
        if holds_secret(name, value):
            return REDACTED
        if isinstance(value, Real) and (number := as_number(value)) is not None:
            return as_json_number(number)
        return self._copy_text(self._take(value), depth) if isinstance(value, str) else self._open(name, value, depth)

    def _open(self, name: str, value: object, depth: int) -> Any:
        """A container item by item; of anything else what it prints."""
        items = _read_items(value)
        if items is None:
            return redact_text(self._take(value))
        if depth <= 0:
            return LEFT_OUT
        if isinstance(items, Mapping):
            return self.copy_mapping(items, depth - 1)
        return list(self._copy_items(name, items, depth - 1))

    def _copy_items(self, name: str, items: Sequence[Any], depth: int) -> Iterator[Any]:
        """Each item under the name of the list, or of the option or header before it."""
        is_login = any(isinstance(item, str) and item.endswith("curl") for item in items[:100])
        are_headers = all(map(_is_pair, items))
        before: object = None
        for item in items:
            if self._left <= 0:
                yield LEFT_OUT
                return
            option = _read_option(before, item, len(items))
            if are_headers and self._left > 0:
                yield [redact_text(self._take(item[0])), self._copy(item[0], item[1], depth)]
                continue
            if is_login and before in _LOGIN_FLAGS and isinstance(item, str):
                item = _LOGIN.sub(rf"\1{REDACTED}", item)
            yield self._copy(option or name, item, depth)
            before = item

    def _copy_text(self, text: str, depth: int) -> str:
        """Text; JSON inside of it is opened."""
        document = _read_json(text) if depth > 0 else None
        if document is None:
            return redact_text(text)
        copied = self._open("", document, depth)
        return text if copied == document else json.dumps(copied, ensure_ascii=False)

    def _take(self, value: object) -> str:
        """What ``value`` prints, cut, and taken off the budget."""
        text = value if isinstance(value, str) else _print(value)
        if len(text) > _MAX_TEXT:
            text = f"{text[:_MAX_TEXT]} [{len(text) - _MAX_TEXT} more characters]"
        self._left -= len(text)
        return text


def _read_items(value: object) -> Mapping[Any, Any] | Sequence[Any] | None:
    """The entries or items of a container; None for anything else. Sets in an order that is the same in every run."""
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(value, key=_print)
    return value if isinstance(value, list | tuple) else None


def _read_option(before: object, item: object, length: int) -> str:
    """The name that ``before`` gives to ``item``: ``--token S``, or a pair of a header and its value."""
    if not isinstance(before, str):
        return ""
    flag = _FLAG.fullmatch(before)
    if flag is not None:
        return "" if isinstance(item, str) and item.startswith("-") else flag[1]
    is_pair = length == 2 and isinstance(item, str) and (is_header(before) or not is_plain(item))
    return before if is_pair and judge_name(before) is not Secrecy.NONE else ""


def _is_pair(item: object) -> bool:
    """Of a list of headers, or of the items of a dictionary."""
    return isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str)


def _read_json(text: str) -> Mapping[Any, Any] | Sequence[Any] | None:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict | list) else None


def _print(value: object) -> str:
    """``str(value)``, or its type where that fails: an object of a host may raise anything."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001
        return f"<{type(value).__name__}>"
