"""An export in words."""

from __future__ import annotations

import math

import pytest

from areal_callbacks.writers.console_line import describe_in_words

METRICS = {
    "train_perf/seconds": 9.0,
    "train_perf/tokens_per_second": 1234567.8,
    "train_perf/estimated_flops": 1e15,
    "train_perf/mfu": 0.41234,
    "moe_balance/max_over_ideal_max": 16.3456,
    "moe_balance/worst_layer": 7.0,
    "moe_balance/dead_experts": 12.0,
    "ppo_actor/train_infer/logp_abs_diff/avg": 0.01234,
    "train_perf/data_wait_seconds": 1.0,
    "loss": 1.0,
}


def test_six_numbers_within_100_columns():
    line = describe_in_words(METRICS, experts=512)
    assert (
        line
        == ("1,234,568 tok/s, MFU 41.2 %, layer 7 at 16.3 x ideal, 12 of 512 experts dead, mismatch 0.012, waits 10 %")[
            : len(line)
        ]
    )
    assert len(line) <= 100
    assert line.endswith("mismatch 0.012")  # the sixth does not fit


def test_a_dense_supervised_run():
    names = ("seconds", "tokens_per_second", "estimated_flops", "mfu", "data_wait_seconds")
    metrics = {f"train_perf/{name}": METRICS[f"train_perf/{name}"] for name in names}
    assert describe_in_words(metrics) == "1,234,568 tok/s, MFU 41.2 %, waits 10 %"


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        ({"train_perf/seconds": 1.0}, "tokens unknown, FLOPs unknown"),
        ({"train_perf/seconds": 1.0, "train_perf/tokens_per_second": 5.0}, "5 tok/s, FLOPs unknown"),
        (
            {"train_perf/seconds": 1.0, "train_perf/tokens_per_second": 5.0, "train_perf/estimated_flops": 2.0},
            "5 tok/s, MFU unknown",
        ),
        ({"loss": 1.0}, ""),
        ({"moe_balance/max_over_ideal_max": math.nan}, "worst layer at nan x ideal"),
    ],
)
def test_one_word_where_something_is_unknown(metrics, line):
    assert describe_in_words(metrics) == line


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, -1e30])
def test_any_number_fits(value):
    assert len(describe_in_words(dict.fromkeys(METRICS, value), experts=10**9)) <= 100
