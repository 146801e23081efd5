"""Who contributes in Megatron's layouts: a reduction over simulated ranks tells every token once, whatever is split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.distributed import Ranks

JOBS = Path(__file__).parents[2] / "support" / "megatron_ranks.py"
"""Run by name, in a process of its own."""


@pytest.fixture(scope="module")
def process() -> Iterator[Ranks]:
    ranks = Ranks(1)
    yield ranks
    ranks.close()


def test_forty_random_layouts_count_nothing_twice(process: Ranks) -> None:
    (outcomes,) = process.run_from(JOBS, "reduced_and_expected", 40, 64, 16)
    assert len(outcomes) == 40
    for sizes, told, expected in outcomes:
        assert told == [expected], sizes
    for name in ("tp", "cp", "ep", "dp", "pp"):
        assert {1, 2} < {sizes[name] for sizes, *_ in outcomes}


def test_forty_random_layouts_of_16384_ranks_tell_everything_once(process: Ranks) -> None:
    (told,) = process.run_from(JOBS, "told_by_layouts", 40, 16_384, 1)
    assert len(told) == 40
    assert set(told.values()) == {(1.0, 1.0, 1.0)}


def test_places_are_those_of_megatrons_own_groups(process: Ranks) -> None:
    (places,) = process.run_from(JOBS, "places_in_groups", 8, 32, 3)
    assert len(places) > 100
    for generated, of_groups in places:
        assert generated == of_groups
