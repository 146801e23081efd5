"""The comparison of the hosts' own tests, on a suite of four tests that tells both runs apart."""

from __future__ import annotations

from pathlib import Path

from peers.suites import Suite, compare, run_suite

TESTS = """
import os, sys, unittest
import pytest

ATTACHED = os.environ["AREAL_PEERS"] == "attached"

class Case(unittest.TestCase):
    def test_frameworks_are_observed_in_one_of_the_runs(self):
        assert any("AfterImport" in repr(finder) for finder in sys.meta_path) is ATTACHED

    def test_differs(self):
        assert not ATTACHED

@pytest.mark.parametrize("name", ["a", "b"])
def test_skips(name):
    if name == "a":
        pytest.skip("here")
"""


def test_what_differs_is_found_and_can_be_run_again_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_host.py").write_text(TESTS)
    suite = Suite(("host",), ("tests",))
    plain = run_suite(suite, tmp_path, suite.tests, attached=False, seconds=100)
    attached = run_suite(suite, tmp_path, suite.tests, attached=True, seconds=100)
    file = "tests/test_host.py"
    assert plain == {
        f"{file}::Case::test_frameworks_are_observed_in_one_of_the_runs": "passed",
        f"{file}::Case::test_differs": "passed",
        f"{file}::test_skips[a]": "skipped",
        f"{file}::test_skips[b]": "passed",
    }
    differences = compare(plain, attached)
    assert differences == {f"{file}::Case::test_differs": ("passed", "failed")}
    again = run_suite(suite, tmp_path, list(differences), attached=True, seconds=100)
    assert again == {f"{file}::Case::test_differs": "failed"}


def test_an_interrupted_suite_keeps_what_it_has_run(tmp_path: Path) -> None:
    (tmp_path / "test_host.py").write_text(
        "import os, signal\ndef test_a(): pass\ndef test_b(): os.kill(os.getpid(), signal.SIGINT)\n"
    )
    suite = Suite(("host",), ("test_host.py",))
    outcomes = run_suite(suite, tmp_path, suite.tests, attached=False, seconds=100)
    assert outcomes == {"test_host.py::test_a": "passed"}
