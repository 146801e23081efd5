from __future__ import annotations

from areal_callbacks.findings import Finding
from areal_callbacks.findings.lines import describe, list_lines


def finding(number: int) -> Finding:
    return Finding("mismatch", "severe", 1000, 1050, 2000, "key", f"trouble number {number} " * 9, "Do this. " * 20)


def test_three_lines_that_fit_and_the_number_of_the_others():
    lines = list_lines([finding(number) for number in range(5)])
    assert len(lines) == 3
    assert max(map(len, lines)) <= 78
    assert lines[0].startswith("severe: trouble number 0")
    assert lines[2] == "and 3 more findings: areal-callbacks check"
    assert len(list_lines([finding(0)] * 3)) == 3
    assert list_lines([]) == []


def test_a_description_holds_the_advice_and_where_to_read_more():
    text = "\n".join(describe([finding(1)]))
    assert text.startswith("severe   step 1,000: trouble number 1")
    assert text.count("Do this.") == 20
    assert "docs/findings.md#mismatch" in text
