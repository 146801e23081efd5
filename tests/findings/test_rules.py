"""Every rule: one file, one section of the documentation, findings under its own name, its own tests."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

from areal_callbacks.findings import RULES, find, rules
from areal_callbacks.report.history import History

ROOT = Path(__file__).parents[2]


def test_every_file_is_a_rule():
    assert sorted(RULES) == sorted(module.name for module in pkgutil.iter_modules(rules.__path__))
    assert all(judge.__module__.rpartition(".")[2] == name for name, judge in RULES.items())


def test_every_rule_has_a_section_of_the_documentation():
    sections = re.findall(r"^### (.+)$", (ROOT / "docs/findings.md").read_text().partition("## Rules")[2], re.M)
    assert sections == list(RULES)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_tests(name):
    text = (Path(__file__).parent / f"test_{name}.py").read_text()
    assert "== []" in text, "an example that does not fire"


def test_nothing_is_wrong_with_a_run_without_exports():
    assert find(History("empty")) == []
