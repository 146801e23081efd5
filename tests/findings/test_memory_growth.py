from __future__ import annotations

import numpy as np
from support.finding_runs import diagnose


def run(values):
    return diagnose(device_memory__peak_allocated_gib=list(values))


def test_a_leak_is_found_from_its_first_gibibytes():
    (finding,) = run(np.concatenate([np.full(30, 40.0), 40.0 + 0.2 * np.arange(90)]))
    assert (finding.rule, finding.severity) == ("memory_growth", "warning")
    assert 200 <= finding.step <= 400
    assert finding.evidence["before"] < 41 < 50 < finding.evidence["after"]


def test_records_of_a_healthy_run_get_rare():
    lengths = np.random.default_rng(0).lognormal(0, 0.2, 400)
    assert run(20 + 10 * np.maximum.accumulate(lengths)) == []
    assert run([40.0] * 50 + [48.0] * 100) == []
