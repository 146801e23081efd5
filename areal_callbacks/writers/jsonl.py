"""metrics.jsonl, which is complete also after a killed process, and its reader.

One JSON object a line; non-finite numbers are the strings "NaN", "Infinity", "-Infinity"::

    {"kind": "run", "version": 1, "time": ..., "config": {...}, "resumes": false}
    {"kind": "metrics", "step": 10, "time": ..., "metrics": {"train_perf/tokens": 4096, "loss": 1.5}}
    {"kind": "expert_loads", "step": 10, "stack": "", "layers": [0, 1], "experts": 8,
     "counts": base64(zlib(little-endian, row-major)), "dtype": "uint32" | "uint64"}

Every start appends a ``run`` line, which says whether it continues the training before; null where that is not known.
"""

from __future__ import annotations

import base64
import json
import sys
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_callbacks.core.file_names import METRICS_FILE
from areal_callbacks.core.numbers import as_number
from areal_callbacks.writers.line_file import LineFile
from areal_callbacks.writers.redact import as_json_number, redact

if TYPE_CHECKING:
    from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
    from areal_callbacks.core.types import Export, Run

VERSION = 1

_TYPE_CODES = {"uint32": "I", "uint64": "Q"}
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


class JsonlWriter:
    """Appends to ``<output_dir>/metrics.jsonl``; an export is with the operating system when ``write`` returns.

    What the disk does not take is kept and written later; see :class:`LineFile`. A kill cannot come between the lines
    of an export.
    """

    def __init__(self) -> None:
        self._file: LineFile | None = None

    def open(self, run: Run) -> None:
        """Append a ``run`` line, after removing the torn last line that a killed run may have left."""
        started, config = time.time(), redact(run.config)
        line = {"kind": "run", "version": VERSION, "time": started, "config": config, "resumes": run.resumes}
        self._file = LineFile(run.output_dir / METRICS_FILE, lambda: _encode_lines([line]), _end_last_line)
        self._file.append(b"")

    def write(self, export: Export) -> None:
        """One ``metrics`` line and a line per (stack, number of experts)."""
        metrics = _select_numbers({**export.host, **export.metrics})
        line = {"kind": "metrics", "step": int(export.step), "time": export.time or time.time(), "metrics": metrics}
        self._append([line, *_encode_loads(int(export.step), export.expert_loads or ())])

    def close(self) -> None:
        """Close the file; again does nothing."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _append(self, records: Iterable[Mapping[str, Any]]) -> None:
        if self._file is None:
            raise ValueError(f"{METRICS_FILE} is not open")
        self._file.append(_encode_lines(records))


def _encode_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records).encode()


def read_metrics(path: str | Path) -> Iterator[Record]:
    """The records of a metrics.jsonl in their order; kinds that this version does not know are passed over.

    A last line without its end, left by a killed run or being written right now, is ignored.

    Raises:
        ValueError: a line is corrupt, or written by a newer version; names the file and the line number.
    """
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n") and not _is_json(line):
                return
            try:
                record = _decode(json.loads(line))
            except _CORRUPT as error:
                raise ValueError(
                    f"{path}, line {number}: not a valid record: {type(error).__name__}: {error}"
                ) from error
            if record is not None:
                yield record


def _select_numbers(scalars: Mapping[str, Any]) -> dict[str, float | str]:
    """What is a number; a host may also report a word, which must not cost the other scalars their line."""
    numbers = {str(key): as_number(value) for key, value in scalars.items()}
    return {key: as_json_number(number) for key, number in numbers.items() if number is not None}


def _encode_loads(step: int, loads: ExpertLoads | Iterable[LayerLoads]) -> Iterator[dict[str, Any]]:
    groups: dict[tuple[str, int], list[LayerLoads]] = {}
    for layer in loads:
        groups.setdefault((layer.stack, len(layer.counts)), []).append(layer)
    for (stack, experts), layers in groups.items():
        counts = [count for layer in layers for count in layer.counts.tolist()]
        dtype = "uint32" if max(counts, default=0) < 2**32 else "uint64"
        yield {
            "kind": "expert_loads",
            "step": step,
            "stack": stack,
            "layers": [layer.layer for layer in layers],
            "experts": experts,
            "counts": base64.b64encode(zlib.compress(_encode_counts(array(_TYPE_CODES[dtype], counts)))).decode(),
            "dtype": dtype,
        }


def _encode_counts(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


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
        return MetricsRecord(_read_step(line), float(line["time"]), metrics)
    return _decode_loads(line) if kind == "expert_loads" else None


def _decode_loads(line: dict[str, Any]) -> ExpertLoadsRecord:
    layers, experts = [int(layer) for layer in line["layers"]], int(line["experts"])
    values = array(_TYPE_CODES[line["dtype"]])
    values.frombytes(zlib.decompress(base64.b64decode(line["counts"], validate=True)))
    if sys.byteorder == "big":
        values.byteswap()
    if len(values) != len(layers) * experts:
        raise ValueError(f"{len(values)} counts for {len(layers)} layers of {experts} experts")
    rows = [values[row * experts : (row + 1) * experts].tolist() for row in range(len(layers))]
    return ExpertLoadsRecord(_read_step(line), str(line["stack"]), layers, experts, rows)


def _read_step(line: Mapping[str, Any]) -> int:
    step = int(line["step"])
    if abs(step) >= 2**63:
        raise ValueError(f"step {step} has more than 64 bits")
    return step


def _end_last_line(path: Path) -> None:
    """Make the file end with a whole line: what came next would be glued to a torn one, and both lost."""
    if not path.is_file():
        return
    with path.open("r+b") as file:
        start = _find_last_line(file.seek(0, 2), file)
        file.seek(start)
        last = file.read()
        if not last:
            return
        if _is_json(last):
            file.write(b"\n")
        else:
            file.truncate(start)


def _find_last_line(end: int, file: Any, block: int = 1 << 16) -> int:
    """The position after the last line end, found from the back: a long run's file is large."""
    while end > 0:
        begin = max(0, end - block)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + int(found) + 1
        end = begin
    return 0


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
