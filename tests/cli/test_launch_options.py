"""What ``areal-callbacks launch`` passes on to Accelerate and to the script."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from support.launches import CPU, write_config

from areal_callbacks import MetricsConfig
from areal_callbacks.cli import main

pytestmark = pytest.mark.slow


class TestWhatIsPassedOn:
    """Accelerate's launcher is replaced by one that keeps what it was given."""

    @pytest.fixture
    def given(self, monkeypatch, place):
        calls = []

        def launch_command(options):
            text = None if options.config_file is None else Path(options.config_file).read_text()
            calls.append((options, text, json.loads(os.environ["AREAL_CALLBACKS"])))

        monkeypatch.chdir(place)
        monkeypatch.setenv("TMPDIR", str(place / "temporary"))
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr("sys.argv", ["areal-callbacks"])
        monkeypatch.setattr("accelerate.commands.launch.launch_command", launch_command)

        def run(*arguments):
            result = CliRunner().invoke(main, ["launch", *arguments], catch_exceptions=False)
            assert result.exit_code == 0, result.output
            return calls[-1]

        return run

    def test_a_config_without_the_section_is_passed_as_it_is(self, given, place):
        path = write_config(place)
        options, text, settings = given("--config_file", path, "loop.py", "--x")
        assert options.config_file == path
        assert text == (place / path).read_text()
        assert settings == MetricsConfig().to_dict()
        assert (options.training_script, options.training_script_args) == ("loop.py", ["--x"])
        assert not options.module

    def test_the_section_is_taken_out_of_a_copy(self, given, place):
        path = write_config(place, {"every": 5}, main_process_port=1234, fsdp_config={"fsdp_version": 2})
        options, text, settings = given("--config_file", path, "loop.py")
        assert yaml.safe_load(text) == {**CPU, "main_process_port": 1234, "fsdp_config": {"fsdp_version": 2}}
        assert settings["every"] == 5
        assert not Path(options.config_file).exists()
        assert "AREAL_CALLBACKS" not in os.environ

    def test_an_empty_section_is_the_defaults(self, given, place):
        (place / "accelerate.yaml").write_text(yaml.safe_dump(CPU) + "areal_callbacks:\n")
        _, text, settings = given("--config_file", "accelerate.yaml", "loop.py")
        assert yaml.safe_load(text) == CPU
        assert settings == MetricsConfig().to_dict()

    def test_the_file_of_metrics_wins_over_the_section_and_that_over_the_environment(self, given, place, monkeypatch):
        monkeypatch.setenv("AREAL_CALLBACKS", '{"every": 1, "resume_totals": true, "output_dir": "e"}')
        (place / "metrics.yaml").write_text("every: 3\n")
        path = write_config(place, {"every": 2, "output_dir": "s"})
        _, _, settings = given("--areal_config=metrics.yaml", "--config_file", path, "loop.py")
        assert (settings["every"], settings["output_dir"], settings["resume_totals"]) == (3, "s", True)
        (place / "metrics.yaml").write_text("output_dir: null\n")
        _, _, settings = given("--areal_config=metrics.yaml", "--config_file", path, "loop.py")
        assert (settings["every"], settings["output_dir"]) == (2, None)

    def test_modules_and_programs_that_are_no_python(self, given, place):
        path = write_config(place)
        module, _, _ = given("--config_file", path, "-m", "package.train", "-m", "x")
        assert module.module
        assert (module.training_script, module.training_script_args) == ("package.train", ["-m", "x"])
        program, _, settings = given("--config_file", path, "--no_python", "./train.sh", "x")
        assert not program.module
        assert [program.training_script, *program.training_script_args] == ["./train.sh", "x"]
        assert settings == MetricsConfig().to_dict()

    def test_json_configs(self, given, place):
        (place / "accelerate.json").write_text(json.dumps({**CPU, "areal_callbacks": {"every": 4}}))
        _, text, settings = given("--config_file", "accelerate.json", "loop.py")
        assert yaml.safe_load(text) == CPU
        assert settings["every"] == 4
