"""Reading a model configuration, be it an object with attributes or a mapping."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any


class Absent(enum.Enum):
    """The value of a field that a configuration does not have; None is a value."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


def read_field(config: Any, name: str) -> Any:
    """Value of one field, ABSENT if there is none."""
    if isinstance(config, Mapping):
        return config.get(name, ABSENT)
    return getattr(config, name, ABSENT)


class Fields:
    """The fields of one configuration, with errors that name the model type and the field.

    Args:
        config: an object with attributes or a mapping.
        model_type: named in errors.
        names: the common name of a field → its name in this configuration, where that is another one.
    """

    def __init__(self, config: Any, model_type: str, names: Mapping[str, str] | None = None) -> None:
        self._config = config
        self._model_type = model_type
        self._names = names or {}

    def own_name(self, name: str) -> str:
        """What this configuration calls a field."""
        return self._names.get(name, name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it is; ``default`` where it is absent or None."""
        value = self._read(name)
        return default if value is ABSENT or value is None else value

    def has(self, name: str) -> bool:
        """Whether the field is there, be it None."""
        return self._read(name) is not ABSENT

    def _read(self, name: str) -> Any:
        value = read_field(self._config, self.own_name(name))
        return read_field(self._config, name) if value is ABSENT else value

    def part(self, name: str) -> Fields:
        """The fields of a configuration within this one, under the same names.

        Raises:
            ValueError: there is no such part.
        """
        inner = self.get(name)
        if inner is None:
            raise self.error(f"the configuration lacks {name!r}")
        return Fields(inner, self._model_type, self._names)

    def error(self, message: str) -> ValueError:
        """A ValueError that starts with the model type."""
        return ValueError(f"cannot estimate the FLOPs of model type {self._model_type!r}: {message}")

    def integer(self, *names: str, default: int | None = None, minimum: int = 0) -> int:
        """The first of several synonymous fields that has a value.

        Args:
            names: the field's names in order of preference.
            default: returned where all are absent or None.
            minimum: the least valid value.

        Raises:
            ValueError: no value and no default, or a value that is not an int of at least ``minimum``.
        """
        for name in names:
            value = self.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise self.error(f"{self.own_name(name)!r} must be an int of at least {minimum}, not {value!r}")
            return value
        if default is None:
            raise self.error(f"the configuration lacks {self.own_name(names[0])!r}")
        return default

    def sequence(self, name: str) -> Sequence[Any] | None:
        """A list or tuple, None where it is absent or None. Raises ValueError for anything else."""
        value = self.get(name)
        if value is None or (isinstance(value, Sequence) and not isinstance(value, str)):
            return value
        raise self.error(f"{self.own_name(name)!r} must be a list, not {value!r}")

    def nullable_integer(self, name: str, *, null: int | None) -> int | None:
        """Like :meth:`integer`, but None is a valid value and means ``null``. The field must be there."""
        if self.has(name) and self.get(name) is None:
            return null
        return self.integer(name)
