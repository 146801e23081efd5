from __future__ import annotations

from array import array

import pytest
from support.finding_runs import diagnose

from areal_callbacks.findings import Layer
from areal_callbacks.report.snapshots import Snapshot


def exported(*counts: list[int], exports: int = 12) -> list[Snapshot]:
    """Layers with these counts at every export."""
    return [
        Snapshot(10 * export, {("", layer): array("I", row) for layer, row in enumerate(counts)})
        for export in range(1, exports + 1)
    ]


def test_a_layer_with_a_dead_expert_and_one_with_starved_ones():
    (finding,) = diagnose(exported([100] * 16, [0] + [100] * 15, [5] * 4 + [100] * 12), loss=[1.0] * 12)
    assert (finding.rule, finding.severity, finding.layer) == ("starved_experts", "severe", Layer("", 2))
    assert finding.evidence == {"starved": 5, "dead": 1, "layers": 2}
    assert finding.summary == "5 experts in 2 layers are starved, 1 of them dead; layer 2: 4 of 16"
    assert (finding.step, finding.found_step, finding.last_step) == (10, 50, 120)


def test_one_expert_of_one_layer_is_singular():
    (finding,) = diagnose(exported([0] + [100] * 15), loss=[1.0] * 12)
    assert finding.summary == "1 expert in 1 layer is starved, 1 of them dead; layer 0: 1 of 16"


def test_the_beginning_is_where_the_layer_starved_first():
    snapshots = exported([100] * 32, exports=8)
    for snapshot in snapshots[3:]:
        snapshot.counts["", 0] = array("I", [1] * 2 + [100] * 30)
    (finding,) = diagnose(snapshots, loss=[1.0] * 8)
    assert (finding.severity, finding.step, finding.found_step) == ("warning", 40, 80)


@pytest.mark.parametrize(
    "counts",
    [[100] * 16, [15] + [100] * 15, [0, 19] * 4, [5] + [100] * 63],
    ids=["even", "a tenth", "few", "one of 64"],
)
def test_other_layers_are_left_alone(counts):
    assert diagnose(exported(counts), loss=[1.0] * 12) == []


def test_four_exports_say_nothing():
    assert diagnose(exported([0] + [100] * 15, exports=4), loss=[1.0] * 4) == []
