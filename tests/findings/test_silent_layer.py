from __future__ import annotations

from support.finding_runs import Columns, diagnose

from areal_callbacks.findings import Layer, find

KEY = "moe_balance__layer_{}__max_over_ideal"


def test_a_layer_that_routes_nothing_while_another_does():
    (finding,) = diagnose(**{KEY.format(0): [1.2] * 9, KEY.format(1): [1.2] * 4 + [0.0] * 5})
    assert (finding.rule, finding.severity, finding.layer) == ("silent_layer", "severe", Layer("", 1))
    assert (finding.step, finding.found_step, finding.last_step) == (50, 70, 90)


def test_two_exports_or_a_whole_stack_are_none_of_it():
    assert diagnose(**{KEY.format(0): [1.2] * 9, KEY.format(1): [1.2] * 7 + [0.0] * 2}) == []
    vision = {f"moe_balance/vision/layer_{layer}/max_over_ideal": [0.0] * 9 for layer in range(2)}
    assert find(Columns({**vision, "moe_balance/layer_0/max_over_ideal": [1.2] * 9}).history()) == []
