"""What would be published: the source archive builds the wheel, and the wheel alone runs the demo."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

ROOT = Path(__file__).parents[1]
FOLDERS = {"integrations/": "areal_callbacks/integrations/", "examples/": "areal_callbacks/examples/"}
STEPS = 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _list_kept_files() -> list[str]:
    return _run("git", "ls-files", "-z", cwd=ROOT).rstrip("\0").split("\0")


def _build(kind: str, source: Path, target: Path) -> Path:
    """By the build backend itself, whose requirements the test environment has."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    return target / _run(sys.executable, "-c", code, target, cwd=source).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source archive of a clean copy."""
    folder = tmp_path_factory.mktemp("distribution")
    clone = folder / "clone"
    _run("git", "clone", "--quiet", ROOT, clone, cwd=folder)
    for name in _list_kept_files():  # with what is not committed yet
        if (ROOT / name).is_file() and not (clone / name).is_symlink():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    with tarfile.open(_build("sdist", clone, folder)) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return _build("wheel", source, folder)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    packaged = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    kept = set()
    for name in _list_kept_files():
        folder = next((folder for folder in FOLDERS if name.startswith(folder)), "")
        if folder or name.startswith("areal_callbacks/"):
            kept.add(FOLDERS.get(folder, "") + name.removeprefix(folder))
    links = {folder.rstrip("/") for folder in FOLDERS.values()}  # for editors only
    assert packaged == {name for name in kept - links if (ROOT / name).is_file()}


def test_the_metadata_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        lines = archive.read(name).decode().splitlines()
    for field in (
        "Name: areal-callbacks",
        "License-Expression: Apache-2.0",
        "Author",
        "Project-URL",
        "Requires-Python: >=3.11",
    ):
        assert [line for line in lines if line.startswith(field)], field
    assert "Description-Content-Type: text/markdown" in lines


def test_the_wheel_runs_the_demo_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are those of the test environment, which does not lend it this package."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    site = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    where = _run(python, "-c", "import areal_callbacks; print(areal_callbacks.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(site)

    work = tmp_path / "empty"
    work.mkdir()
    said = _run(tmp_path / "venv" / "bin" / "areal-callbacks", "demo", "--steps", str(STEPS), cwd=work)
    assert "report.html" in said
    records = read_metrics(work / "demo_output" / "areal_metrics" / "metrics.jsonl")
    assert sum(each.metrics.get("train_perf/tokens", 0) for each in records if isinstance(each, MetricsRecord)) > 0
