"""Configuration sections: frozen dataclasses that check their values and name what is wrong with a bad one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from areal_callbacks.config.messages import show, show_key, suggest


class ConfigError(ValueError):
    """A bad value at the dotted ``path``; the caller adds where the value came from."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem

    def below(self, name: object) -> ConfigError:
        """The same problem with the path from the section that holds this one as ``name``."""
        return ConfigError(f"{name}.{self.path}" if self.path else str(name), self.problem)


class Secret(str):
    """Text that neither a message nor the ``repr`` of a configuration shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "[redacted]"


@dataclass(frozen=True)
class Section:
    """A group of keys whose values are checked against the annotations, however the object is made.

    Integers are at least 1 and floats are positive everywhere in this configuration. A field that is a section itself
    takes a mapping; a field that is a string takes a path, too. A :class:`Secret` is shown by nothing.
    """

    def __post_init__(self) -> None:
        for name, hint in hints(type(self)).items():
            try:
                object.__setattr__(self, name, _convert(hint, getattr(self, name)))
            except ConfigError as error:
                raise error.below(name) from None

    @classmethod
    def parse(cls, values: Mapping[Any, Any]) -> Self:
        """The section with the given keys; ConfigError for an unknown key or a bad value."""
        known = hints(cls)
        for key in values:
            if key not in known:
                raise ConfigError(show_key(key), f"unknown key{suggest(key, known)} (keys: {', '.join(known)})")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable values of all keys, accepted again by ``parse``."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True)
class Switch(Section):
    """A group of keys that true or false turns on or off as a whole; a mapping turns it on."""

    enabled: bool = True


def hints(section: type[Section]) -> dict[str, Any]:
    """The keys of a section with their evaluated annotations."""
    return {name: hint for name, hint in get_type_hints(section).items() if name in section.__dataclass_fields__}


def spread(section: type[Section], values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with switches written out as mappings, so that layers can be merged key by key."""
    return {key: _spread_value(hints(section)[key], value) for key, value in values.items()}


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings together; where both hold a mapping they merge in turn, else ``above`` wins."""
    merged = dict(below)
    for key, value in above.items():
        lower = merged.get(key)
        if isinstance(value, Mapping) and isinstance(lower, Mapping):
            merged[key] = merge(lower, value)
        else:
            merged[key] = value
    return merged


def _spread_value(hint: Any, value: Any) -> Any:
    value = _plain(value)
    if not (isinstance(hint, type) and issubclass(hint, Switch)):
        return value
    return {"enabled": True, **value} if isinstance(value, Mapping) else {"enabled": value}


def _plain(value: Any) -> Any:
    """In Python's own containers: Hydra hands over some of its own."""
    if isinstance(value, Section):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if _is_list(value) else value


class _Kind(NamedTuple):
    """One alternative of an annotation: what it accepts, in code and in words, and what the value becomes."""

    words: tuple[str, ...]
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any]


def _convert(hint: Any, value: Any) -> Any:
    """``value`` as the first alternative of ``hint`` that accepts it; ConfigError names them all if none does."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [_kind(option) for option in options]
    for kind in kinds:
        if kind.accepts(value):
            return kind.convert(value)
    words = [word for kind in kinds for word in kind.words]
    expected = " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    if Secret in options:
        raise ConfigError("", f"expected {expected}, got a value of type {type(value).__name__}")
    raise ConfigError("", f"expected {expected}, got {show(value)}{suggest(value, words)}")


def _kind(option: Any) -> _Kind:
    if get_origin(option) is Literal:
        return _Kind(get_args(option), lambda value: isinstance(value, str) and value in get_args(option), str)
    if isinstance(option, type) and issubclass(option, Section):
        return _section_kind(option)
    return _KINDS[get_origin(option) or option]


def _section_kind(section: type[Section]) -> _Kind:
    def convert(value: Any) -> Section:
        if isinstance(value, bool):
            return section.parse({"enabled": value})
        return section.parse(value) if isinstance(value, Mapping) else value

    words = (f"a mapping with the keys {', '.join(hints(section))}",)
    if issubclass(section, Switch):
        return _Kind(("true", "false", *words), lambda value: isinstance(value, bool | Mapping | section), convert)
    return _Kind(words, lambda value: isinstance(value, Mapping | section), convert)


def _is_positive_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_positive_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and 0 < float(value) < math.inf
    except (TypeError, ValueError, OverflowError):
        return False


def _is_strings(value: Any) -> bool:
    return _is_list(value) and all(isinstance(item, str) for item in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _keep(value: Any) -> Any:
    return value


_KINDS: dict[Any, _Kind] = {
    NoneType: _Kind(("null",), lambda value: value is None, _keep),
    bool: _Kind(("true", "false"), lambda value: isinstance(value, bool), _keep),
    int: _Kind(("an integer of at least 1",), _is_positive_integer, _keep),
    # float() takes strings, too: YAML reads 989e12 as one.
    float: _Kind(("a positive number",), _is_positive_number, float),
    str: _Kind(("a string",), lambda value: isinstance(value, str | os.PathLike), os.fspath),
    Secret: _Kind(("a string",), lambda value: isinstance(value, str), Secret),
    dict: _Kind(("a mapping",), lambda value: isinstance(value, Mapping), dict),
    tuple: _Kind(("a list of strings",), _is_strings, tuple),
    Callable: _Kind(("a function (in Python only)",), callable, _keep),
}
