"""The model that a command line names: a folder with a config.json, a JSON file, or a model type."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click

from areal_callbacks.cli.errors import explain
from areal_callbacks.config.files import read_json
from areal_callbacks.config.messages import show
from areal_callbacks.flops.fields import read_field
from areal_callbacks.safety.text import make_printable

_MOST_LAYERS = 4_096
_LAYERS = re.compile(r"(n|num|.*_n|.*_num)_(\w+_)?(layers?|blocks)|depth|n_layer|.*_layers")


def read_fields(model_or_config: str) -> dict[str, Any] | None:
    """The fields of a local configuration; None if there is no such path.

    Raises:
        click.ClickException: the file cannot be read, holds no JSON object, or declares more layers than any model has.
    """
    try:
        path = Path(model_or_config).expanduser()
        if not path.exists():
            return None
        fields = read_json(path / "config.json" if path.is_dir() else path)
        _check_layers(fields)
    except (OSError, RuntimeError, ValueError) as error:
        raise click.ClickException(explain(error)) from None
    return fields


def _check_layers(fields: Mapping[str, Any], levels: int = 4) -> None:
    """A model is built, and its FLOPs are summed, layer by layer."""
    for key, value in fields.items():
        if isinstance(value, Mapping) and levels:
            _check_layers(value, levels - 1)
        size = len(value) if isinstance(value, list) and key.startswith("layer") else value
        if isinstance(size, int) and size > _MOST_LAYERS and (_LAYERS.fullmatch(key) or size is not value):
            raise ValueError(f"{make_printable(key, 80)}: at most {_MOST_LAYERS:,} layers, got {show(size)}")


def read_class(config: Any) -> str:
    """The class that a configuration was saved from, whose head it has; "" where it does not say."""
    named = read_field(config, "architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def list_model_types() -> Collection[str]:
    """Those of transformers; ClickException without it."""
    return list(_import_configs())


def fill_defaults(fields: dict[str, Any]) -> Any:
    """The configuration of transformers with these fields and its own defaults for all others.

    Raises:
        click.ClickException: transformers is not installed, does not know the model type or refuses a field.
    """
    configs, model_type = _import_configs(), fields.get("model_type")
    if model_type is None:
        raise click.ClickException("the configuration has no 'model_type'")
    if not isinstance(model_type, str) or model_type not in configs:
        raise click.ClickException(f"transformers knows no model type {show(model_type)}, nor its default dimensions")
    try:
        return configs[model_type].from_dict(_decode_numbers(fields))
    except Exception as error:
        raise click.ClickException(f"not a configuration of {model_type}: {make_printable(error)}") from error


def _decode_numbers(saved: Any) -> Any:
    """transformers writes what JSON has no number for as ``{"__float__": "Infinity"}``."""
    if isinstance(saved, dict):
        if saved.keys() == {"__float__"}:
            return float(saved["__float__"])
        return {name: _decode_numbers(value) for name, value in saved.items()}
    return [_decode_numbers(value) for value in saved] if isinstance(saved, list) else saved


def _import_configs() -> Any:
    try:
        from transformers import CONFIG_MAPPING
    except ImportError as error:
        raise click.ClickException(
            "models and their defaults come from transformers: pip install 'areal-callbacks[transformers]'"
        ) from error
    return CONFIG_MAPPING
