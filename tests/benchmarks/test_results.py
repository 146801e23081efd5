"""The generated part of the page of results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import make_results as results  # noqa: E402

GENERATED = f"{results.BEGIN}\n\n## Recording\n\nold\n\n{results.END}"
PAGE = f"# Measured\n\nA note.\n\n{GENERATED}\n\n## By hand\n\nAnother note.\n"


def test_sections_are_replaced_and_notes_stay() -> None:
    page = results.replace_generated(PAGE, {"Recording": "## Recording\n\nnew"})
    assert page == PAGE.replace("old", "new")


def test_other_sections_stay_in_their_order() -> None:
    first = results.PARTS["peers"].title
    page = results.replace_generated(PAGE, {first: f"## {first}\n\nnew"})
    assert page.index(first) < page.index("## Recording\n") < page.index(results.END) < page.index("Another note.")
    assert "old" in page


def test_the_page_has_a_generated_part_and_every_benchmark_is_there() -> None:
    page = (ROOT / "benchmarks" / "results.md").read_text()
    assert page.count(results.BEGIN) == page.count(results.END) == 1
    assert all((ROOT / "benchmarks" / part.command[0]).exists() for part in results.PARTS.values())
    listed = {part.command[0] for part in results.PARTS.values()}
    assert listed <= {path.name for path in (ROOT / "benchmarks").glob("bench_*.py")}


def test_all_of_them_together_are_stopped_in_time() -> None:
    assert max(part.seconds for part in results.PARTS.values()) <= 180


def test_a_benchmark_that_fails_says_so() -> None:
    section = results.run_part(results.Part("Broken", ("no_such_file.py",), 20))
    assert section.startswith("## Broken")
    assert "**It failed: " in section


def test_what_no_time_is_left_for_keeps_its_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text(PAGE)
    monkeypatch.setattr(results, "RESULTS", page)
    monkeypatch.setattr(results, "SECONDS", 0)
    monkeypatch.setattr(results.sys, "argv", ["make_results.py", "tracker"])
    results.main()
    assert page.read_text() == PAGE
