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
    values = [1.4 * 1.02**export for export in range(60)]
    (finding,) = diagnose(kept(128), **{KEY.format(1): values})
    assert finding.severity == "warning"
    assert finding.evidence["past"] < finding.evidence["max_over_ideal"] / 2
    assert "grown from" in finding.summary


@pytest.mark.parametrize(
    ("experts", "value", "found"),
    [(8, 2.4, False), (8, 2.6, True), (64, 5.0, False), (64, 5.7, True), (128, 5.0, False)],
)
def test_the_bound_follows_the_number_of_experts(experts, value, found):
    assert bool(diagnose(kept(experts), **{KEY.format(0): [value] * 20})) is found


def test_a_burst_of_two_exports_is_noise():
    assert diagnose(kept(64), **{KEY.format(0): [*noisy(1.5, 20), 20.0, 20.0, *noisy(1.5, 20)]}) == []


def test_stacks_are_told_apart():
    series = {"moe_balance/encoder/layer_3/max_over_ideal": [8.0] * 9}
    (finding,) = find(Columns(series).history())
    assert finding.layer == Layer("encoder", 3)
    assert "layer 3 of encoder" in finding.summary
