"""Complete expert-load tables, read from metrics.jsonl or from table files downloaded from W&B.

W&B's preview of a table ends at 10,000 rows; the artifact and metrics.jsonl hold all of them.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_callbacks.core.balance import load_percentages, max_over_ideal
from areal_callbacks.core.file_names import METRICS_FILE
from areal_callbacks.safety.text import make_printable
from areal_callbacks.writers.metrics_file import locate_packed, read_records
from areal_callbacks.writers.packed_loads import ExpertLoadsRecord, PackedLoads
from areal_callbacks.writers.trainings import number_trainings

TABLE_SUFFIX = ".table.json"
LARGEST_TABLE = 1 << 26
"""Bytes. A row takes some fifty."""
MOST_COUNTS_OF_A_STEP = 1 << 22

_COLUMNS = ("layer", "expert", "tokens", "load_percent")
_VERSION = re.compile(r"[:-](v\d+)$")


@dataclass(frozen=True)
class LayerTable:
    """The rows of one layer in one table.

    Attributes:
        source: the step of an export, or what distinguishes a downloaded table from the others.
        stack: empty for the main decoder.
        layer: global and zero-based.
        tokens: routed assignments per expert, in the order of the experts.
        percent: load percentage per expert.
    """

    source: int | str
    stack: str
    layer: int
    tokens: list[int]
    percent: list[float]

    @property
    def max_over_ideal(self) -> float:
        """``max(c) / (sum(c) / E)``; 0 for an empty layer."""
        return max_over_ideal(self.tokens)

    @property
    def truncated(self) -> bool:
        """Rows are missing: the percentages do not add up to 100."""
        return any(self.percent) and abs(sum(self.percent) - 100) > 1e-3


def read_layers_of_metrics(path: Path, steps: Iterable[int] = ()) -> Iterator[LayerTable]:
    """Every layer of every export of a metrics.jsonl, or of the given steps; of a repeated step the later export.

    Of several trainings the last counts.
    """
    wanted = set(steps)
    current, positions = 0, dict[int, list[int]]()
    for training, (position, record) in number_trainings(locate_packed(path), operator.itemgetter(1)):
        if training != current:
            current, positions = training, {}
        if isinstance(record, PackedLoads) and (not wanted or record.step in wanted):
            positions.setdefault(record.step, []).append(position)
    for step in sorted(positions):  # read again, step by step: together they may not fit into memory
        for (stack, layer), counts in sorted(_read_step(path, step, positions[step]).items()):
            yield LayerTable(step, stack, layer, counts, load_percentages(counts))


def _read_step(path: Path, step: int, positions: Iterable[int]) -> dict[tuple[str, int], list[int]]:
    """(stack, layer) → the latest counts."""
    latest: dict[tuple[str, int], list[int]] = {}
    for record in read_records(path, positions):
        if isinstance(record, ExpertLoadsRecord):
            latest.update(((record.stack, layer), row) for layer, row in zip(record.layers, record.counts))
            if sum(map(len, latest.values())) > MOST_COUNTS_OF_A_STEP:
                raise ValueError(f"{path}: step {step} has more than {MOST_COUNTS_OF_A_STEP:,} expert counts")
    return latest


def read_layers_of_tables(path: Path) -> Iterator[LayerTable]:
    """Every layer of a downloaded table file, or of all such files below a folder.

    Raises:
        ValueError: there is no such file, or one is no expert-load table.
    """
    files = [path] if path.is_file() else sorted(path.rglob(f"*expert_loads*{TABLE_SUFFIX}"), key=_split_digits)
    if not files:
        raise ValueError(f"{path}: no {METRICS_FILE} and no *expert_loads*{TABLE_SUFFIX} below it")
    for file in files:
        yield from _read_layers_of_table(file)


def _read_layers_of_table(file: Path) -> Iterator[LayerTable]:
    try:
        layers = _group_by_layer(json.loads(_read(file)))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = make_printable(error)
        raise ValueError(
            f"{make_printable(file)}: not a table with the columns {', '.join(_COLUMNS)}: {reason}"
        ) from None
    for (stack, number), experts in sorted(layers.items()):
        experts.sort()
        yield LayerTable(_name_source(file), stack, number, [row[1] for row in experts], [row[2] for row in experts])


def _read(file: Path) -> bytes:
    with file.open("rb") as table:
        content = table.read(LARGEST_TABLE + 1)
    if len(content) > LARGEST_TABLE:
        raise ValueError(f"longer than {LARGEST_TABLE:,} bytes")
    return content


def _group_by_layer(table: Any) -> dict[tuple[str, int], list[tuple[int, int, float]]]:
    """(stack, layer) → (expert, tokens, load percent) of every row."""
    columns: list[str] = table["columns"]
    indices = [columns.index(name) for name in _COLUMNS]
    stack_index = columns.index("stack") if "stack" in columns else None
    layers: dict[tuple[str, int], list[tuple[int, int, float]]] = {}
    for row in table["data"]:
        layer, expert, tokens, percent = (float(str(row[index])) for index in indices)
        stack = "" if stack_index is None else str(row[stack_index] or "")
        layers.setdefault((stack, int(layer)), []).append((int(expert), int(tokens), percent))
    return layers


def _name_source(file: Path) -> str:
    """The version in the name of the artifact's folder, or the file's name."""
    versions = (_VERSION.search(parent.name) for parent in file.parents)
    return next((version.group(1) for version in versions if version), file.name.removesuffix(TABLE_SUFFIX))


def _split_digits(path: Path) -> list[tuple[int, str]]:
    """A sort key that puts v2 before v10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]
