"""metrics.jsonl from anywhere: what reads it needs no more memory and time than the file's size says."""

from __future__ import annotations

import base64
import json
import os
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from areal_callbacks.charts.recovery import read_layers_of_metrics
from areal_callbacks.cli import main
from areal_callbacks.report import build_report
from areal_callbacks.report.history import History, read_history
from areal_callbacks.report.snapshots import CAPACITY
from areal_callbacks.writers import packed_loads
from areal_callbacks.writers.metrics_file import LONGEST_LINE, MetricsRecord, read_metrics
from areal_callbacks.writers.torn_line import end_last_line

RUN = b'{"kind": "run", "version": 1, "time": 1.0, "config": {}}\n'
MEGABYTE = 1 << 20


def loads_line(layers: list[int], experts: int, content: bytes, step: int = 1, **changes: Any) -> bytes:
    line = {
        "kind": "expert_loads", "step": step, "stack": "", "layers": layers, "experts": experts,
        "counts": base64.b64encode(content).decode(), "dtype": "uint32", **changes,
    }  # fmt: skip
    return json.dumps(line).encode() + b"\n"


def deflate_zeros(size: int) -> bytes:
    packer = zlib.compressobj(9)
    block = bytes(MEGABYTE)
    return b"".join([*(packer.compress(block) for _ in range(size // MEGABYTE)), packer.flush()])


def metrics_line(step: int, **metrics: Any) -> bytes:
    return json.dumps({"kind": "metrics", "step": step, "time": 1.0, "metrics": metrics}).encode() + b"\n"


@contextmanager
def at_most(megabytes: int, seconds: float) -> Iterator[None]:
    """The body's own allocations and processor time; the limits leave room for a slow machine, not for the fault."""
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
        assert time.process_time() - start < seconds
        assert tracemalloc.get_traced_memory()[1] < megabytes * MEGABYTE
    finally:
        tracemalloc.stop()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "a quarter of a gigabyte of counts in 0.3 MB": lambda: loads_line([0], 2, deflate_zeros(256 * MEGABYTE)),
    "a gigabyte of counts as declared": lambda: loads_line([0], 1 << 28, deflate_zeros(16 * MEGABYTE)),
    "counts longer than any compression makes them": lambda: loads_line([0], 2, bytes(2_000)),
    "too many layers": lambda: loads_line([0] * 100_000, 1, deflate_zeros(MEGABYTE)),
    "a negative number of experts": lambda: loads_line([0], -1, b""),
    "a layer of 4,000 digits": lambda: loads_line([10**4000], 0, zlib.compress(b"")),
    "a stack with a long name": lambda: loads_line([0], 0, zlib.compress(b""), stack="s" * 10**6),
    "cut counts": lambda: loads_line([0], 2, zlib.compress(bytes(8))[:-3]),
    "a value of a million characters": lambda: metrics_line(1, a="x" * 10**6),
    "escapes of a terminal": lambda: metrics_line(1, a="\x1b]0;owned\x07"),
    "a line without end": lambda: b'{"kind": "metrics", "x": "' + b"x" * LONGEST_LINE + b'"}\n',
    "deep nesting": lambda: b"[" * 100_000 + b"\n",
    "a number of a million digits": lambda: metrics_line(1).replace(b"{}", b'{"a": ' + b"9" * 10**6 + b"}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line_costs_little_and_is_named_in_a_short_message(tmp_path: Path, name: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(RUN + HOSTILE[name]() + RUN)
    with at_most(120, 20), pytest.raises(ValueError, match=r"metrics.jsonl, line 2: not a valid record: ") as error:
        list(read_metrics(path))
    assert len(str(error.value)) < 1_000
    assert str(error.value).isprintable()
    assert error.value.__cause__ is None  # a traceback would show the whole value


def test_a_long_line_that_is_torn_is_ignored_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(RUN + metrics_line(1, a=1.0) + b'{"kind": "metrics", "x": "' + b"x" * (LONGEST_LINE + 10))
    with at_most(80, 20):
        assert [type(record).__name__ for record in read_metrics(path)] == ["RunRecord", "MetricsRecord"]
        end_last_line(path)
    assert path.read_bytes() == RUN + metrics_line(1, a=1.0)


@pytest.mark.parametrize("torn", [b"[" * 100_000, b'{"a":' * 100_000, b"{", b"\xff\xfe", b'"' * 9, b"1", b"nul"])
def test_a_torn_last_line_of_any_kind_is_ignored_and_removed(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(RUN + torn)
    assert len(list(read_metrics(path))) == 1
    end_last_line(path)
    assert path.read_bytes() == RUN


def test_a_last_line_that_lacks_only_its_end_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(RUN + RUN.rstrip())
    assert len(list(read_metrics(path))) == 2
    end_last_line(path)
    assert path.read_bytes() == RUN + RUN


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe without a writer would be waited for."""
    os.mkfifo(tmp_path / "metrics.jsonl")
    for path in (tmp_path / "metrics.jsonl", Path("/dev/zero"), tmp_path):
        with pytest.raises(ValueError, match="not a regular file"):
            list(read_metrics(path))


def test_many_large_snapshots_stay_within_a_budget(tmp_path: Path) -> None:
    """Each line inflates to a thousand times its size."""
    path = tmp_path / "metrics.jsonl"
    content = deflate_zeros(4 * MEGABYTE)
    path.write_bytes(RUN + b"".join(loads_line([0, 1], 1 << 19, content, step=step) for step in range(60)))
    with at_most(220, 60):
        history = read_history(path, "run")
    assert history.load_exports == 60
    assert sum(snapshot.size for snapshot in history.snapshots) <= (1 << 24) + (2 << 20)
    assert [history.snapshots[0].step, history.snapshots[-1].step] == [0, 59]


def test_a_report_unpacks_only_the_counts_that_it_shows(tmp_path: Path) -> None:
    """Unpacking them all would take longer than reading everything else."""
    path, whole, cut = tmp_path / "metrics.jsonl", zlib.compress(bytes(8)), zlib.compress(bytes(8))[:-3]
    ratio = {"moe_balance/layer_0/max_over_ideal": 1.0}

    def history_with(corrupt: range) -> History:
        lines = [
            metrics_line(step, **ratio) + loads_line([0], 2, cut if step in corrupt else whole, step=step)
            for step in range(4 * CAPACITY)
        ]
        path.write_bytes(RUN + b"".join(lines))
        return read_history(path, "run")

    shown = [snapshot.step for snapshot in history_with(range(0)).snapshots]
    assert shown == [*range(0, 4 * CAPACITY, 4), 4 * CAPACITY - 1]
    assert [snapshot.step for snapshot in history_with(range(21, 24)).snapshots] == shown
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 51: not a valid record"):
        history_with(range(24, 25))


def test_one_step_has_a_limit_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    content = deflate_zeros(4 * MEGABYTE)
    path.write_bytes(RUN + b"".join(loads_line([2 * n, 2 * n + 1], 1 << 19, content) for n in range(5)))
    for read in (lambda: read_history(path, "run"), lambda: list(read_layers_of_metrics(path))):
        with pytest.raises(ValueError, match="step 1 has more than 4,194,304 expert counts"):
            read()


def test_too_many_keys_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("areal_callbacks.report.history.MOST_SERIES", 100)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(RUN + metrics_line(1, **{f"k{number}": 1.0 for number in range(101)}))
    with pytest.raises(ValueError, match="more than 100 keys"):
        read_history(path, "run")


def test_a_run_that_was_resumed_many_times_is_read_in_linear_time(tmp_path: Path) -> None:
    """Each resumption drops one step and adds two; dropping them at once would take a walk over everything."""
    path = tmp_path / "metrics.jsonl"
    starts = 6_000
    path.write_bytes(b"".join(RUN + metrics_line(n, a=float(n)) + metrics_line(n + 1, a=-1.0) for n in range(starts)))
    with at_most(200, 30):
        history = read_history(path, "run")
    assert history.steps == list(range(starts + 1))
    assert history.series["a"].values == [*map(float, range(starts)), -1.0]
    assert history.resumed_at == list(range(1, starts))


def test_recovery_reads_a_step_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    content = zlib.compress(bytes(1 << 18))
    path.write_bytes(RUN + b"".join(loads_line([0], 1 << 16, content, step=step) for step in (3, 1, 2, 1)))
    with at_most(20, 20):
        assert [table.source for table in read_layers_of_metrics(path)] == [1, 2, 3]


def test_the_command_shows_neither_traceback_nor_content(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(RUN + metrics_line(1, a="\x1b[31m" + "x" * 10**6))
    for command in (["report", str(path)], ["wandb-charts", "recover", str(path)]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 1
        assert result.output.startswith("Error: ")
        assert len(result.output) < 1_000
        assert "\x1b" not in result.output


def test_a_hostile_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "expert_loads.table.json"
    for content in ("[" * 100_000, '{"columns": 3}', "[]", '{"columns": ["layer"], "data": []}', "\x1b"):
        path.write_text(content)
        result = CliRunner().invoke(main, ["wandb-charts", "recover", str(path)])
        assert result.exit_code == 1, content[:20]
        assert result.output.startswith(f"Error: {path}: not a table")
        assert "\x1b" not in result.output


def test_names_in_a_report_stay_text_and_numbers_of_any_size_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    name = "</script><script>alert(1)</script>\x1b\t\n"
    path.write_bytes(RUN + metrics_line(2**62, **{name: 1e308}) + metrics_line(-(2**62), **{name: "-Infinity"}))
    page = build_report([path], tmp_path / "report.html").read_text()
    assert "alert(1)</script>" not in page


def test_the_limits_leave_room_for_real_runs() -> None:
    layers, experts, scalars = 256, 4_096, 10_000
    assert layers * experts <= packed_loads.MOST_COUNTS
    assert layers * experts * 8 * 4 // 3 < LONGEST_LINE  # eight bytes a count, not compressed at all, in base64
    line = metrics_line(
        1, **{f"moe_balance/layer_{number}/max_over_ideal": 1.2345678901234567 for number in range(scalars)}
    )
    assert len(line) < LONGEST_LINE


def test_numbers_that_are_no_scalars_are_refused_with_their_type(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(RUN + metrics_line(1, a=[1.0]))
    with pytest.raises(ValueError, match="line 2: not a valid record: TypeError"):
        list(read_metrics(path))
    path.write_bytes(RUN + metrics_line(1, a=True))
    assert [record.metrics for record in read_metrics(path) if isinstance(record, MetricsRecord)] == [{"a": 1.0}]
