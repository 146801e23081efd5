"""``areal-callbacks launch``, the real command: what Accelerate's own would do, and metrics."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from support.tiny_trainer import metric_records

from areal_callbacks import MetricsConfig
from areal_callbacks.cli import launch, main
from areal_callbacks.examples.byte_text import ByteText
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

pytestmark = pytest.mark.slow

TESTS, EXAMPLES = Path(__file__).parents[1], Path(__file__).parents[2] / "examples"
BIN = Path(sysconfig.get_path("scripts"))
CPU = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "use_cpu": True, "num_processes": 1}

LOOP = """
import argparse, json, sys
from pathlib import Path
from support.tiny_accelerate import Loop
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--config_file")
parser.add_argument("--num_processes", type=int)
parser.add_argument("--areal_config")
parser.add_argument("--cpu", action="store_true")
parser.add_argument("rest", nargs="*")
options = parser.parse_args()
accelerator = Accelerator(project_dir=options.config_file)
loop = Loop(accelerator)
loop.run()
told = {"options": vars(options), "tokens": loop.tokens, "processes": accelerator.num_processes}
Path(f"told_{accelerator.process_index}.json").write_text(json.dumps(told))
"""  # neither logs nor ends the training

TRAINER = """
from support.tiny_trainer import Sequences, arguments, moe_model
from transformers import Trainer

trainer = Trainer(moe_model(), arguments("trainer"), train_dataset=Sequences())
trainer.train()
assert "_areal_callbacks" not in vars(trainer.accelerator)
"""

LIGHTNING = """
import lightning.pytorch as pl
import torch
from support.tiny_trainer import Sequences, moe_model

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = moe_model()

    def training_step(self, batch, index):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

