"""A configuration as JSON-safe data without its secrets: what files and trackers may show to others."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from numbers import Real
from typing import Any

from areal_callbacks.core.numbers import as_number

REDACTED = "[redacted]"

_SECRET_KEY = re.compile(
    r"(.*_)?(api_?keys?|passwords?|passwd|pwd|passphrase|secrets?|secret_key|access_key|private_key|credentials?"
    r"|authorization|bearer)"
)
_TOKEN_KEY = re.compile(r"(.*_)?token")
# Tokenizer vocabulary, not access tokens.
_VOCABULARY_KEY = re.compile(
    r"(.*_)?(pad|eos|bos|unk|sep|cls|mask|eot|boi|eoi|eom|image|img|video|audio|vision|speech|start|end|begin|stop"
    r"|special|next|per|prefix|middle|suffix|fim|think|tool|mention|placeholder)_token"
)
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_URL_USERINFO = re.compile(r"(?<=://)[^/\s?#]+@")
# Command lines and query strings: ``--hub_token=…``, ``?token=…``.
_ASSIGNED = re.compile(r"(?i)((?:api[_-]?key|token|password|passwd|secret|access[_-]key)=)[^\s&;,'\"]+")
_KNOWN_SHAPE = re.compile(
    r"\b(hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|sk-[A-Za-z0-9_-]{32,}|AKIA[0-9A-Z]{16})\b"
)
_MAX_DEPTH = 32


def redact(config: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON-safe copy of ``config`` with the values of secret keys replaced by ``[redacted]``.

    Whole keys are matched, never parts: ``wandb_api_key``, ``password``, ``hub_token`` are secrets; ``max_tokens``,
    ``pad_token`` are not. Any string loses ``user:password@`` in URLs, the value of ``token=…`` and its like, and what
    has the shape of a key of a known service. Non-finite numbers become the strings "NaN", "Infinity", "-Infinity";
    what JSON cannot hold becomes its ``str``.
    """
    return _redact_mapping(config, _MAX_DEPTH)


def as_json_number(number: float) -> float | str:
    """``number`` as JSON can hold it: "NaN", "Infinity" or "-Infinity" where it is not finite."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else ("Infinity" if number > 0 else "-Infinity")


def _redact_mapping(config: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    return {
        str(key): REDACTED if _is_secret(str(key), value) else _make_safe(value, depth) for key, value in config.items()
    }


def _is_secret(key: str, value: object) -> bool:
    if value is None or isinstance(value, bool) or value == "":
        return False
    name = _WORD_START.sub("_", key).replace("-", "_").lower()
    if _SECRET_KEY.fullmatch(name):
        return True
    return isinstance(value, str) and bool(_TOKEN_KEY.fullmatch(name)) and not _VOCABULARY_KEY.fullmatch(name)


def _make_safe(value: object, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _make_safe(value.value, depth)
    if isinstance(value, Real) and (number := as_number(value)) is not None:
        return as_json_number(number)
    if not isinstance(value, str) and depth > 0:
        if isinstance(value, Mapping):
            return _redact_mapping(value, depth - 1)
        if is_dataclass(value) and not isinstance(value, type):
            return _redact_mapping({field.name: getattr(value, field.name) for field in fields(value)}, depth - 1)
        if isinstance(value, list | tuple | set | frozenset):
            return [_make_safe(item, depth - 1) for item in _sort_sets(value)]
    return _redact_text(str(value))


def _redact_text(text: str) -> str:
    text = _URL_USERINFO.sub(f"{REDACTED}@", text)
    return _KNOWN_SHAPE.sub(REDACTED, _ASSIGNED.sub(rf"\1{REDACTED}", text))


def _sort_sets(items: Iterable[Any]) -> Iterable[Any]:
    """Sets in an order that is the same in every run."""
    return sorted(items, key=str) if isinstance(items, set | frozenset) else items
