"""metrics.jsonl: what is written is what is read, also after a kill."""

from __future__ import annotations

import base64
import json
import math
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.base import MetricWriter
from areal_callbacks.writers.jsonl import ExpertLoadsRecord, JsonlWriter, MetricsRecord, RunRecord, read_metrics


def write(folder: Path, *exports: Export, **config: Any) -> Path:
    writer = JsonlWriter()
    writer.open(Run(folder, config))
    for export in exports:
        writer.write(export)
    writer.close()
    return folder / "metrics.jsonl"


def raw(path: Path) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def layer(stack: str, number: int, *counts: int) -> LayerLoads:
    return LayerLoads(stack, number, torch.tensor(counts, dtype=torch.int64))


def test_it_is_a_metric_writer() -> None:
    assert isinstance(JsonlWriter(), MetricWriter)


def test_the_lines_are_those_of_the_format(tmp_path: Path) -> None:
    loads = ExpertLoads((layer("", 0, 1, 2), layer("", 3, 70000, 4)))
    export = Export(10, {"train_perf/tokens": 4096.0}, loads, {"loss": 1.5, "train_perf/tokens": 7.0}, 123.5)
    run, metrics, experts = raw(write(tmp_path, export, every=1, wandb_api_key="s3cr3t"))
    assert abs(run.pop("time") - time.time()) < 60
    config = {"every": 1, "wandb_api_key": "[redacted]"}
    assert run == {"kind": "run", "version": 1, "config": config, "resumes": None}
    assert metrics == {
        "kind": "metrics",
        "step": 10,
        "time": 123.5,
        "metrics": {"loss": 1.5, "train_perf/tokens": 4096.0},
    }
    counts = zlib.decompress(base64.b64decode(experts.pop("counts")))
    assert struct.unpack("<4I", counts) == (1, 2, 70000, 4)
    assert experts == {
        "kind": "expert_loads", "step": 10, "stack": "", "layers": [0, 3], "experts": 2, "dtype": "uint32",
    }  # fmt: skip


def test_a_record_per_stack_and_width_and_wide_counts_only_where_needed(tmp_path: Path) -> None:
    loads = ExpertLoads((
        layer("", 0, 1, 2), layer("", 1, 3, 4, 5), layer("", 2, 2**32, 2**53), layer("encoder", 0, 6, 2**32 - 1),
    ))  # fmt: skip
    path = write(tmp_path, Export(1, {}, loads))
    assert [(line["stack"], line["layers"], line["experts"], line["dtype"]) for line in raw(path)[2:]] == [
        ("", [0, 2], 2, "uint64"),
        ("", [1], 3, "uint32"),
        ("encoder", [0], 2, "uint32"),
    ]
    assert list(read_metrics(path))[2:] == [
        ExpertLoadsRecord(1, "", [0, 2], 2, [[1, 2], [2**32, 2**53]]),
        ExpertLoadsRecord(1, "", [1], 3, [[3, 4, 5]]),
        ExpertLoadsRecord(1, "encoder", [0], 2, [[6, 2**32 - 1]]),
    ]


