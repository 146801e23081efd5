from __future__ import annotations

import pytest
from support.finding_runs import diagnose


def run(share: float, ranks: list[float] | None, exports: int = 30):
    series = {"train_perf__seconds": [10.0] * exports, "train_perf__seconds_mean": [10.0 * (1 - share)] * exports}
    return diagnose(**series, **({"train_perf__slowest_rank": ranks} if ranks else {}))


def test_one_rank_that_the_others_wait_for_is_named():
    (finding,) = run(0.3, [7.0] * 30)
    assert (finding.rule, finding.severity, finding.key) == ("straggler", "warning", "train_perf/slowest_rank")
    assert finding.evidence == {"waiting": pytest.approx(0.3), "rank": 7.0}
    assert finding.summary.startswith("the others wait 30 % of the time for rank 7 since step")
    assert run(0.5, [7.0] * 30)[0].severity == "severe"


@pytest.mark.parametrize("ranks", [[7.0, 3.0] * 15, [float(rank % 8) for rank in range(30)]])
def test_a_slowest_rank_that_changes_is_the_spread_of_the_batches(ranks):
    assert run(0.3, ranks) == []


def test_a_small_gap_is_left_alone():
    assert run(0.1, [7.0] * 30) == []
    assert run(0.2, None) == []
    assert [finding.key for finding in run(0.3, None)] == ["train_perf/seconds"]
