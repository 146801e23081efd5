"""The page of faults is that of the tests, and leaves no host out."""

from __future__ import annotations

from collections import Counter

from support.fault_table import PAGE, collect, render

HOSTS = ("Accelerate", "Fabric", "Hugging Face Trainer", "Lightning", "Megatron", "metrics.jsonl", "plain loops")


def test_the_page_is_made_from_the_tests() -> None:
    assert PAGE.read_text() == render(collect()), "run python tests/support/fault_table.py"


def test_there_are_eighty_and_every_host_has_some() -> None:
    faults = collect()
    assert len(faults) >= 80
    assert len({(fault.host, fault.broken) for fault in faults.values()}) == len(faults), "one is listed twice"
    counted = Counter(fault.host for fault in faults.values())
    assert all(counted[host] >= 3 for host in HOSTS), counted
