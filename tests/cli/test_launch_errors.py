"""What ``areal-callbacks launch`` refuses."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from support.launches import write_config

from areal_callbacks.cli import main

pytestmark = pytest.mark.slow


class TestErrors:
    """Before anything is launched; exit code 1 as Accelerate's own for a config that it cannot use."""

    CASES = (
        ({"evry": 3}, ("accelerate.yaml: areal_callbacks", "evry", "every")),
        ({"moe_balance": {"expert_table_every": 0}}, ("accelerate.yaml: areal_callbacks", "expert_table_every", "0")),
        ([1], ("accelerate.yaml: areal_callbacks", "[1]")),
        ("metrics.yaml", ("accelerate.yaml: areal_callbacks", "'metrics.yaml'")),
        ({"token_count_fn": "f"}, ("accelerate.yaml: areal_callbacks", "token_count_fn")),
    )

    def test_an_unknown_key_names_the_key_and_the_file(self, place, command):
        done = command("--config_file", write_config(place, {"evry": 3}), "loop.py")
        assert (done.returncode, done.stdout) == (1, "")
        assert all(word in done.stderr for word in ("accelerate.yaml: areal_callbacks", "evry", "every"))
        assert "Traceback" not in done.stderr
        assert not (place / "told_0.json").exists()

    @pytest.mark.parametrize(("section", "words"), CASES, ids=["key", "value", "list", "text", "function"])
    def test_a_bad_section(self, section, words, place, monkeypatch):
        self.assert_refused(place, monkeypatch, ["--config_file", write_config(place, section), "loop.py"], *words)

    def test_malformed_yaml(self, place, monkeypatch):
        (place / "bad.yaml").write_text("compute_environment: [LOCAL_MACHINE\n")
        self.assert_refused(place, monkeypatch, ["--config_file", "bad.yaml", "loop.py"], "bad.yaml: malformed YAML")

    def test_yaml_that_is_no_mapping(self, place, monkeypatch):
        (place / "bad.yaml").write_text("- LOCAL_MACHINE\n")
        self.assert_refused(place, monkeypatch, ["--config_file", "bad.yaml", "loop.py"], "bad.yaml: ", "mapping")

    def test_a_missing_file(self, place, monkeypatch):
        self.assert_refused(place, monkeypatch, ["--config_file", "no.yaml", "loop.py"], "no.yaml: cannot read")

    def test_a_missing_file_of_metrics(self, place, monkeypatch):
        line = ["--config_file", write_config(place), "--areal_config", "no.yaml", "loop.py"]
        self.assert_refused(place, monkeypatch, line, "no.yaml: cannot read")

    def test_a_bad_key_in_the_file_of_metrics(self, place, monkeypatch):
        (place / "metrics.yaml").write_text("evry: 3\n")
        line = ["--config_file", write_config(place), "--areal_config", "metrics.yaml", "loop.py"]
        self.assert_refused(place, monkeypatch, line, "metrics.yaml: ", "evry")

    def test_a_bad_environment(self, place, monkeypatch):
        monkeypatch.setenv("AREAL_CALLBACKS", "{")
        line = ["--config_file", write_config(place, {}), "loop.py"]
        self.assert_refused(place, monkeypatch, line, "environment variable AREAL_CALLBACKS: malformed JSON")

    @staticmethod
    def assert_refused(place, monkeypatch, arguments, *words):
        monkeypatch.chdir(place)
        monkeypatch.setattr("sys.argv", ["areal-callbacks"])
        result = CliRunner().invoke(main, ["launch", *arguments])
        assert result.exit_code == 1, result.output
        assert all(word in result.output for word in words)
        assert result.output.startswith("Error: ")

    def test_the_real_command_refuses_them_too(self, place, command):
        (place / "bad.yaml").write_text("compute_environment: [LOCAL_MACHINE\n")
        malformed = command("--config_file", "bad.yaml", "loop.py")
        missing = command("--config_file", "no.yaml", "loop.py")
        assert malformed.returncode == missing.returncode == 1
        assert malformed.stderr.startswith("Error: bad.yaml: malformed YAML")
        assert missing.stderr == "Error: no.yaml: cannot read this configuration file: No such file or directory\n"
