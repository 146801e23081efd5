"""Reads metrics.jsonl, whose format is described in :mod:`areal_callbacks.writers.jsonl`, in bounded memory.

A file may come from anywhere. A line takes at most 16 MiB, expert loads at most what the line declares, and messages
show little of either.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from areal_callbacks.safety.text import make_printable
from areal_callbacks.writers.corrupt_lines import CORRUPT, read_integer, refuse
from areal_callbacks.writers.packed_loads import ExpertLoadsRecord, PackedLoads
from areal_callbacks.writers.redact import redact

VERSION = 1

LONGEST_LINE = 1 << 24
"""Bytes. Ten thousand scalars take one, the loads of 256 layers of 4,096 experts six."""
_BLOCK = 1 << 16


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


Record = RunRecord | MetricsRecord | ExpertLoadsRecord
PackedRecord = RunRecord | MetricsRecord | PackedLoads


def read_metrics(path: str | Path) -> Iterator[Record]:
    """The records of a metrics.jsonl in their order; kinds that this version does not know are passed over.

    A last line without its end, left by a killed run or being written right now, is ignored.

    Raises:
        ValueError: it is no regular file, or a line is corrupt, longer than 16 MiB, or written by a newer version;
            names the file and the line number.
    """
    return (record for _, record in locate_records(path))


def read_packed(path: str | Path) -> Iterator[PackedRecord]:
    """As :func:`read_metrics`, but expert loads are unpacked only by who wants their counts."""
    return (record for _, record in locate_packed(path))


def locate_records(path: str | Path) -> Iterator[tuple[int, Record]]:
    """As :func:`read_metrics`, each record with the position of its line, for :func:`read_records`."""
    return ((position, _unpack(record)) for position, record in locate_packed(path))


def locate_packed(path: str | Path) -> Iterator[tuple[int, PackedRecord]]:
    """As :func:`read_packed`, each record with the position of its line."""
    with open_regular(path) as file:
        number = position = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if not line.endswith(b"\n") and _is_torn(line, file):
                return
            record = read_line(f"{make_printable(path)}, line {number}", line)
            if record is not None:
                yield position, record
            position = file.tell()


def read_records(path: str | Path, positions: Iterable[int]) -> Iterator[Record]:
    """The records of the lines that begin at ``positions``, which :func:`locate_records` gave."""
    with open_regular(path) as file:
        for position in positions:
            file.seek(position)
            record = read_line(f"{make_printable(path)}, byte {position}", file.readline(LONGEST_LINE))
            if record is not None:
                yield _unpack(record)


def is_object(line: bytes) -> bool:
    """Whether a line is a whole JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def open_regular(path: str | Path) -> BinaryIO:
    """The file for reading; ValueError if it is no regular one: a pipe would wait for ever, a device never end."""
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise ValueError(f"{make_printable(path)}: not a regular file")
    return Path(path).open("rb")


def _is_torn(line: bytes, file: BinaryIO) -> bool:
    """Whether what was read of a last line is no record; one that goes on beyond the limit is torn if it never ends."""
    if len(line) <= LONGEST_LINE:
        return not is_object(line)
    return all(b"\n" not in block for block in iter(lambda: file.read(_BLOCK), b""))


def read_line(where: str, line: bytes) -> PackedRecord | None:
    """The record of a line, None of a kind that this version does not know; ValueError says where it was."""
    try:
        if len(line) > LONGEST_LINE:
            raise ValueError(f"longer than {LONGEST_LINE:,} bytes")
        return _decode(where, json.loads(line))
    except CORRUPT as error:
        raise refuse(where, error) from None


def _decode(where: str, line: dict[str, Any]) -> PackedRecord | None:
    kind = line["kind"]
    if kind == "run":
        if line["version"] > VERSION:
            raise ValueError(f"format version {line['version']} is newer than {VERSION}")
        resumes = line.get("resumes")
        config = redact(dict(line["config"]))
        return RunRecord(float(line["time"]), config, resumes if isinstance(resumes, bool) else None)
    if kind == "metrics":
        metrics = {key: float(value) for key, value in line["metrics"].items()}
        return MetricsRecord(read_integer("step", line["step"]), float(line["time"]), metrics)
    return PackedLoads.of(where, line) if kind == "expert_loads" else None


def _unpack(record: PackedRecord) -> Record:
    return record.unpack() if isinstance(record, PackedLoads) else record
