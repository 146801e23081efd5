"""Every script of docs/start.md as it stands there: the first number for a newcomer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from areal_callbacks.examples.byte_text import PAD, ByteText
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

PAGE = (Path(__file__).parents[1] / "docs" / "start.md").read_text()
SCRIPTS = dict(re.findall(r'^```python title="([\w.]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL))
ROWS = 20 * 8

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_every_python_block_is_a_script_that_runs_here() -> None:
    assert len(SCRIPTS) == len(re.findall(r"^```python", PAGE, re.MULTILINE))


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "tiny.py"])
def test_the_first_number(name: str, tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(SCRIPTS["tiny.py"])
    (tmp_path / name).write_text(SCRIPTS[name])
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1"}
    command = [sys.executable, name]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "areal_callbacks:" not in done.stderr
    (file,) = tmp_path.rglob("metrics.jsonl")
    assert (file.parent / "report.html").exists()
    assert str(file.parent.relative_to(tmp_path)) in done.stdout
    counts = [record.metrics["train_perf/tokens"] for record in read_metrics(file) if isinstance(record, MetricsRecord)]
    assert len(counts) == 4
    assert sum(counts) == int((ByteText("train", rows=ROWS).input_ids != PAD).sum())
