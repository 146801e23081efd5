"""Without a Chromium: `make test` installs one if it may, else one line says how to get it; CI fails instead."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "install-browser"


def make_programs(folder: Path, **programs: str) -> Path:
    """A folder of programs, each a line of shell, with the shell that they need."""
    folder.mkdir()
    (folder / "bash").symlink_to(shutil.which("bash") or "/bin/bash")
    for name, line in programs.items():
        (folder / name).write_text(f"#!{folder}/bash\n{line}\n")
        (folder / name).chmod(0o755)
    return folder


def install(tmp_path: Path, environment: dict[str, str] | None = None, **programs: str) -> list[str]:
    """What the script asks ``apt-get`` for where only these programs exist."""
    log = tmp_path / "log"
    log.touch()
    defaults = {"id": "echo 0", "apt_get": f'echo "$@" >> {log}'}
    found = {name.replace("_", "-"): line for name, line in {**defaults, **programs}.items() if line}
    folder = make_programs(tmp_path / "bin", **found)
    command = [str(folder / "bash"), str(SCRIPT)]
    subprocess.run(command, env={"PATH": str(folder), **(environment or {})}, check=True, capture_output=True)
    return log.read_text().splitlines()


def test_root_with_apt_installs_the_browser_and_its_driver(tmp_path: Path) -> None:
    update, packages = install(tmp_path)
    assert update == "update"
    assert packages.split()[0] == "install"
    assert packages.split()[-2:] == ["chromium", "chromium-driver"]


def test_an_installation_that_fails_is_no_failure(tmp_path: Path) -> None:
    assert install(tmp_path, apt_get="exit 100") == []


@pytest.mark.parametrize(
    ("environment", "programs"),
    [
        ({}, {"chromium": "true", "chromedriver": "true"}),
        ({}, {"id": "echo 1000"}),
        ({}, {"apt_get": ""}),
        ({"INSTALL_BROWSER": "0"}, {}),
    ],
    ids=["it is there", "not root", "no apt", "opted out"],
)
def test_otherwise_nothing_is_installed(tmp_path: Path, environment: dict[str, str], programs: dict[str, str]) -> None:
    assert install(tmp_path, environment, **programs) == []


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "outcome"), [("", "skipped"), ("true", "error")])
def test_without_a_browser_one_line_says_how_to_get_it(tmp_path: Path, ci: str, outcome: str) -> None:
    environment = {**os.environ, "PATH": str(make_programs(tmp_path / "bin")), "CI": ci}
    command = [sys.executable, "-m", "pytest", "-q", str(ROOT / "tests" / "report" / "test_page_charts.py")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    summary = [line for line in done.stdout.splitlines() if line.startswith(outcome.upper())]
    assert f"5 {outcome}" in done.stdout.splitlines()[-1]
    assert done.returncode == (1 if ci else 0)
    assert all("apt-get install chromium chromium-driver" in line for line in summary)
    assert ci or len(summary) == 1
