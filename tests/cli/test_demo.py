"""``areal-callbacks demo``, run for real in processes of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click.testing import CliRunner
from transformers import Qwen3MoeConfig

from areal_callbacks.cli import demo, main
from areal_callbacks.examples.byte_text import PAD, ByteText
from areal_callbacks.flops import get_flops_estimator
from areal_callbacks.writers.jsonl import ExpertLoadsRecord, MetricsRecord, read_metrics

STEPS, ROWS_PER_STEP, TOP_K = 6, 16, 2
REPOSITORY = Path(__file__).parents[2]
TIMING = ("second", "timeperf/", "runtime", "flops_per_second", "goodput", "device_memory/")


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done


def _executable() -> str:
    found = shutil.which("areal-callbacks", path=sysconfig.get_path("scripts"))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the demo ran, which is not the repository; holds its standard output as well."""
    folder = tmp_path_factory.mktemp("demo")
    done = _run([_executable(), "demo", "--steps", str(STEPS)], folder)
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    return folder


def _metrics(folder: Path) -> list[MetricsRecord]:
    records = read_metrics(folder / "demo_output" / "areal_metrics" / "metrics.jsonl")
    return [record for record in records if isinstance(record, MetricsRecord)]


@pytest.mark.slow
def test_the_totals_are_those_of_the_text(demo_folder: Path) -> None:
    rows = ByteText("train", rows=ROWS_PER_STEP * STEPS)
    lengths = [int((row["input_ids"] != PAD).sum()) for row in rows]
    dimensions = {"hidden_size": 128, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 8, "num_experts_per_tok": TOP_K, "moe_intermediate_size": 128}
    flops = get_flops_estimator(Qwen3MoeConfig(vocab_size=257, num_hidden_layers=4, **dimensions, **experts))
    assert flops is not None

    exports = [record.metrics for record in _metrics(demo_folder) if "train_perf/tokens" in record.metrics]

    assert [record.step for record in _metrics(demo_folder)] == [5, 6]
    assert sum(export["train_perf/tokens"] for export in exports) == sum(lengths)
    assert exports[-1]["train_perf/total_tokens"] == sum(lengths)
    assert sum(export["train_perf/estimated_flops"] for export in exports) == sum(map(flops, lengths))
    assert sum(export["train_perf/optimizer_steps"] for export in exports) == STEPS


@pytest.mark.slow
def test_every_position_of_the_text_was_routed_in_each_layer(demo_folder: Path) -> None:
    records = read_metrics(demo_folder / "demo_output" / "areal_metrics" / "metrics.jsonl")
    loads = [record for record in records if isinstance(record, ExpertLoadsRecord)]
    assert all((record.layers, record.experts) == ([0, 1, 2, 3], 8) for record in loads)
    routed = [sum(sum(record.counts[layer]) for record in loads) for layer in range(4)]
    assert routed == [ROWS_PER_STEP * STEPS * 256 * TOP_K] * 4  # padding is routed too


@pytest.mark.slow
def test_it_shows_progress_a_table_and_the_paths(demo_folder: Path) -> None:
    stdout, stderr = (demo_folder / "stdout").read_text(), (demo_folder / "stderr").read_text()
    assert f"{STEPS}/{STEPS}" in stderr
    assert "Warning" not in stderr
    assert f"AReaL metrics, step {STEPS}" in stdout
    assert stdout.count("\nmoe_balance/layer_") == 3
    assert "  demo_output/areal_metrics/metrics.jsonl" in stdout
    assert "tensorboard --logdir demo_output" in stdout
    assert stdout.splitlines()[-1] == "Open this file in a browser: demo_output/areal_metrics/report.html"
    assert list((demo_folder / "demo_output" / "runs").rglob("events.out.tfevents.*"))


@pytest.mark.slow
def test_the_script_of_the_repository_gives_the_same_run(demo_folder: Path, tmp_path: Path) -> None:
    script = REPOSITORY / "examples" / demo.SCRIPT
    _run([sys.executable, str(script), "--steps", str(STEPS), "--output", "demo_output"], tmp_path)

    def numbers(folder: Path) -> list[dict[str, float]]:
        return [
            {key: value for key, value in record.metrics.items() if not any(word in key for word in TIMING)}
            for record in _metrics(folder)
        ]

    assert numbers(tmp_path) == numbers(demo_folder)
    assert "loss" in numbers(tmp_path)[0]


@pytest.mark.slow
def test_options_and_the_exit_code_are_the_scripts_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [_executable(), "demo", "--no-such-option"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "areal-callbacks demo: error: unrecognized arguments: --no-such-option" in done.stderr
    help_text = _run([_executable(), "demo", "--help"], tmp_path).stdout
    assert help_text.startswith("usage: areal-callbacks demo ")
    assert "--output" in help_text


def test_a_missing_framework_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "the demo needs transformers: pip install 'areal-callbacks[transformers,tensorboard]'" in result.output


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(3)", 3), ("1 / 0", 1), ("pass", 0)])
def test_exit_codes(code: str, expected: int) -> None:
    assert demo.run_and_wait([sys.executable, "-c", code]) == expected


def test_a_signal_that_ends_the_script_shows_as_in_a_shell() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert demo.run_and_wait([sys.executable, "-c", code]) == 128 + signal.SIGTERM


def test_an_interrupt_lets_the_script_clean_up(tmp_path: Path) -> None:
    """Ctrl-C reaches both processes, as from a terminal; the script takes its time and says how it ended."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(1)\n"
        "    print('cleaned up')\n"
        "    sys.exit(7)\n"
    )
    code = (
        "import sys; from areal_callbacks.cli.demo import run_and_wait; "
        f"sys.exit(run_and_wait([sys.executable, {str(script)!r}]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read() == "cleaned up\n"
        assert process.wait(timeout=30) == 7