pl.Trainer(
    accelerator="cpu", max_epochs=1, log_every_n_steps=1, default_root_dir="lightning", logger=False,
    enable_checkpointing=False, enable_progress_bar=False,
).fit(Module(), torch.utils.data.DataLoader(Sequences(), 4))
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A working directory with the scripts; afterwards nothing is left among the temporary files."""
    for name, text in (("loop.py", LOOP), ("hf_trainer.py", TRAINER), ("with_lightning.py", LIGHTNING)):
        (tmp_path / name).write_text(text)
    (tmp_path / "temporary").mkdir()
    (tmp_path / "home").mkdir()
    yield tmp_path
    assert [path for path in (tmp_path / "temporary").iterdir() if path.name.startswith("areal_callbacks_")] == []


def environment(place: Path, **more: str) -> dict[str, str]:
    own = {"HF_HOME": str(place / "home"), "TMPDIR": str(place / "temporary"), "PYTHONPATH": str(TESTS)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    return {**kept, **own, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **more}


@pytest.fixture
def command(place: Path) -> Run:
    def run(*arguments: str, program: str = "areal-callbacks", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / program), "launch", *arguments],
            cwd=place,
            env=environment(place, **more),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def config(place: Path, section: object = None, **keys: object) -> str:
    """The path of an Accelerate config; a section if one is given."""
    own = {} if section is None else {"areal_callbacks": section}
    (place / "accelerate.yaml").write_text(yaml.safe_dump({**CPU, **keys, **own}))
    return "accelerate.yaml"


def rows(folder: Path) -> list[dict[str, float]]:
    return [record.metrics for record in metric_records(folder)]


def tokens(folder: Path) -> float:
    return sum(row["train_perf/tokens"] for row in rows(folder))


class TestScripts:
    def test_two_processes_and_a_script_whose_flags_look_like_accelerates(self, place, command):
        path = config(place, {"every": 3, "report": False}, distributed_type="MULTI_GPU", num_processes=2)
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
        assert exported[0]["train_perf/optimizer_steps"] == 3
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
        done = command("--areal-config", "metrics.yaml", "--config_file", config(place), "with_lightning.py")
        assert done.returncode == 0, done.stderr
        exported = rows(place / "lightning")
        assert sum(row["train_perf/tokens"] for row in exported) == all_tokens()
        assert not any("moe_balance" in name for row in exported for name in row)

    def test_accelerates_own_launcher_with_the_environment_variable(self, place, command):
        settings = json.dumps({"report": False, "every": 4})
        done = command(
            *("--config_file", config(place), "-m", "areal_callbacks.run", "loop.py", "--config_file", "out"),
            program="accelerate",
            AREAL_CALLBACKS=settings,
        )
        assert done.returncode == 0, done.stderr
        assert [row["train_perf/optimizer_steps"] for row in rows(place / "out")] == [4, 4]
        assert tokens(place / "out") == json.loads((place / "told_0.json").read_text())["tokens"] == all_tokens()

    def test_a_script_that_fails_ends_as_under_accelerate(self, place, command):
        (place / "fails.py").write_text("import sys; print('begun', sys.argv[1]); raise SystemExit(int(sys.argv[1]))")
        ours = command("--config_file", config(place, {"every": 2}), "fails.py", "3")
        theirs = command("--config_file", config(place), "fails.py", "3", program="accelerate")
        assert ours.returncode == theirs.returncode == 1
        assert ours.stdout == theirs.stdout == "begun 3\n"
        last = [done.stderr.strip().splitlines()[-1] for done in (ours, theirs)]
        assert all("CalledProcessError" in line and "returned non-zero exit status 3" in line for line in last)

    def test_the_end_by_a_scheduler_leaves_no_file(self, place):
        (place / "waits.py").write_text("print('begun', flush=True)\nimport time\ntime.sleep(60)")
        line = [str(BIN / "areal-callbacks"), "launch", "--config_file", config(place, {"every": 2}), "waits.py"]
        with subprocess.Popen(
            line, cwd=place, env=environment(place), stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 128 + signal.SIGTERM
            os.killpg(process.pid, signal.SIGKILL)  # the script, as Accelerate leaves it


def all_tokens() -> int:
    from support.tiny_trainer import Sequences

    return sum(int(row["attention_mask"].sum()) for row in (Sequences()[index] for index in range(16)))


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
        done = command("--config_file", config(place, {"evry": 3}), "loop.py")
        assert (done.returncode, done.stdout) == (1, "")
        assert all(word in done.stderr for word in ("accelerate.yaml: areal_callbacks", "evry", "every"))
        assert "Traceback" not in done.stderr
        assert not (place / "told_0.json").exists()

    @pytest.mark.parametrize(("section", "words"), CASES, ids=["key", "value", "list", "text", "function"])
    def test_a_bad_section(self, section, words, place, monkeypatch):
        self.assert_refused(place, monkeypatch, ["--config_file", config(place, section), "loop.py"], *words)

    def test_malformed_yaml(self, place, monkeypatch):
        (place / "bad.yaml").write_text("compute_environment: [LOCAL_MACHINE\n")
        self.assert_refused(place, monkeypatch, ["--config_file", "bad.yaml", "loop.py"], "bad.yaml: malformed YAML")

    def test_yaml_that_is_no_mapping(self, place, monkeypatch):
        (place / "bad.yaml").write_text("- LOCAL_MACHINE\n")
        self.assert_refused(place, monkeypatch, ["--config_file", "bad.yaml", "loop.py"], "bad.yaml: ", "mapping")

    def test_a_missing_file(self, place, monkeypatch):
        self.assert_refused(place, monkeypatch, ["--config_file", "no.yaml", "loop.py"], "no.yaml: cannot read")

    def test_a_missing_file_of_metrics(self, place, monkeypatch):
        line = ["--config_file", config(place), "--areal_config", "no.yaml", "loop.py"]
        self.assert_refused(place, monkeypatch, line, "no.yaml: cannot read")

    def test_a_bad_key_in_the_file_of_metrics(self, place, monkeypatch):
        (place / "metrics.yaml").write_text("evry: 3\n")
        line = ["--config_file", config(place), "--areal_config", "metrics.yaml", "loop.py"]
        self.assert_refused(place, monkeypatch, line, "metrics.yaml: ", "evry")

    def test_a_bad_environment(self, place, monkeypatch):
        monkeypatch.setenv("AREAL_CALLBACKS", "{")
        line = ["--config_file", config(place, {}), "loop.py"]
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
        assert missing.stderr == "Error: no.yaml: cannot read this Accelerate config: No such file or directory\n"


class TestUsage:
    def test_help_is_accelerates_and_ours(self, command):
        ours, theirs = command("--help"), command("--help", program="accelerate")
        assert ours.returncode == theirs.returncode == 0
        assert "--areal_config" in ours.stdout
        assert "section `areal_callbacks:`" in " ".join(ours.stdout.split())
        assert set(options_in(theirs.stdout)) <= set(options_in(ours.stdout))
        assert set(options_in(ours.stdout)) - set(options_in(theirs.stdout)) == {"--areal_config"}

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
        path = config(place)
        options, text, settings = given("--config_file", path, "loop.py", "--x")
        assert options.config_file == path
        assert text == (place / path).read_text()
        assert settings == MetricsConfig().to_dict()
        assert (options.module, options.training_script) == (True, "areal_callbacks.run")
        assert options.training_script_args == ["loop.py", "--x"]

    def test_the_section_is_taken_out_of_a_copy(self, given, place):
        path = config(place, {"every": 5}, main_process_port=1234, fsdp_config={"fsdp_version": 2})
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
        path = config(place, {"every": 2, "output_dir": "s"})
        _, _, settings = given("--areal_config=metrics.yaml", "--config_file", path, "loop.py")
        assert (settings["every"], settings["output_dir"], settings["resume_totals"]) == (3, "s", True)

    def test_modules_and_programs_that_are_no_python(self, given, place):
        path = config(place)
        module, _, _ = given("--config_file", path, "-m", "package.train", "-m", "x")
        assert module.training_script_args == ["-m", "package.train", "-m", "x"]
        program, _, settings = given("--config_file", path, "--no_python", "./train.sh", "x")
        assert not program.module
        assert [program.training_script, *program.training_script_args] == ["./train.sh", "x"]
        assert settings == MetricsConfig().to_dict()

    def test_json_configs(self, given, place):
        (place / "accelerate.json").write_text(json.dumps({**CPU, "areal_callbacks": {"every": 4}}))
        _, text, settings = given("--config_file", "accelerate.json", "loop.py")
        assert yaml.safe_load(text) == CPU
        assert settings["every"] == 4


class TestReadyMadeConfigs:
    @pytest.mark.parametrize("path", sorted((EXAMPLES / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
    def test_accelerate_understands_the_rest_of_each(self, path, tmp_path):
        from accelerate.commands.config.config_args import load_config_from_file
        from accelerate.commands.launch import _validate_launch_command, launch_command_parser

        document, source = launch._accelerate_config(str(path), cpu=False)
        assert launch._settings(document.pop("areal_callbacks"), source, None)["every"] > 1
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
