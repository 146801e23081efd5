"""The page of faults is that of the tests, and leaves no host out."""

from __future__ import annotations

from collections import Counter

from support.fault_table import PAGE, TESTS, collect, render
from support.harms import HARMS

HOSTS = ("Accelerate", "Fabric", "Hugging Face Trainer", "Lightning", "Megatron", "metrics.jsonl", "plain loops")


def test_the_page_is_made_from_the_tests() -> None:
    assert PAGE.read_text() == render(collect()), "run PYTHONPATH=tests python -m support.fault_table"


def test_there_are_eighty_and_every_host_has_some() -> None:
    faults = collect()
    assert len(faults) >= 80
    assert len({(fault.host, fault.broken) for fault in faults.values()}) == len(faults), "one is listed twice"
    counted = Counter(fault.host for fault in faults.values())
    assert all(counted[host] >= 3 for host in HOSTS), counted


def test_every_kind_of_harm_has_tests_that_exist() -> None:
    named = [test.split("::") for tests in HARMS.values() for test in tests]
    gone = [test for file, test in named if f"\ndef {test}(" not in (TESTS / file).read_text()]
    assert not gone
    assert len(HARMS) == len(set(HARMS.values()))
