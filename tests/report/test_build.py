"""Which runs a path means, what the file holds and how large it is."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.report_runs import export, typical_metrics, write_run

from areal_callbacks.report import build_report, find_metrics
from areal_callbacks.report.locate import name_runs

EVIL = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"


def small_run(folder: Path) -> Path:
    return write_run(folder, [export(step, {"a": float(step)}) for step in (1, 2)])


def test_a_file_its_folder_and_the_folder_of_a_host(tmp_path: Path) -> None:
    file = small_run(tmp_path / "host" / "areal_metrics")
    for path in (file, file.parent, file.parent.parent):
        assert find_metrics(path) == file
    timed = small_run(tmp_path / "cwd" / "areal_metrics" / "20250101-000000")
    assert find_metrics(tmp_path / "cwd") == timed
    assert find_metrics(tmp_path / "cwd" / "areal_metrics") == timed


def test_paths_that_do_not_tell(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere: no such file or folder"):
        find_metrics(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no metrics\.jsonl in it"):
        find_metrics(tmp_path)
    for name in ("one", "two"):
        small_run(tmp_path / name)
    with pytest.raises(ValueError, match=r"several runs, choose among .*one, .*two"):
        find_metrics(tmp_path)


def test_names_tell_the_runs_apart() -> None:
    def names(*folders: str) -> list[str]:
        return name_runs([Path(folder, "metrics.jsonl") for folder in folders])

    assert names("/x/run1/areal_metrics") == ["run1"]
    assert names("/x/run1", "/x/run2") == ["run1", "run2"]
    assert names("/a/same/areal_metrics", "/b/same") == ["a/same", "b/same"]
    assert names("/a/same", "/a/same") == ["same (1)", "same (2)"]
    assert name_runs([Path("/x/first.jsonl"), Path("/x/second.jsonl")]) == ["first", "second"]


def test_arguments_are_checked(tmp_path: Path) -> None:
    small_run(tmp_path / "run")
    with pytest.raises(ValueError, match="at least one run"):
        build_report([], tmp_path / "report.html")
    with pytest.raises(ValueError, match="2 for 1 runs: 'a', 'b'"):
        build_report([tmp_path / "run"], tmp_path / "report.html", names=["a", "b"])
    assert not (tmp_path / "report.html").exists()


def test_an_older_report_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    small_run(tmp_path)
    output = tmp_path / "out" / "report.html"
    for _ in range(2):
        assert build_report([tmp_path], output) == output
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]


def test_no_name_or_value_becomes_markup(tmp_path: Path) -> None:
    file = write_run(tmp_path, [export(1, {f"{EVIL}": 1.0})], {"note": EVIL, EVIL: [EVIL]})
    text = build_report([file], tmp_path / "report.html", names=[EVIL]).read_text(encoding="utf-8")
    assert "<script>window" not in text
    assert "<img" not in text
    assert len(re.findall(r"</script", text)) == len(re.findall(r"<script", text)) == 3
    data = json.loads(text.partition('type="application/json">')[2].partition("</script>")[0])
    assert data["runs"][0]["name"] == EVIL
    assert data["runs"][0]["config"] == {"note": EVIL, EVIL: [EVIL]}


def test_halves_of_characters_do_not_cost_the_report(tmp_path: Path) -> None:
    """Names that Python made of undecodable bytes, as in paths."""
    file = write_run(tmp_path, [export(1, {"half \ud800": 1.0})], {"half \ud800": "\udcff"})
    text = build_report([file], tmp_path / "report.html", names=["run \udcff"]).read_text(encoding="utf-8")
    assert "run \\udcff" in text


def test_secrets_that_somebody_put_into_the_file_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"kind": "run", "version": 1, "time": 1, "config": {"api_key": "s3cr3t", "lr": NaN}}\n')
    text = build_report([file], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "[redacted]" in text
    assert "s3cr3t" not in text


def test_only_the_scripts_of_the_report_may_run_and_nothing_is_loaded(tmp_path: Path) -> None:
    small_run(tmp_path)
    text = build_report([tmp_path], tmp_path / "report.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert not re.search(r"(src|href)\s*=|@import|url\(", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))
    assert "Copyright (c) 2022 Leon Sorokin" in text


def random_counts(generator: np.random.Generator, layers: int, experts: int) -> np.ndarray:
    """Poisson counts around loads that differ between experts and drift, a few thousand tokens each."""
    loads = np.exp(generator.normal(0, 0.4, (layers, experts)))
    return generator.poisson(4096 * loads)


def write_lines(
    folder: Path, steps: int, metrics: Callable[[int], dict[str, float]], counts: Callable[[int], Any]
) -> None:
    """The file of a long run, line by line: much faster than through a writer."""
    with (folder / "metrics.jsonl").open("w") as lines:
        for step in range(1, steps + 1):
            line = {"kind": "metrics", "step": step, "time": 0.0, "metrics": metrics(step)}
            lines.write(json.dumps(line) + "\n")
            if (text := counts(step)) is not None:
                shape = {"layers": list(range(48)), "experts": 128, "counts": text, "dtype": "uint32"}
                lines.write(json.dumps({"kind": "expert_loads", "step": step, "stack": "", **shape}) + "\n")


def packed(counts: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(counts.astype("<u4").tobytes(), 1)).decode()


def imbalance(step: int) -> dict[str, float]:
    return {f"moe_balance/layer_{layer}/max_over_ideal": 1.5 + math.sin(step * layer) for layer in range(48)}


@pytest.mark.slow
def test_a_usual_run_fits_into_two_megabytes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    write_lines(
        tmp_path,
        400,
        lambda step: typical_metrics(step, 400) | imbalance(step),
        lambda _: packed(random_counts(generator, 48, 128)),
    )
    assert 500_000 < build_report([tmp_path], tmp_path / "report.html").stat().st_size <= 2_000_000


@pytest.mark.slow
def test_a_long_run_fits_into_six_megabytes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    counts = [packed(random_counts(generator, 48, 128)) for _ in range(8)]
    noise = [
        {f"noise/{place}": value for place, value in enumerate(row)} for row in generator.normal(size=(97, 30)).tolist()
    ]
    write_lines(
        tmp_path,
        20_000,
        lambda step: typical_metrics(step, 20_000) | imbalance(step) | noise[step % 97],
        lambda step: counts[step // 20 % 8] if step % 20 == 0 else None,
    )
    assert 500_000 < build_report([tmp_path], tmp_path / "report.html").stat().st_size <= 6_000_000
