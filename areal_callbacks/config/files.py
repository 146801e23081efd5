"""Reads configurations from YAML, JSON and the environment: the same fault has the same message everywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from areal_callbacks.config.messages import show
from areal_callbacks.safety.text import make_printable

ENVIRONMENT_VARIABLE = "AREAL_CALLBACKS"

LARGEST_YAML = 1 << 20
LARGEST_JSON = 1 << 24
"""Bytes. The parser of YAML needs seconds for a megabyte; configurations of models with many labels are JSON."""


class Layer(NamedTuple):
    """Some keys of a configuration.

    Attributes:
        source: where they come from, for messages.
        values: key → value, not checked yet.
    """

    source: str
    values: Mapping[str, Any]


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping in a YAML (or JSON) file; an empty one for an empty file.

    Raises:
        ValueError: the file cannot be read, is malformed or holds something else; names it and the fault.
    """
    import yaml

    from areal_callbacks.config.yaml_loader import BoundedLoader

    def parse(text: str | bytes) -> object:
        document = yaml.load(text, BoundedLoader)
        return {} if document is None else document

    faults = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError)
    return _parse(parse, faults, "YAML", _read(path, LARGEST_YAML), os.fspath(path))


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a JSON file; ValueError as :func:`read_yaml`."""
    return parse_json(_read(path, LARGEST_JSON), os.fspath(path))


def parse_json(text: str | bytes, source: str) -> dict[str, Any]:
    """The object in JSON text that came from ``source``; ValueError as :func:`read_yaml`."""
    return _parse(json.loads, (ValueError,), "JSON", text, source)


def read_environment() -> Layer:
    """The JSON object in ``AREAL_CALLBACKS``; no keys without it. ValueError as :func:`read_yaml`."""
    source = f"environment variable {ENVIRONMENT_VARIABLE}"
    text = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    return Layer(source, parse_json(text, source) if text else {})


def expect_mapping(value: object, source: str) -> dict[str, Any]:
    """A copy of ``value``; ValueError if it is no mapping."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{source}: expected a mapping of keys to values, got {show(value)}")  # noqa: TRY004
    return dict(value)


def _read(path: str | os.PathLike[str], largest: int) -> bytes:
    shown = make_printable(os.fspath(path))
    try:
        with Path(path).open("rb") as file:
            content = file.read(largest + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{shown}: cannot read this configuration file: {reason}") from None
    if len(content) > largest:
        raise ValueError(f"{shown}: a configuration file has at most {largest:,} bytes")
    return content


def _parse(
    parse: Callable[[str | bytes], object],
    faults: tuple[type[Exception], ...],
    language: str,
    text: str | bytes,
    source: str,
) -> dict[str, Any]:
    source = make_printable(source)
    try:
        document = parse(text)
    except RecursionError:
        raise ValueError(f"{source}: malformed {language}: nested too deeply") from None
    except faults as error:
        raise ValueError(f"{source}: malformed {language}: {make_printable(error)}") from None
    return expect_mapping(document, source)
