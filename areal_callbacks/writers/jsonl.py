"""metrics.jsonl, which is complete also after a killed process, and its reader.

One JSON object a line; non-finite numbers are the strings "NaN", "Infinity", "-Infinity"::

    {"kind": "run", "version": 1, "time": ..., "config": {...}, "resumes": false}
    {"kind": "metrics", "step": 10, "time": ..., "metrics": {"train_perf/tokens": 4096, "loss": 1.5}}
    {"kind": "expert_loads", "step": 10, "stack": "", "layers": [0, 1], "experts": 8,
     "counts": base64(zlib(little-endian, row-major)), "dtype": "uint32" | "uint64"}

Every start appends a ``run`` line, which says whether it continues the training before; null where that is not known.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from areal_callbacks.core.file_names import METRICS_FILE
from areal_callbacks.core.numbers import as_number
from areal_callbacks.writers.line_file import LineFile
from areal_callbacks.writers.metrics_file import VERSION, MetricsRecord, Record, RunRecord, read_metrics
from areal_callbacks.writers.packed_loads import ExpertLoadsRecord, pack_counts
from areal_callbacks.writers.redact import as_json_number, redact
from areal_callbacks.writers.torn_line import end_last_line

if TYPE_CHECKING:
    from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
    from areal_callbacks.core.types import Export, Run

__all__ = ["VERSION", "ExpertLoadsRecord", "JsonlWriter", "MetricsRecord", "Record", "RunRecord", "read_metrics"]


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
        self._file = LineFile(run.output_dir / METRICS_FILE, lambda: _encode_lines([line]), end_last_line)
        self._file.append(b"")

    def reopen(self, run: Run) -> None:
        """Go on with the part of the file that :meth:`open` began."""
        self._file = LineFile(run.output_dir / METRICS_FILE, lambda: b"", end_last_line)

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


def _select_numbers(scalars: Mapping[str, Any]) -> dict[str, float | str]:
    """What is a number; a host may also report a word, which must not cost the other scalars their line."""
    numbers = {str(key): as_number(value) for key, value in scalars.items()}
    return {key: as_json_number(number) for key, number in numbers.items() if number is not None}


def _encode_loads(step: int, loads: ExpertLoads | Iterable[LayerLoads]) -> Iterator[dict[str, Any]]:
    groups: dict[tuple[str, int], list[LayerLoads]] = {}
    for layer in loads:
        groups.setdefault((layer.stack, len(layer.counts)), []).append(layer)
    for (stack, experts), layers in groups.items():
        yield {
            "kind": "expert_loads",
            "step": step,
            "stack": stack,
            "layers": [layer.layer for layer in layers],
            "experts": experts,
            **pack_counts([count for layer in layers for count in layer.counts.tolist()]),
        }
