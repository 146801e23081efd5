"""The notebook runs as it is, its training cell twice, and shows the report."""

from __future__ import annotations

import html
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from areal_callbacks.examples.byte_text import PAD, ByteText
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"
STEPS, LOGGING, ROWS = 4, 2, 8

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client|ipykernel|zmq|nbclient")


def _read() -> NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def _cell(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell["id"] == name)


def test_it_is_kept_without_outputs() -> None:
    nbformat.validate(_read())
    assert [cell["id"] for cell in _read().cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.slow
def test_a_training_cell_that_runs_twice_is_two_trainings_in_one_report(tmp_path: Path) -> None:
    notebook = _read()
    train = _cell(notebook, "train")
    train.source = train.source.replace("steps = 20", f"steps = {STEPS}")
    again = nbformat.v4.new_code_cell(train.source)
    notebook.cells.insert(notebook.cells.index(train) + 1, again)
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()

    records = [
        each.metrics["train_perf/tokens"]
        for each in read_metrics(tmp_path / "notebook_output" / "areal_metrics" / "metrics.jsonl")
        if isinstance(each, MetricsRecord) and "train_perf/tokens" in each.metrics
    ]
    assert len(records) == 2 * STEPS // LOGGING
    assert sum(records) == 2 * int((ByteText("train", rows=ROWS * STEPS).input_ids != PAD).sum())
    (output,) = _cell(notebook, "report").outputs
    shown = output["data"]["text/html"]
    page = html.unescape(re.fullmatch(r'<iframe [^>]*srcdoc="([^"]*)"></iframe>', shown)[1])
    assert page == (tmp_path / "notebook_output" / "areal_metrics" / "report.html").read_text()
    assert "train_perf/tokens" in _cell(notebook, "numbers").outputs[0]["data"]["text/plain"]
    said = "".join(each.get("text", "") for cell in (train, again) for each in cell.outputs)
    assert "Traceback" not in said
