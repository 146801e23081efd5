"""Reads metrics.jsonl, whose format is described in :mod:`areal_callbacks.writers.jsonl`, in bounded memory.

A file may come from anywhere. A line takes at most 16 MiB, expert loads at most what the line declares, and messages
show little of either.
"""

from __future__ import annotations

import base64
import json
import stat
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from areal_callbacks.safety.text import make_printable
from areal_callbacks.writers.redact import redact

VERSION = 1

TYPE_CODES = {"uint32": "I", "uint64": "Q"}

LONGEST_LINE = 1 << 24
"""Bytes. Ten thousand scalars take one, the loads of 256 layers of 4,096 experts six."""
MOST_COUNTS = 1 << 21
"""Expert counts of one line."""
_MOST_LAYERS = 1 << 16
_LONGEST_STACK = 1_000
_LONGEST_REASON = 300
_BLOCK = 1 << 16
_CORRUPT = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error)


@dataclass(frozen=True)
class RunRecord:
    """The start of a run; ``config`` holds no secrets; ``resumes``: an earlier training goes on, None if unknown."""

    time: float
    config: dict[str, Any]
    resumes: bool | None = None


@dataclass(frozen=True)
class MetricsRecord:
    """The scalars of one export, with those of the host at that step."""

    step: int
    time: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class ExpertLoadsRecord:
    """Routed assignments of one export, ``counts[row][expert]``, row by row the layers ``layers`` of ``stack``."""

    step: int
    stack: str
    layers: list[int]
    experts: int
    counts: list[list[int]]


Record = RunRecord | MetricsRecord | ExpertLoadsRecord


def read_metrics(path: str | Path) -> Iterator[Record]:
    """The records of a metrics.jsonl in their order; kinds that this version does not know are passed over.

    A last line without its end, left by a killed run or being written right now, is ignored.

    Raises:
        ValueError: it is no regular file, or a line is corrupt, longer than 16 MiB, or written by a newer version;
            names the file and the line number.
    """
    return (record for _, record in locate_records(path))


def locate_records(path: str | Path) -> Iterator[tuple[int, Record]]:
    """As :func:`read_metrics`, each record with the position of its line, for :func:`read_record`."""
    with _open_regular(path) as file:
        number = position = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if not line.endswith(b"\n") and _is_torn(line, file):
                return
            record = _read_line(path, number, line)
            if record is not None:
                yield position, record
            position = file.tell()


def read_records(path: str | Path, positions: Iterable[int]) -> Iterator[Record]:
    """The records of the lines that begin at ``positions``, which :func:`locate_records` gave."""
    with _open_regular(path) as file:
        for position in positions:
            file.seek(position)
            record = _decode(json.loads(file.readline(LONGEST_LINE)))
            if record is not None:
                yield record


def is_object(line: bytes) -> bool:
    """Whether a line is a whole JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _open_regular(path: str | Path) -> BinaryIO:
    """A pipe would wait for ever, a device never end."""
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise ValueError(f"{make_printable(path)}: not a regular file")
    return Path(path).open("rb")


def _is_torn(line: bytes, file: BinaryIO) -> bool:
    """Whether what was read of a last line is no record; one that goes on beyond the limit is torn if it never ends."""
    if len(line) <= LONGEST_LINE:
        return not is_object(line)
    return all(b"\n" not in block for block in iter(lambda: file.read(_BLOCK), b""))


def _read_line(path: str | Path, number: int, line: bytes) -> Record | None:
    try:
        if len(line) > LONGEST_LINE:
            raise ValueError(f"longer than {LONGEST_LINE:,} bytes")
        return _decode(json.loads(line))
    except _CORRUPT as error:
        reason = make_printable(f"{type(error).__name__}: {error}", _LONGEST_REASON)
        raise ValueError(f"{make_printable(path)}, line {number}: not a valid record: {reason}") from None


def _decode(line: dict[str, Any]) -> Record | None:
    kind = line["kind"]
    if kind == "run":
        if line["version"] > VERSION:
            raise ValueError(f"format version {line['version']} is newer than {VERSION}")
        resumes = line.get("resumes")
        config = redact(dict(line["config"]))
        return RunRecord(float(line["time"]), config, resumes if isinstance(resumes, bool) else None)
    if kind == "metrics":
        metrics = {key: float(value) for key, value in line["metrics"].items()}
        return MetricsRecord(_read_integer("step", line["step"]), float(line["time"]), metrics)
    return _decode_loads(line) if kind == "expert_loads" else None


def _decode_loads(line: dict[str, Any]) -> ExpertLoadsRecord:
    layers = [_read_integer("layer", layer) for layer in line["layers"]]
    experts, stack = _read_integer("experts", line["experts"]), str(line["stack"])
    _check_shape(len(layers), experts, stack)
    values = array(TYPE_CODES[line["dtype"]])
    values.frombytes(_inflate(line["counts"], len(layers), experts, values.itemsize))
    if sys.byteorder == "big":
        values.byteswap()
    rows = [values[row * experts : (row + 1) * experts].tolist() for row in range(len(layers))]
    return ExpertLoadsRecord(_read_integer("step", line["step"]), stack, layers, experts, rows)


def _check_shape(layers: int, experts: int, stack: str) -> None:
    if layers > _MOST_LAYERS or not 0 <= experts <= MOST_COUNTS or layers * experts > MOST_COUNTS:
        raise ValueError(f"{layers:,} layers of {experts:,} experts are not {MOST_COUNTS:,} counts or fewer")
    if len(stack) > _LONGEST_STACK:
        raise ValueError(f"the name of the stack has {len(stack):,} characters")


def _inflate(counts: str, layers: int, experts: int, size: int) -> bytes:
    """The counts, of ``size`` bytes each; more than there should be are never unpacked."""
    expected = layers * experts * size
    inflater = zlib.decompressobj()
    data = inflater.decompress(base64.b64decode(counts, validate=True), expected + 1)
    if len(data) != expected or not inflater.eof:
        found = f"more than {layers * experts}" if len(data) > expected else str(len(data) // size)
        raise ValueError(f"{found} counts for {layers} layers of {experts} experts")
    return data


def _read_integer(name: str, value: Any) -> int:
    number = int(value)
    if abs(number) >= 2**63:
        raise ValueError(f"{name} {make_printable(number, 40)} has more than 64 bits")
    return number
