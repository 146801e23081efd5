"""What verify prints, by hand."""

from __future__ import annotations

import torch

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.types import Export
from areal_callbacks.verify import Totals
from areal_callbacks.verify.beside import Exported
from areal_callbacks.verify.comparison import Row, compare, differs, tabulate_rows


def exported(tokens: float, *loads: LayerLoads) -> Exported:
    found = Exported()
    metrics = {"train_perf/tokens": tokens, "train_perf/estimated_flops": 60.0, "train_perf/tokens_per_second": 9.0}
    found.add(Export(1, metrics, ExpertLoads(loads), {}, 0.0))
    return found


def rows_of(ours: Exported, recounted: Totals) -> dict[str, Row]:
    return {row.name: row for row in compare(ours, recounted)}


ROUTED = LayerLoads("", 1, torch.tensor([3, 1]))
SILENT = LayerLoads("encoder", 0, torch.tensor([0, 0]))


def test_equal_numbers() -> None:
    totals = Totals(tokens=5, positions=8, lengths=[3, 2], routed={("", 1): [3, 1]}, flops=80)
    rows = rows_of(exported(5, ROUTED, SILENT), totals)
    assert (rows["padding"].recount, rows["sequences"].recount) == (3, 2)
    assert [row.same for row in rows.values()] == [True, None, None, True, True, None]
    assert (rows["FLOPs per token"].ours, rows["FLOPs per token"].recount) == (12, 10)
    assert not differs(list(rows.values()))
    assert "equal" in tabulate_rows(list(rows.values()))


def test_intervals_add_up() -> None:
    ours = exported(2, ROUTED)
    ours.add(Export(2, {"train_perf/tokens": 3.0}, ExpertLoads((ROUTED,)), {}, 0.0))
    rows = rows_of(ours, Totals(tokens=5, positions=5, routed={("", 1): [6, 2]}))
    assert (rows["tokens"].same, rows["routed, 1"].same) == (True, True)


def test_other_tokens_and_another_expert() -> None:
    rows = rows_of(exported(6, ROUTED), Totals(tokens=5, positions=5, routed={("", 1): [1, 3]}))
    assert (rows["tokens"].same, rows["routed, 1"].same) == (False, False)
    assert differs(list(rows.values()))


def test_what_one_side_lacks_differs() -> None:
    rows = rows_of(Exported(), Totals(tokens=5, positions=5, routed={("", 1): [1, 3]}, input_frames=2))
    assert [rows[name].same for name in ("tokens", "routed, 1", "input_frames")] == [False] * 3
    assert rows_of(Exported(), Totals())["tokens"].same is True


def test_layers_of_one_number_are_summed_where_stacks_have_other_names() -> None:
    ours = exported(5, ROUTED, LayerLoads("critic", 1, torch.tensor([1, 1])))
    totals = Totals(tokens=5, positions=5, routed={("", 1): [4, 2]})
    assert rows_of(ours, totals)["routed, 1"].same is True
    totals.add_routed(("", 1), [1, 0])
    assert rows_of(ours, totals)["routed, 1"].same is False
