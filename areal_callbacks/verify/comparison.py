"""What was exported against what was recounted, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from tabulate import tabulate

from areal_callbacks.verify.beside import Exported
from areal_callbacks.verify.totals import LayerKey, Totals


class Row(NamedTuple):
    """One compared number; ``same`` is None where one side has no such number, or only an estimate."""

    name: str
    ours: float | None
    recount: float | None
    same: bool | None


def compare(exported: Exported, recounted: Totals) -> list[Row]:
    """Every number that both know, and those that one of them knows."""
    rows = [
        _exact("tokens", exported.sums.get("train_perf/tokens"), recounted.tokens),
        Row("padding", None, recounted.padding, None),
        Row("sequences", None, recounted.sequences, None),
    ]
    if recounted.input_frames or "train_perf/input_frames" in exported.sums:
        rows.append(_exact("input_frames", exported.sums.get("train_perf/input_frames"), recounted.input_frames))
    return [*rows, *_compare_layers(exported, recounted), *_compare_flops(exported, recounted)]


def differs(rows: list[Row]) -> bool:
    """Whether any number differs."""
    return any(row.same is False for row in rows)


def tabulate_rows(rows: list[Row]) -> str:
    """The rows for people."""
    cells = [(row.name, _show(row.ours), _show(row.recount), _VERDICTS[row.same]) for row in rows]
    return tabulate(cells, ("", "metrics", "recount", ""), colalign=("left", "right", "right"), disable_numparse=True)


_VERDICTS = {True: "equal", False: "DIFFERS", None: ""}


def _exact(name: str, ours: float | None, recount: float) -> Row:
    return Row(name, ours, recount, (ours or 0) == recount)


def _compare_layers(exported: Exported, recounted: Totals) -> Iterator[Row]:
    exported_counts = {(loads.stack, loads.layer): loads.counts.tolist() for loads in exported.loads}
    ours, others = align_stacks(exported_counts, recounted.routed)
    for key in sorted(ours.keys() | others.keys()):
        mine, theirs = ours.get(key), others.get(key)
        name = f"routed, {'/'.join(str(part) for part in key if part != '')}"
        yield Row(name, _sum(mine), _sum(theirs), _drop_unused(mine) == _drop_unused(theirs))


def align_stacks(
    ours: dict[LayerKey, list[int]], others: dict[LayerKey, list[int]]
) -> tuple[dict[LayerKey, list[int]], dict[LayerKey, list[int]]]:
    """Both as they are if they name the same layers, else with the layers of one number in all stacks added up.

    The recount gives several models no stacks of their own, the metrics do.
    """
    if _drop_idle(ours).keys() == _drop_idle(others).keys():
        return ours, others
    return _join_stacks(ours), _join_stacks(others)


def _drop_idle(counts: dict[LayerKey, list[int]]) -> dict[LayerKey, list[int]]:
    return {key: layer for key, layer in counts.items() if any(layer)}


def _join_stacks(counts: dict[LayerKey, list[int]]) -> dict[LayerKey, list[int]]:
    joined: dict[LayerKey, list[int]] = {}
    for (_, layer), added in counts.items():
        known = joined.get(("", layer), [])
        joined["", layer] = [sum(pair) for pair in zip_longest(known, added, fillvalue=0)]
    return joined


def _compare_flops(exported: Exported, recounted: Totals) -> Iterator[Row]:
    """Per token; the operators also compute padding and masked pairs, so that this is no verdict."""
    tokens, flops = exported.sums.get("train_perf/tokens"), exported.sums.get("train_perf/estimated_flops")
    ours = flops / tokens if flops and tokens else None
    theirs = recounted.flops / recounted.positions if recounted.flops and recounted.positions else None
    yield Row("FLOPs per token", ours, theirs, None)


def _sum(counts: list[int] | None) -> int | None:
    return None if counts is None else sum(counts)


def _drop_unused(counts: list[int] | None) -> list[int] | None:
    """A layer that routed nothing may be there or not."""
    return counts if counts and any(counts) else None


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
