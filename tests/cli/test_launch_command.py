"""``areal-callbacks launch``, the real command: what Accelerate's own would do, and metrics."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from support.launches import BIN, CPU, all_tokens, environment, rows, tokens, write_config

from areal_callbacks.cli import launch, main
from areal_callbacks.config.files import Layer
from areal_callbacks.examples.byte_text import ByteText
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


class TestScripts:
    def test_two_processes_and_a_script_whose_flags_look_like_accelerates(self, place, command):
        path = write_config(place, {"every": 3, "report": False}, distributed_type="MULTI_GPU", num_processes=2)
        before = hashlib.sha256((place / path).read_bytes()).hexdigest()
        flags = ["--config_file", "out", "--num_processes=7", "--cpu", "--areal_config", "mine", "--", "-m", "--help"]
        done = command("--config_file", path, "loop.py", *flags, ACCELERATE_USE_CPU="true")
        assert done.returncode == 0, done.stderr
        told = [json.loads((place / f"told_{rank}.json").read_text()) for rank in range(2)]
        for own in told:
            assert own["processes"] == 2
            assert own["options"] == {
                "config_file": "out",
                "num_processes": 7,
                "areal_config": "mine",
                "cpu": True,
                "rest": ["-m", "--help"],
            }
        exported = rows(place / "out")
        assert len(exported) == 1  # four steps, exported at the third; the script has no end
        assert exported[0]["train_perf/optimizer_steps"] == 2  # ranks meet in the third backward, before its step
        assert exported[0]["train_perf/tokens"] < sum(own["tokens"] for own in told)
        assert hashlib.sha256((place / path).read_bytes()).hexdigest() == before

    def test_a_trainer_in_a_module_under_the_default_config(self, place, command):
        (place / "home" / "accelerate").mkdir()
        document = {**CPU, "areal_callbacks": {"report": False, "every": 2}}
        (place / "home" / "accelerate" / "default_config.yaml").write_text(yaml.safe_dump(document))
        done = command("-m", "hf_trainer")
        assert done.returncode == 0, done.stderr
        exported = rows(place / "trainer")
        assert len(exported) == 2
        assert exported[-1]["train_perf/total_tokens"] == tokens(place / "trainer") == all_tokens()

    def test_lightning_under_a_config_of_its_own_file_beside_accelerates(self, place, command):
        (place / "metrics.yaml").write_text("report: false\nmoe_balance: false\n")
        done = command("--areal-config", "metrics.yaml", "--config_file", write_config(place), "with_lightning.py")
        assert done.returncode == 0, done.stderr
        exported = rows(place / "lightning")
        assert sum(row["train_perf/tokens"] for row in exported) == all_tokens()
        assert not any("moe_balance" in name for row in exported for name in row)

    def test_accelerates_own_launcher_with_the_environment_variable(self, place, command):
        settings = json.dumps({"report": False, "every": 4})
        done = command(
            *("--config_file", write_config(place), "-m", "areal_callbacks.run", "loop.py", "--config_file", "out"),
            program="accelerate",
            AREAL_CALLBACKS=settings,
        )
        assert done.returncode == 0, done.stderr
        assert [row["train_perf/optimizer_steps"] for row in rows(place / "out")] == [4, 4]
        assert tokens(place / "out") == json.loads((place / "told_0.json").read_text())["tokens"] == all_tokens()

    def test_a_script_that_fails_ends_as_under_accelerate(self, place, command):
        (place / "fails.py").write_text("import sys; print('begun', sys.argv[1]); raise SystemExit(int(sys.argv[1]))")
        ours = command("--config_file", write_config(place, {"every": 2}), "fails.py", "3")
        theirs = command("--config_file", write_config(place), "fails.py", "3", program="accelerate")
        assert ours.returncode == theirs.returncode == 1
        assert ours.stdout == theirs.stdout == "begun 3\n"
        last = [done.stderr.strip().splitlines()[-1] for done in (ours, theirs)]
        assert all("returned non-zero exit status 3" in line for line in last)
        assert "Traceback" not in ours.stderr

    def test_a_script_that_is_not_there_has_no_traceback(self, place, command):
        done = command("--config_file", write_config(place), "nope.py")
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert f"can't open file '{place}/nope.py': [Errno 2] No such file or directory" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("Error: Command ")

    def test_a_rank_that_fails_is_torchs_report_without_a_traceback(self, place, command):
        path = write_config(place, distributed_type="MULTI_GPU", num_processes=2)
        (place / "fails.py").write_text("import os; raise SystemExit(3 if os.environ['RANK'] == '1' else 0)")
        done = command("--config_file", path, "fails.py", ACCELERATE_USE_CPU="true")
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "exitcode  : 3" in done.stderr.partition("Error: ")[2]

    def test_the_end_by_a_scheduler_leaves_no_file(self, place):
        (place / "waits.py").write_text("print('begun', flush=True)\nimport time\ntime.sleep(60)")
        line = [str(BIN / "areal-callbacks"), "launch", "--config_file", write_config(place, {"every": 2}), "waits.py"]
        with subprocess.Popen(
            line, cwd=place, env=environment(place), stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 128 + signal.SIGTERM
            os.killpg(process.pid, signal.SIGKILL)  # the script, as Accelerate leaves it


class TestUsage:
    def test_options_are_accelerates_and_one_of_ours(self, command, monkeypatch):
        monkeypatch.setattr("sys.argv", ["accelerate", "launch", "--help"])  # where its help looks
        theirs = options_in(command("--help", program="accelerate").stdout)
        ours = options_in(launch.build_parser().format_help())
        assert set(ours) - set(theirs) == {"--areal_config"}
        assert set(theirs) <= set(ours)

    def test_without_a_script_it_is_an_error_as_in_accelerate(self, monkeypatch):
        monkeypatch.setattr("sys.argv", ["areal-callbacks"])
        result = CliRunner().invoke(main, ["launch"])
        assert result.exit_code == 2
        assert "the following arguments are required: training_script" in result.output

    def test_an_unknown_option_is_accelerates_error(self, monkeypatch):
        monkeypatch.setattr("sys.argv", ["areal-callbacks"])
        result = CliRunner().invoke(main, ["launch", "--no_such_option", "loop.py", "--x"])
        assert result.exit_code == 2


def options_in(text: str) -> list[str]:
    return [word.strip("[],") for word in text.split() if word.startswith(("--", "[--"))]


class TestReadyMadeConfigs:
    @pytest.mark.parametrize("path", sorted((EXAMPLES / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
    def test_accelerate_understands_the_rest_of_each(self, path, tmp_path):
        from accelerate.commands.config.config_args import load_config_from_file
        from accelerate.commands.launch import _validate_launch_command, launch_command_parser

        document, source = launch.read_accelerate_config(str(path), cpu=False)
        assert launch.read_settings(Layer(source, document.pop("areal_callbacks")), None)["every"] > 1
        (tmp_path / "rest.yaml").write_text(yaml.safe_dump(document))
        loaded = load_config_from_file(str(tmp_path / "rest.yaml"))
        assert loaded.num_processes == document["num_processes"]
        arguments = launch_command_parser().parse_args(["--config_file", str(tmp_path / "rest.yaml"), "train.py"])
        options, _, _ = _validate_launch_command(arguments)
        assert (options.multi_gpu, options.use_fsdp) == (path.stem != "fsdp2", path.stem == "fsdp2")
        if path.stem == "fsdp2":
            assert (options.fsdp_version, options.mixed_precision) == (2, "bf16")

    def test_two_cpu_processes_train_the_example(self, command, place):
        path, script = EXAMPLES / "accelerate" / "cpu_ddp.yaml", EXAMPLES / "accelerate_moe.py"
        done = command("--config_file", str(path), str(script), "--steps", "2", ACCELERATE_USE_CPU="true")
        assert done.returncode == 0, done.stderr
        file = place / "accelerate_output" / "areal_metrics" / "metrics.jsonl"
        (row,) = [record.metrics for record in read_metrics(file) if isinstance(record, MetricsRecord)]
        lengths = [int(item["attention_mask"].sum()) for item in ByteText("train", rows=64)]
        assert row["train_perf/tokens"] == sum(lengths)
        assert row["train_perf/optimizer_steps"] == 2
        assert (file.parent / "report.html").exists()
