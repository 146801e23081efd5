"""Reads configurations from YAML, JSON and the environment: the same fault has the same message everywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from areal_callbacks.config.messages import show

ENVIRONMENT_VARIABLE = "AREAL_CALLBACKS"


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

    def parse(text: str | bytes) -> object:
        document = yaml.safe_load(text)
        return {} if document is None else document

    return _parse(parse, (yaml.YAMLError, ValueError), "YAML", _read(path), os.fspath(path))


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a JSON file; ValueError as :func:`read_yaml`."""
    return parse_json(_read(path), os.fspath(path))


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


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{os.fspath(path)}: cannot read this configuration file: {reason}") from None


def _parse(
    parse: Callable[[str | bytes], object],
    faults: tuple[type[Exception], ...],
    language: str,
    text: str | bytes,
    source: str,
) -> dict[str, Any]:
    try:
        document = parse(text)
    except RecursionError:
        raise ValueError(f"{source}: malformed {language}: nested too deeply") from None
    except faults as error:
        raise ValueError(f"{source}: malformed {language}: {error}") from None
    return expect_mapping(document, source)