def test_counts_take_no_more_room_than_a_search_for_matches_would_leave_them(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    counts = source.poisson(500 * np.exp(source.normal(0, 0.3, (16, 64))))
    counts[:, ::4] = 0  # experts without a token
    path = write(tmp_path, Export(1, {}, ExpertLoads(tuple(layer("", n, *row) for n, row in enumerate(counts)))))
    packed = base64.b64decode(raw(path)[2]["counts"])
    assert len(packed) < 1.1 * len(zlib.compress(counts.astype("<u4").tobytes(), 9))


def test_non_finite_numbers_are_words_and_come_back_as_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, Export(1, {"a": math.nan, "b": math.inf, "c": -math.inf}))
    assert raw(path)[1]["metrics"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity"}
    (metrics,) = (record.metrics for record in read_metrics(path) if isinstance(record, MetricsRecord))
    assert math.isnan(metrics["a"])
    assert (metrics["b"], metrics["c"]) == (math.inf, -math.inf)


def test_scalars_of_any_library_are_numbers_and_words_are_left_out(tmp_path: Path) -> None:
    host: dict[str, Any] = {
        "numpy": np.float32(0.5), "integer": np.int64(3), "tensor": torch.tensor(2.5), "word": "warm-up",
        "vector": torch.ones(2), "nothing": None,
    }  # fmt: skip
    path = write(tmp_path, Export(np.int64(4), {}, None, host))  # type: ignore[arg-type]
    line = raw(path)[1]
    assert line["step"] == 4
    assert line["metrics"] == {"numpy": 0.5, "integer": 3, "tensor": 2.5}


@given(
    metrics=st.dictionaries(st.text(), st.floats(allow_nan=False)),
    counts=st.lists(st.lists(st.integers(0, 2**60), min_size=3, max_size=3), min_size=1, max_size=4),
    step=st.integers(0, 2**40),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, metrics: dict[str, float], counts: list[list[int]], step: int
) -> None:
    loads = ExpertLoads(tuple(layer("", number, *row) for number, row in enumerate(counts)))
    path = write(tmp_path_factory.mktemp("run"), Export(step, metrics, loads, time=1.0))
    run, *records = read_metrics(path)
    assert isinstance(run, RunRecord)
    assert records == [
        MetricsRecord(step, 1.0, metrics),
        ExpertLoadsRecord(step, "", list(range(len(counts))), 3, counts),
    ]


def test_a_resumed_run_appends(tmp_path: Path) -> None:
    write(tmp_path, Export(1, {"a": 1.0}), seed=1)
    path = write(tmp_path, Export(2, {"a": 2.0}), seed=2)
    records = list(read_metrics(path))
    assert [type(record) for record in records] == [RunRecord, MetricsRecord] * 2
    assert [record.config for record in records if isinstance(record, RunRecord)] == [{"seed": 1}, {"seed": 2}]


@given(kept=st.integers(0, 400))
def test_a_file_torn_at_any_byte_loses_only_the_torn_line(tmp_path_factory: pytest.TempPathFactory, kept: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    path = write(folder, Export(1, {"a": 1.0}), Export(2, {"a": 2.0}))
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    lines = whole.splitlines()
    survivors = sum(len(b"\n".join(lines[: count + 1])) <= kept for count in range(len(lines)))
    assert len(list(read_metrics(path))) == survivors
    write(folder, Export(3, {"a": 3.0}))
    assert len(list(read_metrics(path))) == survivors + 2
    assert len(raw(path)) == survivors + 2


def test_a_torn_line_longer_than_a_block_is_removed(tmp_path: Path) -> None:
    path = write(tmp_path, Export(1, {"a": 1.0}))
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"kind": "metrics", "metrics": {' + b"x" * 200_000)
    write(tmp_path, Export(2, {"a": 2.0}))
    assert [record.step for record in read_metrics(path) if isinstance(record, MetricsRecord)] == [1, 2]
    assert path.read_bytes()[size - 1 : size] == b"\n"


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (b'{"kind": "metr', "JSONDecodeError"),
        (b"[1]", "TypeError"),
        (b'{"step": 1}', "KeyError: 'kind'"),
        (b'{"kind": "metrics", "step": 1}', "KeyError"),
        (b'{"kind": "metrics", "step": 1, "time": 1, "metrics": {"a": "much"}}', "could not convert"),
        (b'{"kind": "run", "version": 2, "time": 1, "config": {}}', "format version 2 is newer than 1"),
        (b'{"kind": "expert_loads", "step": 1, "stack": "", "layers": [0], "experts": 2, "counts": "AAAA", '
         b'"dtype": "uint32"}', "error"),
        (b"\xff\xfe", "UnicodeDecodeError"),
        (b'{"kind": "metrics", "step": 1e400, "time": 1, "metrics": {}}', "OverflowError"),
        (b'{"kind": "metrics", "step": %d, "time": 1, "metrics": {}}' % (2**64), "more than 64 bits"),
        (b'{"kind": "metrics", "step": 1, "time": 1, "metrics": {"a": %d}}' % (10**400), "OverflowError"),
        (b"[" * 100_000, "RecursionError"),
    ],
)  # fmt: skip
def test_a_corrupt_line_in_the_middle_is_named(tmp_path: Path, line: bytes, match: str) -> None:
    path = write(tmp_path, Export(1, {"a": 1.0}))
    with path.open("ab") as file:
        file.write(line + b"\n")
    write(tmp_path, Export(2, {"a": 2.0}))
    with pytest.raises(ValueError, match=f"metrics.jsonl, line 3: not a valid record: .*{match}"):
        list(read_metrics(path))


def test_too_few_counts_are_corrupt(tmp_path: Path) -> None:
    path = write(tmp_path, Export(1, {}, ExpertLoads((layer("", 0, 1, 2),))))
    path.write_text(path.read_text().replace('"experts": 2', '"experts": 3'))
    with pytest.raises(ValueError, match=r"line 3: .*2 counts for 1 layers of 3 experts"):
        list(read_metrics(path))


def test_kinds_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, Export(1, {"a": 1.0}))
    with path.open("a") as file:
        file.write('{"kind": "note", "text": "x"}\n')
    assert len(list(read_metrics(path))) == 2


def test_every_row_is_readable_while_the_file_is_open(tmp_path: Path) -> None:
    writer = JsonlWriter()
    writer.open(Run(tmp_path / "made" / "here"))
    for step in range(3):
        writer.write(Export(step, {"a": 1.0}))
        assert len(list(read_metrics(tmp_path / "made" / "here" / "metrics.jsonl"))) == step + 2
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="not open"):
        writer.write(Export(9, {}))


VICTIM = """
import sys, time
from pathlib import Path
from areal_callbacks.core.types import Export, Run
from areal_callbacks.writers.publisher import Publisher
from areal_callbacks.writers.jsonl import JsonlWriter
publisher = Publisher([], run=Run(Path(sys.argv[1])), synchronous=[JsonlWriter()])
for step in range(30):
    publisher.publish(Export(step, {"a": float(step)}))
print("written", flush=True)
time.sleep(60)
"""


def test_a_killed_process_leaves_every_row(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", VICTIM, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        child.send_signal(signal.SIGKILL)
    steps = [record.step for record in read_metrics(tmp_path / "metrics.jsonl") if isinstance(record, MetricsRecord)]
    assert steps == list(range(30))
