from __future__ import annotations

from array import array

import pytest
from support.finding_runs import Columns, diagnose, noisy

from areal_callbacks.findings import Layer, find
from areal_callbacks.report.snapshots import Snapshot

KEY = "moe_balance__layer_{}__max_over_ideal"


def kept(experts: int) -> list[Snapshot]:
    return [Snapshot(10, {("", layer): array("I", [1] * experts) for layer in range(2)})]


def test_a_layer_whose_busiest_expert_takes_16_times_its_share_has_collapsed():
    series = {KEY.format(0): noisy(1.3, 60), KEY.format(1): noisy(1.4, 30) + [16.0] * 30}
    (finding,) = diagnose(kept(128), **series)
    assert (finding.rule, finding.severity, finding.layer) == ("expert_collapse", "severe", Layer("", 1))
    assert 300 < finding.step <= finding.found_step <= 380
    assert finding.evidence == {"max_over_ideal": 16.0, "experts": 128}
    assert "layer 1: one expert takes 16.0 x the ideal load" in finding.summary


def test_slow_growth_is_a_warning_before_the_collapse():
    values = [1.4 * 1.025**export for export in range(60)]
    (finding,) = diagnose(kept(128), **{KEY.format(1): values})
    assert finding.severity == "warning"
    assert finding.evidence["past"] < finding.evidence["max_over_ideal"] / 2.5
    assert "grown from" in finding.summary


@pytest.mark.parametrize(
    ("experts", "value", "found"),
    [(8, 2.9, False), (8, 3.1, True), (64, 6.0, False), (64, 6.5, True), (128, 9.0, False)],
)
def test_the_bound_follows_the_number_of_experts(experts, value, found):
    assert bool(diagnose(kept(experts), **{KEY.format(0): [value] * 40})) is found


def test_a_burst_of_two_exports_is_noise():
    assert diagnose(kept(64), **{KEY.format(0): [*noisy(1.5, 20), 20.0, 20.0, *noisy(1.5, 20)]}) == []


def test_stacks_are_told_apart():
    series = {"moe_balance/encoder/layer_3/max_over_ideal": [11.0] * 30}
    (finding,) = find(Columns(series).history())
    assert finding.layer == Layer("encoder", 3)
    assert "layer 3 of encoder" in finding.summary


def test_a_router_that_finds_its_balance_is_left_alone():
    assert diagnose(kept(8), **{KEY.format(0): [1 + 6 * 0.9**export for export in range(60)]}) == []


def test_of_many_layers_the_worst_four_are_named():
    found = diagnose(kept(8), **{KEY.format(layer): [10.0 + layer] * 40 for layer in range(8)})
    assert sorted(finding.layer.layer for finding in found) == [4, 5, 6, 7]
