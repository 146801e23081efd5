"""What is given by mistake is refused in one line, without a traceback of ours."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_callbacks import cli
from areal_callbacks.cli.errors import explain, explain_unknown_model

READERS = ("report", "check", "inspect", "flops", "wandb-charts recover")
GIVEN: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "binary": lambda path: path.write_bytes(b"\x00\xff{not a record\n"),
    "text": lambda path: path.write_text("hello\nworld\n"),
    "object of another program": lambda path: path.write_text('{"name": "x"}\n'),
    "lines of another program": lambda path: path.write_text('{"a": 1}\n{"a": 2}\n'),
    "list": lambda path: path.write_text("[1, 2]\n"),
    "link to itself": lambda path: path.symlink_to(path),
    "another folder of tables": lambda path: (path.mkdir(), (path / "x.table.json").write_text("{")),
}


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("kind", GIVEN)
def test_a_path_that_is_something_else(command: str, kind: str, tmp_path: Path) -> None:
    GIVEN[kind](tmp_path / "given")
    expect_one_line(command, str(tmp_path / "given"))


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("path", ["x" * 300, "", "~nobody-here/x", "/dev/null/x"])
def test_a_path_that_cannot_be(command: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expect_one_line(command, path)


def expect_one_line(command: str, path: str) -> None:
    """After the usage, where there is one."""
    result = CliRunner().invoke(cli.main, [*command.split(), path])
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code in (1, 2)
    usage, begin, message = result.output.partition("Error: ")
    assert begin
    assert usage == "" or usage.startswith("Usage: ")
    assert len(message.rstrip("\n").split("\n")) == 1
    assert "[Errno" not in message


@pytest.mark.parametrize("command", [name for name in cli.COMMANDS if name != "demo"])
def test_an_unknown_option_or_nothing_given(command: str) -> None:
    for arguments in (["--no-such-option"], []):
        result = CliRunner().invoke(cli.main, [command, *arguments])
        assert isinstance(result.exception, SystemExit)
        assert result.exit_code == 2
        assert "Traceback" not in result.output


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "from areal_callbacks.cli import main; main(prog_name='areal-callbacks')"
    environment = {**os.environ, "PYTHONNOUSERSITE": "1"}
    environment.pop("AREAL_CALLBACKS", None)
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("command", "code", "reason"), [("nosuch", 127, "No such file"), ("./here", 126, "Permission")]
)
def test_run_of_what_cannot_be_started_says_only_that(command: str, code: int, reason: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    done = run(tmp_path, "run", "--", command)
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"areal-callbacks run: {command}: {reason}")


@pytest.mark.parametrize("words", [["python"], ["python", "-c", "print(1)"], ["--", "python3.11"], ["--", "-x"]])
def test_verify_without_a_script_says_what_is_needed(words: list[str]) -> None:
    result = CliRunner().invoke(cli.main, ["verify", *words])
    assert result.exit_code == 2
    assert "Error: COMMAND: a Python script, or -m and a module, is needed; got '" in result.output


@pytest.mark.parametrize("content", [b"\x00\xff", b"def f(:\n"], ids=["binary", "syntax"])
def test_verify_shows_a_script_that_is_no_python_as_python_does(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_bytes(content)
    done = run(tmp_path, "verify", "--", "python", "script.py")
    assert done.returncode == 1
    assert "areal_callbacks" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(("SyntaxError: ", "ValueError: "))


def test_verify_finds_an_installed_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train-it"
    script.write_text(f"#!{sys.executable}\nimport sys\nprint('trained', sys.argv[1:])\nsys.exit(5)\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = run(Path("/"), "verify", "--", "train-it", "--fast")
    assert (done.returncode, done.stdout) == (5, "trained ['--fast']\n")


def test_errors_of_the_system_are_explained_without_their_numbers() -> None:
    assert explain(PermissionError(errno.EACCES, "Permission denied", "a/b")) == "a/b: Permission denied"
    assert explain(OSError(errno.EIO, "Input/output error")) == "Input/output error"
    assert explain(OSError("it is closed")) == "it is closed"
    assert explain(ValueError("names: 2 for 1 runs")) == "names: 2 for 1 runs"


def test_a_model_that_is_not_known_and_what_is_near_to_it() -> None:
    start = "is neither a local path nor a model type"
    assert explain_unknown_model("qwen3-moe", ["qwen3_moe", "llama"]) == f"'qwen3-moe' {start}; near to it: qwen3_moe"
    assert explain_unknown_model("zzz", ["qwen3_moe", "llama"]) == f"'zzz' {start}"
