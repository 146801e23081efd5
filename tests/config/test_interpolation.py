"""References of AReaL's YAML files."""

from __future__ import annotations

import pytest

from areal_callbacks.config.interpolation import resolve

DOCUMENT = {
    "trial_name": "run_001",
    "cluster": {"fileroot": "/data/${trial_name}"},
    "steps": 5,
    "circle": "${circle}",
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${trial_name}", "run_001"),
        ("${cluster.fileroot}/logs", "/data/run_001/logs"),
        ("${steps}", 5),
        ("step ${steps} of ${steps}", "step 5 of 5"),
        ({"a": ["${steps}", "$5", None]}, {"a": [5, "$5", None]}),
        ("${oc.env:AREAL_TEST_NAME}", "here"),
        ("${oc.env:AREAL_TEST_MISSING,there}", "there"),
    ],
)
def test_references_are_replaced(value, expected, monkeypatch):
    monkeypatch.setenv("AREAL_TEST_NAME", "here")
    assert resolve(value, DOCUMENT, "a.yaml") == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${trial}", r"a\.yaml: \$\{trial\}: the configuration has no such key"),
        ("${steps.more}", "has no such key"),
        ("${oc.env:AREAL_TEST_MISSING}", "no such environment variable"),
        ("${circle}", "refers to itself"),
    ],
)
def test_a_reference_that_leads_nowhere_is_named(value, message):
    with pytest.raises(ValueError, match=message):
        resolve(value, DOCUMENT, "a.yaml")
